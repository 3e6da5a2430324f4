package drivertest

import (
	"bufio"
	"errors"
	"io"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func cmdGroup() group {
	return group{name: "cmd", behaviours: []behaviour{
		{"output", cmdOutput},
		{"exit-error", cmdExitError},
		{"pipes", cmdPipes},
		{"misuse", cmdMisuse},
	}}
}

// cmdOutput: Output and CombinedOutput are os/exec's.
func cmdOutput(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	out, err := sb.CommandContext(bounded(t), "sh", "-c", "echo out; echo err >&2").Output()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "Output", out, []byte("out\n"))
	out, err = sb.CommandContext(bounded(t), "sh", "-c", "echo out; sleep 0.1; echo err >&2").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "CombinedOutput", out, []byte("out\nerr\n"))
}

// cmdExitError: a status other than 0 is an *ExitError that keeps stderr.
func cmdExitError(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	out, err := sb.CommandContext(bounded(t), "sh", "-c", "echo half; echo why >&2; exit 3").Output()
	var exit *berm.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("error %v (%T), want *ExitError", err, err)
	}
	checkExit(t, exit.Result, 3)
	equal(t, "stdout", out, []byte("half\n"))
	equal(t, "stderr", exit.Stderr, []byte("why\n"))
}

// cmdPipes: a conversation with a running command.
func cmdPipes(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	cmd := sb.CommandContext(bounded(t), "sh", "-c", `while read -r line; do echo "got $line"; done; echo end >&2`)
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(stdin, word+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); err != nil || got != "got "+word+"\n" {
			t.Fatalf("answer %q, %v", got, err)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stderr)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "stderr", rest, []byte("end\n"))
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	checkExit(t, cmd.Result, 0)
}

func cmdMisuse(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	cmd := sb.CommandContext(bounded(t), "true")
	wantKind(t, cmd.Wait(), errdefs.Invalid)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	wantKind(t, cmd.Start(), errdefs.Invalid)
	wantKind(t, cmd.Wait(), errdefs.Invalid)
}
