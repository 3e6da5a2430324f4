package drivertest

import (
	"errors"
	"io/fs"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func execGroup() group {
	return group{name: "exec", behaviours: []behaviour{
		{"exit-status", execExitStatus},
		{"arguments", execArguments},
		{"signaled", execSignaled},
		{"not-found", execNotFound},
		{"not-executable", execNotExecutable},
		{"heredoc", execHeredoc},
		{"no-shell-state", execNoShellState},
		{"faults", execFaults},
		{"descriptors", execDescriptors},
		{"signals", execSignals},
	}}
}

// execExitStatus: the status is the program's, and a program's exit ends nothing
// but itself.
func execExitStatus(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, status := range []int{0, 1, 3, 42, 126, 127, 137, 255} {
		exited(t, sb, status, shell(`exit "$1"`, itoa(status)))
	}
	if got := sh(t, sb, "echo still here"); got != "still here\n" {
		t.Errorf("after all the exits: %q", got)
	}
}

// execArguments: arguments arrive as they were given.
func execArguments(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	args := []string{
		"", " ", "a b", "'", `"`, `\`, "$HOME", "`id`", "$(id)", "a;b", "a&b", "*", "~", "-n", "--", "line\nbreak",
		"tab\t", "ünïcode €", "\x01\x7f", strings.Repeat("x", 64<<10),
	}
	var want strings.Builder
	for _, a := range args {
		want.WriteString(a + "\x00")
	}
	res := exited(t, sb, 0, shell(`for a do printf '%s\0' "$a"; done`, args...))
	equal(t, "arguments", res.Stdout, []byte(want.String()))
}

// execSignaled: a signal is not an exit status.
func execSignaled(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for name, number := range map[string]syscall.Signal{"SEGV": syscall.SIGSEGV, "KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM} {
		res, err := sb.Exec(bounded(t), shell(`kill -`+name+` $$; sleep 100`))
		if err != nil {
			t.Fatalf("kill -%s: %v", name, err)
		}
		if res.Reason != berm.Signaled || res.Signal != number || res.ExitCode != nil {
			t.Errorf("kill -%s: reason %s, signal %v, exit code %s", name, res.Reason, res.Signal, exitCode(res))
		}
	}
}

// execNotFound: what never ran is an error and has no exit status.
func execNotFound(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, program := range []string{"berm-no-such-program", "/berm/no/such/program", "./berm-no-such-program"} {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{program}})
		wantKind(t, err, errdefs.NotStarted)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v does not match fs.ErrNotExist", program, err)
		}
		noExit(t, res)
		if res != nil && res.Reason != berm.NotStarted {
			t.Errorf("%s: reason %s", program, res.Reason)
		}
	}
	sh(t, sb, "exit 0")
}

func execNotExecutable(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	file := path.Join(sb.WorkDir(), "plain")
	if err := sb.Files().WriteFile(bounded(t), file, []byte("#!/bin/sh\nexit 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{file, sb.WorkDir()} {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{program}})
		wantKind(t, err, errdefs.NotStarted)
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v does not match fs.ErrPermission", program, err)
		}
		noExit(t, res)
	}
}

// execHeredoc: a script with its own input inside runs to its end.
func execHeredoc(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, liveness, "a heredoc", func() {
		res, err := sb.Exec(bounded(t), shell("cat > here <<'EOF'\nline one\n$not expanded\nEOF\ncat here"))
		if err != nil || exitCode(res) != "0" || string(res.Stdout) != "line one\n$not expanded\n" {
			t.Errorf("heredoc: %v, %v", res, err)
		}
	})
}

// execNoShellState: no command leaves a trace in the next one's process.
func execNoShellState(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "cd /; export LEFT=over; umask 077; ulimit -n 64; exec 2>/dev/null")
	got := sh(t, sb, `pwd; echo "[$LEFT]"; umask; ulimit -n`)
	lines := strings.Split(got, "\n")
	if len(lines) < 4 || lines[0] != sb.WorkDir() || lines[1] != "[]" || strings.HasSuffix(lines[2], "77") || lines[3] == "64" {
		t.Errorf("the second command saw %q", got)
	}
}

// execFaults: a command that cannot be right is refused with every reason, and
// nothing runs.
func execFaults(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	touch := []string{"touch", "ran"}
	for name, c := range map[string]berm.Command{
		"no program":    {},
		"empty program": {Args: []string{""}},
		"NUL in arg":    {Args: []string{"touch", "ran", "a\x00b"}},
		"NUL in dir":    {Args: touch, Dir: "/tmp\x00"},
		"dots in dir":   {Args: touch, Dir: "/tmp/../tmp"},
		"env key":       {Args: touch, Env: map[string]string{"A B": "c"}},
		"env NUL":       {Args: touch, Env: map[string]string{"A": "b\x00c"}},
		"timeout":       {Args: touch, Timeout: -5},
		"max output":    {Args: touch, MaxOutput: -1},
	} {
		res, err := sb.Exec(bounded(t), c)
		if res != nil {
			t.Errorf("%s: a result %v", name, res)
		}
		wantKind(t, err, errdefs.Invalid)
	}
	_, err := sb.Exec(bounded(t), berm.Command{Args: []string{"x\x00"}, Env: map[string]string{"": "", "=": ""}, Timeout: -7})
	var known *errdefs.Error
	if !errors.As(err, &known) || len(known.Reasons) < 4 {
		t.Errorf("four faults at once: %v", err)
	}
	if exists(t, sb, "ran") {
		t.Error("a refused command ran")
	}
}

// execDescriptors: a command has its three streams and no descriptor of the
// agent's.
func execDescriptors(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	got := sh(t, sb, `cd /proc/self/fd && for f in *; do if [ "$f" -gt 2 ]; then readlink "$f"; fi; done; exit 0`)
	for line := range strings.Lines(got) {
		// The shell itself holds the directory that it expands the pattern in.
		if !strings.HasPrefix(line, "/proc/") {
			t.Errorf("a further descriptor: %s", line)
		}
	}
}

// execSignals: no signal is blocked or ignored to begin with.
func execSignals(t *testing.T, s *suite) {
	const show = `exec grep -E '^Sig(Blk|Ign):' /proc/self/status`
	sb := s.sandbox(t)
	// Where the agent is part of this process, commands get what the kernel hands
	// on from it: some programs (make) start others with signals ignored.
	inherited := map[string]uint64{}
	if !s.declared(t).Isolation.Processes {
		own, err := exec.CommandContext(t.Context(), "sh", "-c", show).Output()
		if err != nil {
			t.Fatal(err)
		}
		inherited = signalMasks(t, string(own))
	}
	for name, mask := range signalMasks(t, sh(t, sb, show)) {
		if mask&^inherited[name] != 0 {
			t.Errorf("a command starts with %s %016x", name, mask)
		}
	}
}

// signalMasks reads lines of /proc/self/status.
func signalMasks(t *testing.T, text string) map[string]uint64 {
	t.Helper()
	masks := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, hex, _ := strings.Cut(strings.TrimSpace(line), "\t")
		mask, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		masks[name] = mask
	}
	return masks
}
