package drivertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
)

func stdinGroup() group {
	return group{name: "stdin", behaviours: []behaviour{
		{"none", stdinNone},
		{"empty", stdinEmpty},
		{"closed", stdinClosed},
		{"big", stdinBig},
		{"unread", stdinUnread},
		{"half-read", stdinHalfRead},
		{"endless-timeout", stdinEndlessTimeout},
		{"failing-reader", stdinFailingReader},
	}}
}

// pipe is an input that the test feeds.
type pipe struct {
	reader *io.PipeReader
	writer *io.PipeWriter
}

func newPipe() pipe {
	r, w := io.Pipe()
	return pipe{reader: r, writer: w}
}

// endless is an input that never ends and never has anything, until the test
// does.
func endless(t *testing.T) io.Reader {
	t.Helper()
	p := newPipe()
	t.Cleanup(func() { _ = p.writer.Close() })
	return p.reader
}

func (p pipe) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(p.writer, text); err != nil {
		t.Errorf("write input: %v", err)
	}
	_ = p.writer.Close()
}

// stdinNone: without an input there is an empty one, not an open one.
func stdinNone(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, liveness, "cat without input", func() {
		if res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"cat"}}); err != nil || exitCode(res) != "0" || len(res.Stdout) != 0 {
			t.Errorf("cat: %v, %v", res, err)
		}
	})
}

// stdinEmpty: the end of an empty input arrives.
func stdinEmpty(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, liveness, "cat with an empty input", func() {
		command := berm.Command{Args: []string{"cat"}, Stdin: strings.NewReader("")}
		if res, err := sb.Exec(bounded(t), command); err != nil || exitCode(res) != "0" || len(res.Stdout) != 0 {
			t.Errorf("cat: %v, %v", res, err)
		}
	})
}

// stdinClosed: the end of an input that was open for a while, and had nothing, is
// told at once, for a reader as for a pipe.
func stdinClosed(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	in, seen := newPipe(), &arrival{first: make(chan struct{})}
	command := shell(`echo up; exec cat`)
	command.Stdin, command.Stdout = in.reader, seen
	ended := make(chan *berm.Result, 1)
	go func() {
		res, err := sb.Exec(bounded(t), command)
		if err != nil {
			t.Errorf("cat: %v", err)
		}
		ended <- res
	}()
	within(t, patience, "the command's start", func() { <-seen.first })
	_ = in.writer.Close()
	within(t, liveness, "cat whose input is closed", func() { checkExit(t, <-ended, 0) })

	cmd := sb.CommandContext(bounded(t), "cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), stdin.Close()); err != nil {
		t.Fatal(err)
	}
	within(t, liveness, "cat whose pipe is closed", func() {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// stdinBig: no size of input is lost in silence.
func stdinBig(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, size := range []int64{1, 64 << 10, 1<<20 + 1, scaled(64 << 20)} {
		data := random(int(size))
		sum := sha256.Sum256(data)
		res := exited(t, sb, 0, berm.Command{Args: []string{"sha256sum"}, Stdin: bytes.NewReader(data)})
		if got, _, _ := strings.Cut(string(res.Stdout), " "); got != hex.EncodeToString(sum[:]) {
			t.Errorf("%d bytes of input arrived changed: %q", size, res.Stdout)
		}
	}
}

// stdinUnread: a command that does not want its input ends as if there was none.
func stdinUnread(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	in := endless(t)
	within(t, liveness, "a command with an input that never ends", func() {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"echo", "hi"}, Stdin: in})
		if err != nil || exitCode(res) != "0" || string(res.Stdout) != "hi\n" {
			t.Errorf("echo: %v, %v", res, err)
		}
	})
}

// zeros is an input without an end.
type zeros struct{}

// Read fills p.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// stdinHalfRead: a command that closes its input early is no failure.
func stdinHalfRead(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, 5*time.Second, "a command that wants ten bytes of an endless input", func() {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"head", "-c", "10"}, Stdin: zeros{}})
		if err != nil || exitCode(res) != "0" || len(res.Stdout) != 10 {
			t.Errorf("head: %v, %v", res, err)
		}
	})
}

// stdinEndlessTimeout: an open input does not keep the timeout from firing.
func stdinEndlessTimeout(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	in := endless(t)
	within(t, liveness, "a timeout with an input that never ends", func() {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"sleep", "1000"}, Stdin: in, Timeout: 100 * time.Millisecond})
		if err != nil || res.Reason != berm.TimedOut {
			t.Errorf("sleep: %v, %v", res, err)
		}
	})
}

// errBroken is a caller's own error.
var errBroken = errors.New("the caller's reader broke")

// stdinFailingReader: an input that breaks in the middle never looks like one
// that ended: the command must not succeed on half of it.
func stdinFailingReader(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	in := io.MultiReader(strings.NewReader("half"), brokenReader{})
	within(t, 10*time.Second, "a command whose input breaks", func() {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"cat"}, Stdin: in, Timeout: 5 * time.Second})
		if err == nil {
			t.Errorf("no error; the result is %v", res)
		} else if !errors.Is(err, errBroken) {
			t.Errorf("error %v, want the reader's", err)
		}
	})
}

type brokenReader struct{}

// Read fails.
func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }
