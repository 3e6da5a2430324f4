package drivertest

import (
	"net"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
)

func timeoutGroup() group {
	return group{name: "timeout", behaviours: []behaviour{
		{"fires", timeoutFires},
		{"partial-output", timeoutPartialOutput},
		{"whole-tree", timeoutWholeTree},
		{"daemon", timeoutDaemon},
		{"headless", timeoutHeadless},
		{"chains", timeoutChains},
		{"default", timeoutDefault},
	}}
}

// timeoutFires: it fires on time, is told as what it is, and the process is
// gone.
func timeoutFires(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	beat := newHeart(t, sb)
	payload := s.install(t, sb)
	within(t, 500*time.Millisecond+liveness, "a timeout of half a second", func() {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{payload, "beat", beat.file}, Timeout: 500 * time.Millisecond})
		switch {
		case err != nil:
			t.Errorf("exec: %v", err)
		case res.Reason != berm.TimedOut || res.ExitCode != nil:
			t.Errorf("reason %s, exit code %s", res.Reason, exitCode(res))
		case res.Duration < 500*time.Millisecond:
			t.Errorf("it fired after %v", res.Duration)
		}
	})
	beat.stopped("the command that timed out")
}

// timeoutPartialOutput: what came before the timeout is not thrown away.
func timeoutPartialOutput(t *testing.T, s *suite) {
	command := shell(`echo before; echo err >&2; sleep 1000; echo after`)
	command.Timeout = time.Second
	res, err := s.sandbox(t).Exec(bounded(t), command)
	if err != nil || res.Reason != berm.TimedOut {
		t.Fatalf("exec: %v, %v", res, err)
	}
	equal(t, "stdout", res.Stdout, []byte("before\n"))
	equal(t, "stderr", res.Stderr, []byte("err\n"))
}

// timeoutWholeTree: children end with the leader.
func timeoutWholeTree(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	const pause = 3 * time.Second
	command := shell(`(sleep 3; touch marker) & wait`)
	command.Timeout = 50 * time.Millisecond
	if res, err := sb.Exec(bounded(t), command); err != nil || res.Reason != berm.TimedOut {
		t.Fatalf("exec: %v, %v", res, err)
	}
	// The absence of an event can only be waited for.
	time.Sleep(pause + 500*time.Millisecond)
	if exists(t, sb, "marker") {
		t.Error("a child of the command went on after the timeout")
	}
}

// timeoutDaemon: a daemon that left the session and lost its parent ends too,
// and its port is free.
func timeoutDaemon(t *testing.T, s *suite) {
	if s.declared(t).TreeKill == driver.KillGroup {
		t.Skip("the backend declares that a daemon may survive")
	}
	sb := s.sandbox(t)
	payload := s.install(t, sb)
	port := path.Join(sb.WorkDir(), "port")
	beat := newHeart(t, sb)
	command := shell(`"$1" daemon echo-server "$2"; "$1" daemon beat "$3"; while [ ! -e "$2" ] || [ ! -e "$3" ]; do sleep 0.01; done; cat "$2"; sleep 1000`,
		payload, port, beat.file)
	command.Timeout = 3 * time.Second
	reached := make(chan error, 1)
	command.Stdout = writerFunc(func(p []byte) {
		// While it lives the port answers.
		conn, err := sb.DialContext(bounded(t), "tcp", "localhost:"+strings.TrimSpace(string(p)))
		if err == nil {
			_ = conn.Close()
		}
		reached <- err
	})
	res, err := sb.Exec(bounded(t), command)
	if err != nil || res.Reason != berm.TimedOut {
		t.Fatalf("exec: %v, %v", res, err)
	}
	select {
	case err := <-reached:
		if err != nil {
			t.Fatalf("dial the daemon while it lives: %v", err)
		}
	default:
		t.Fatal("the daemon never came up")
	}
	beat.stopped("a daemon of the command that timed out")
	number := strings.TrimSpace(sh(t, sb, `cat "$1"`, port))
	eventually(t, liveness, "the daemon's port is closed", func() bool {
		conn, err := sb.DialContext(bounded(t), "tcp", net.JoinHostPort("localhost", number))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// timeoutHeadless: a process whose first thread has ended, while another goes on,
// is a process still.
func timeoutHeadless(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	beat := newHeart(t, sb)
	payload := s.install(t, sb)
	within(t, time.Second+liveness, "a timeout of a second", func() {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{payload, "headless", beat.file}, Timeout: time.Second})
		if err != nil || res.Reason != berm.TimedOut {
			t.Errorf("exec: %v, %v", res, err)
		}
	})
	beat.stopped("a process without its first thread")
}

// timeoutChains: processes that end as soon as they have started the next are
// caught too.
func timeoutChains(t *testing.T, s *suite) {
	if !s.declared(t).Isolation.Processes {
		t.Skip("the backend has no processes of its own that it could stop all at once")
	}
	sb := s.sandbox(t)
	beat := newHeart(t, sb)
	command := berm.Command{Args: []string{s.install(t, sb), "chains", beat.file}, Timeout: time.Second}
	within(t, command.Timeout+liveness, "a timeout of a second", func() {
		if res, err := sb.Exec(bounded(t), command); err != nil || res.Reason != berm.TimedOut {
			t.Errorf("exec: %v, %v", res, err)
		}
	})
	beat.stopped("a chain of the command that timed out")
}

// writerFunc is a writer that calls a function.
type writerFunc func(p []byte)

// Write never fails.
func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// timeoutDefault: the provider's timeout counts where the command says nothing,
// and NoTimeout lifts it.
func timeoutDefault(t *testing.T, s *suite) {
	p := s.open(t, func(c *berm.Config) { c.Timeout = 200 * time.Millisecond })
	sb := create(t, p, berm.CreateOptions{})
	if res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"sleep", "1000"}}); err != nil || res.Reason != berm.TimedOut {
		t.Errorf("the provider's timeout: %v, %v", res, err)
	}
	exited(t, sb, 0, berm.Command{Args: []string{"sleep", "0.5"}, Timeout: berm.NoTimeout})
	exited(t, sb, 0, berm.Command{Args: []string{"sleep", "0.5"}, Timeout: time.Minute})
}
