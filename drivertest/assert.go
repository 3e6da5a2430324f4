package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

// bounded is a context for operations whose duration is not the subject.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// unique gives a token that appears nowhere else.
func unique() string { return strings.ToLower(rand.Text()) }

// within fails the test when f does not return in time. A hanging f is left
// behind: the test has failed and the process is about to end.
func within(t *testing.T, bound time.Duration, what string, f func()) {
	t.Helper()
	bound = max(bound, liveness)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("%s: did not end within %v", what, bound)
	}
}

// eventually fails the test when ok does not become true in time.
func eventually(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	bound = max(bound, liveness)
	deadline := time.Now().Add(bound)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// exited runs a command that has to exit by itself, with that status.
func exited(t *testing.T, sb *berm.Sandbox, status int, c berm.Command) *berm.Result {
	t.Helper()
	res, err := sb.Exec(bounded(t), c)
	if err != nil {
		t.Fatalf("exec %q: %v", c.Args, err)
	}
	checkExit(t, res, status)
	return res
}

func checkExit(t *testing.T, res *berm.Result, status int) {
	t.Helper()
	switch {
	case res == nil:
		t.Fatal("no result and no error")
	case res.Reason != berm.Exited || res.ExitCode == nil:
		t.Fatalf("the command %v (exit code %v), want exited %d; stderr %q", res, res.ExitCode, status, clip(res.Stderr))
	case *res.ExitCode != status:
		t.Fatalf("exit status %d, want %d; stderr %q", *res.ExitCode, status, clip(res.Stderr))
	case res.Signal != 0:
		t.Fatalf("exited %d and signal %v at once", status, res.Signal)
	}
}

// shell is a command for sh, with the positional parameters args.
func shell(script string, args ...string) berm.Command {
	return berm.Command{Args: append([]string{"sh", "-c", script, "sh"}, args...)}
}

// sh runs a script that has to succeed and gives its output.
func sh(t *testing.T, sb *berm.Sandbox, script string, args ...string) string {
	t.Helper()
	return string(exited(t, sb, 0, shell(script, args...)).Stdout)
}

// noExit checks that no exit status was made up for a command whose end nobody
// saw.
func noExit(t *testing.T, res *berm.Result) {
	t.Helper()
	if res == nil {
		return
	}
	if res.ExitCode != nil || res.Reason == berm.Exited {
		t.Errorf("the result claims %v (exit code %v) for an end that nobody saw", res, res.ExitCode)
	}
}

// wantKind checks an error's kind and that it is berm's own.
func wantKind(t *testing.T, err error, kinds ...errdefs.Kind) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %v", kinds)
		return
	}
	var known *errdefs.Error
	if !errors.As(err, &known) {
		t.Errorf("error %v (%T) is not an *errdefs.Error", err, err)
		return
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return
		}
	}
	t.Errorf("error %v is %s, want %v", err, known.Kind, kinds)
}

// equal compares bytes exactly.
func equal(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if string(got) == string(want) {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s: got %d bytes, want %d; first difference at %d: %q, want %q",
		what, len(got), len(want), at, clip(got[at:]), clip(want[at:]))
}

func clip(b []byte) []byte { return b[:min(len(b), 200)] }

// random gives bytes that no chunking or text handling leaves as they are.
func random(size int) []byte {
	out := make([]byte, size)
	_, _ = rand.Read(out) // never fails
	return out
}

// install puts the suite's own program into a sandbox and gives its path.
func (s *suite) install(t *testing.T, sb *berm.Sandbox) string {
	t.Helper()
	f, err := os.Open(s.payload)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	inside := path.Join(sb.WorkDir(), "payload-"+unique())
	if err := sb.Files().Create(bounded(t), inside, 0o755, f); err != nil {
		t.Fatalf("install the suite's program: %v", err)
	}
	return inside
}

// exists reports whether a path inside exists.
func exists(t *testing.T, sb *berm.Sandbox, name string) bool {
	t.Helper()
	_, err := sb.Files().Lstat(bounded(t), name)
	switch {
	case err == nil:
		return true
	case errors.Is(err, fs.ErrNotExist):
		return false
	}
	t.Fatalf("lstat %s: %v", name, err)
	return false
}

// heart is a process inside that shows by a growing file that it is alive.
type heart struct {
	t    *testing.T
	sb   *berm.Sandbox
	file string
}

// newHeart names a file for the payload's verb "beat".
func newHeart(t *testing.T, sb *berm.Sandbox) heart {
	t.Helper()
	return heart{t: t, sb: sb, file: path.Join(sb.WorkDir(), "beat-"+unique())}
}

func (h heart) size() int64 {
	h.t.Helper()
	info, err := h.sb.Files().Stat(bounded(h.t), h.file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		h.t.Fatalf("stat %s: %v", h.file, err)
	}
	return info.Size()
}

// started waits until it beats.
func (h heart) started() {
	h.t.Helper()
	eventually(h.t, 20*time.Second, "the process starts to beat", func() bool { return h.size() > 0 })
}

// stopped checks that it beats no more, within the bound.
func (h heart) stopped(what string) {
	h.t.Helper()
	const pulse = 300 * time.Millisecond // 15 beats
	last, since := h.size(), time.Now()
	eventually(h.t, liveness+pulse, what+" is dead", func() bool {
		if size := h.size(); size != last {
			last, since = size, time.Now()
		}
		return time.Since(since) > pulse
	})
}

// exitCode is an exit code for messages.
func exitCode(res *berm.Result) string {
	if res == nil || res.ExitCode == nil {
		return "none"
	}
	return fmt.Sprint(*res.ExitCode)
}
