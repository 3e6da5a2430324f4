//go:build linux

package attack_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// process-tier 1.7 weak 8, "host IPC and UTS namespaces shared"; 1.3 "Not
// unshared: IPC, UTS, cgroup".
func TestSharedMemoryAndQueuesAreApart(t *testing.T) {
	t.Parallel()
	b, neighbour := shared(t), fresh(t, defaults())
	// A key of this run, not IPC_PRIVATE.
	key := strconv.Itoa(1 + int(time.Now().UnixNano()&0x3fffffff))
	onHost(t, "ipc-make", key).each(t, succeeded, "cannot be made on the host")
	defer onHost(t, "ipc-remove", key)
	onHost(t, "ipc-find", key).each(t, succeeded, "is not found on the host")
	attack(t, b, "ipc-find", key).blocked(t, "ENOENT")
	// The other way, and between sandboxes.
	other := strconv.Itoa(1 + int(time.Now().UnixNano()&0x3fffffff))
	attack(t, b, "ipc-make", other).each(t, succeeded, "cannot be made inside")
	defer attack(t, b, "ipc-remove", other)
	attack(t, b, "ipc-find", other).each(t, succeeded, "is not found by the sandbox's next command")
	onHost(t, "ipc-find", other).blocked(t, "ENOENT")
	attack(t, neighbour, "ipc-find", other).blocked(t, "ENOENT")
	hosts, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || !strings.Contains(string(hosts), key) {
		t.Errorf("control: the host lists no segment: %v", err)
	}
	if strings.Contains(output(t, b, "cat", "/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"), key) {
		t.Error("the host's segments are listed inside")
	}
}

func succeeded(a attempt) bool { return a.Errno == "" }

// process-tier 1.7 weak 8: the names of the machine are not told inside. That
// they cannot be changed is in TestAdministration.
func TestHostNames(t *testing.T) {
	t.Parallel()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attack(t, shared(t), "names") {
		if a.Errno != "" || a.Detail == name || a.Name == "host name" && a.Detail != "berm" {
			t.Errorf("%s is %q on a host %q: %s", a.Name, a.Detail, name, a.Errno)
		}
	}
	for _, namespace := range []string{"ipc", "uts", "cgroup", "net", "pid", "mnt", "user"} {
		own, err := os.Readlink("/proc/self/ns/" + namespace)
		if err != nil {
			t.Fatal(err)
		}
		if inside := strings.TrimSpace(output(t, shared(t), "readlink", "/proc/self/ns/"+namespace)); inside == own {
			t.Errorf("the %s namespace is the host's, %s", namespace, own)
		}
	}
}
