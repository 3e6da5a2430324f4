//go:build linux

package attack_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
)

// reversed keeps a word out of the command line that looks for it.
func reversed(word string) string {
	letters := []byte(word)
	slices.Reverse(letters)
	return string(letters)
}

// process-tier 1.7 weak 9, attacks 1 and their test "a marker in the host
// environment and in an option value: absent from /proc/*/{environ,cmdline,fd,mountinfo}".
func TestSecretsOfTheEnvironment(t *testing.T) { //nolint:paralleltest // it changes the environment
	const host, option, command = "marker-of-the-host-5e1f", "marker-of-an-option-77c2", "marker-of-a-command-90ab"
	prepare(t)
	t.Setenv("BERM_ATTACK_SECRET", host)
	if inherited, err := exec.CommandContext(t.Context(), "printenv", "BERM_ATTACK_SECRET").Output(); err != nil || !strings.Contains(string(inherited), host) {
		t.Errorf("control: a program of the host does not inherit it: %q %v", inherited, err)
	}
	// A provider that is opened now: what it prepares could have the environment.
	p := opened(t, func(c *berm.Config) { c.Env = map[string]string{"OPTION": option} })
	b := settle(t, p, berm.CreateOptions{Labels: map[string]string{"label": option}})
	processes := processesOf(t, b)
	all := []string{"/tmp", "/run", "/dev/shm", "/home", "/mnt"}
	if v := attack(t, b, "search", append([]string{reversed(host)}, all...)...); len(v) != 1 {
		t.Errorf("the caller's environment: %+v", v)
	}
	// An option's value is in the environment of commands, which is what it is for,
	// and nowhere else.
	seen := attack(t, b, "search", append([]string{reversed(option)}, all...)...)
	if len(seen.of("found in")) == 0 {
		t.Error("control: the command does not have its environment")
	}
	for _, a := range seen.of("found in") {
		if !strings.HasSuffix(a.Name, "/environ") || strings.HasPrefix(a.Name, "found in /proc/1/") {
			t.Errorf("an option's value: %s", a.Name)
		}
	}
	neighbour := shared(t)
	res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", `test "$COMMAND"`}, Env: map[string]string{"COMMAND": command}})
	if err != nil || !res.Success() {
		t.Errorf("%v %v", res, err)
	}
	for _, word := range []string{host, option, command} {
		if v := attack(t, neighbour, "search", append([]string{reversed(word)}, all...)...); len(v) != 1 {
			t.Errorf("in another sandbox: %+v", v)
		}
	}
	outside(t, processes, host, option)
	for _, options := range starts(t) {
		outside(t, processesOf(t, fresh(t, options)), host, option)
	}
}

// outside looks at a sandbox's processes from the host: neither has the words in
// its arguments, and none but the command has an environment.
func outside(t *testing.T, processes []int, words ...string) {
	t.Helper()
	for i, pid := range processes {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			t.Fatal(err)
		}
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil && !isClosed(pid, "environ") {
			t.Fatal(err)
		}
		for _, word := range words {
			if strings.Contains(string(line), word) {
				t.Errorf("process %d has %q in its arguments", pid, word)
			}
			if i > 0 && strings.Contains(string(environment), word) {
				t.Errorf("process %d has %q in its environment", pid, word)
			}
		}
		// attacks 1: bubblewrap's options would name the host's paths.
		if words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"); i > 0 && len(words) > 6 {
			t.Errorf("process %d tells its options: %q", pid, words)
		}
		// bubblewrap tells the working directory to what it starts.
		if left := strings.Trim(string(environment), "\x00"); i > 0 && left != "" && left != "PWD=/" {
			t.Errorf("process %d (%q) has the environment %q", pid, line, left)
		}
	}
}
