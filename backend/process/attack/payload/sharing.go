//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sharingFamily() map[string]attack {
	return map[string]attack{"offer": offer, "find": find}
}

// Names under which one sandbox offers what another must not find: in all
// sandboxes the same.
const (
	sharedKey  = 0x62657265
	sharedName = "berm-attack-shared"
	sharedPort = "127.0.0.1:34567"
)

// offer makes one thing of every kind that two processes can share without being
// related, and holds them until its input ends.
func offer(r *report, _ []string) error {
	_, err := unix.SysvShmGet(sharedKey, 4096, unix.IPC_CREAT|0o666)
	r.add("shared memory", err)
	_, err = sysv(unix.SYS_SEMGET, sharedKey, 1, unix.IPC_CREAT|0o666)
	r.add("semaphores", err)
	_, err = sysv(unix.SYS_MSGGET, sharedKey, unix.IPC_CREAT|0o666, 0)
	r.add("messages", err)
	for _, dir := range []string{"/tmp", "/dev/shm", "/home/user"} {
		r.add("file in "+dir, os.WriteFile(filepath.Join(dir, sharedName), nil, 0o666))
	}
	abstract, err := net.Listen("unix", "@"+sharedName)
	r.add("abstract socket", err)
	port, err := net.Listen("tcp", sharedPort)
	r.add("port", err)
	named, err := net.Listen("unix", "/tmp/"+sharedName+".sock")
	r.add("socket", err)
	r.add("process", nameThread(sharedName))
	err = r.held()
	for _, l := range []net.Listener{abstract, port, named} {
		if l != nil {
			_ = l.Close()
		}
	}
	return err
}

// find looks for everything that offer made.
func find(r *report, _ []string) error {
	_, err := unix.SysvShmGet(sharedKey, 0, 0)
	r.add("shared memory", err)
	_, err = sysv(unix.SYS_SEMGET, sharedKey, 0, 0)
	r.add("semaphores", err)
	_, err = sysv(unix.SYS_MSGGET, sharedKey, 0, 0)
	r.add("messages", err)
	for _, dir := range []string{"/tmp", "/dev/shm", "/home/user"} {
		_, err := os.Stat(filepath.Join(dir, sharedName))
		r.add("file in "+dir, err)
	}
	for _, target := range [][3]string{{"abstract socket", "unix", "@" + sharedName}, {"port", "tcp", sharedPort}, {"socket", "unix", "/tmp/" + sharedName + ".sock"}} {
		conn, err := net.DialTimeout(target[1], target[2], 2*time.Second) //nolint:forbid // bounded
		if err == nil {
			_ = conn.Close()
		}
		r.add(target[0], err)
	}
	r.add("process", processNamed(sharedName[:15]))
	return nil
}

// nameThread gives the calling thread a name; the kernel keeps 15 bytes of it.
func nameThread(name string) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(p)), 0, 0, 0)
}

// sysv is a call of System V communication.
func sysv(number, a, b, c uintptr) (uintptr, error) {
	result, _, errno := unix.Syscall(number, a, b, c)
	if errno != 0 {
		return 0, errno
	}
	return result, nil
}

// processNamed looks through /proc.
func processNamed(name string) error {
	found, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/comm")
	if err != nil {
		return err
	}
	for _, file := range found {
		if data, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(data)) == name {
			return nil
		}
	}
	return fmt.Errorf("no process of that name: %w", errors.Join(unix.ESRCH))
}
