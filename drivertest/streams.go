package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berm-dev/berm"
)

func streamsGroup() group {
	return group{name: "streams", behaviours: []behaviour{
		{"apart", streamsApart},
		{"binary", streamsBinary},
		{"split-character", streamsSplitCharacter},
		{"big", streamsBig},
		{"slow-reader", streamsSlowReader},
		{"cap", streamsCap},
		{"writer-error", streamsWriterError},
		{"as-it-comes", streamsAsItComes},
		{"silence", streamsSilence},
		{"background-child", streamsBackgroundChild},
	}}
}

func streamsApart(t *testing.T, s *suite) {
	res := exited(t, s.sandbox(t), 3, shell("echo out; echo err >&2; exit 3"))
	equal(t, "stdout", res.Stdout, []byte("out\n"))
	equal(t, "stderr", res.Stderr, []byte("err\n"))
}

// streamsBinary: output is bytes.
func streamsBinary(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	want := random(1 << 20)
	res := exited(t, sb, 0, berm.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(want)})
	equal(t, "1 MiB through cat", res.Stdout, want)
	if len(res.Stderr) != 0 {
		t.Errorf("stderr %q", clip(res.Stderr))
	}
}

// streamsSplitCharacter: a character that arrives in two pieces is not changed.
func streamsSplitCharacter(t *testing.T, s *suite) {
	res := exited(t, s.sandbox(t), 0, shell(`printf '\342\202'; sleep 0.4; printf '\254'; printf '\377'`))
	equal(t, "a split character and a bad one", res.Stdout, []byte("€\xff"))
}

// counter counts and checks that all bytes are the same.
type counter struct {
	want  byte
	count int64
	bad   int64
}

// Write never fails.
func (c *counter) Write(p []byte) (int, error) {
	c.count += int64(len(p))
	if bytes.Count(p, []byte{c.want}) != len(p) {
		c.bad++
	}
	return len(p), nil
}

// streamsBig: much output on both streams at once does not wedge anything.
func streamsBig(t *testing.T, s *suite) {
	size := scaled(64 << 20)
	command := shell(`head -c "$1" /dev/zero & head -c "$1" /dev/zero | tr '\0' x >&2; wait`, itoa(int(size)))
	stdout, stderr := &counter{want: 0}, &counter{want: 'x'}
	command.Stdout, command.Stderr = stdout, stderr
	exited(t, s.sandbox(t), 0, command)
	for name, c := range map[string]*counter{"stdout": stdout, "stderr": stderr} {
		if c.count != size || c.bad != 0 {
			t.Errorf("%s: %d bytes, want %d; %d pieces with wrong bytes", name, c.count, size, c.bad)
		}
	}
}

// gated is a writer that waits for a signal before it takes its first bytes.
type gated struct {
	open chan struct{}
	counter
}

// Write blocks until the gate is open.
func (g *gated) Write(p []byte) (int, error) {
	<-g.open
	return g.counter.Write(p)
}

// streamsSlowReader: a caller who does not read stops the command, loses
// nothing, and holds up no other command.
func streamsSlowReader(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	size := scaled(16 << 20)
	slow := &gated{open: make(chan struct{})}
	command := shell(`head -c "$1" /dev/zero; : > written`, itoa(int(size)))
	command.Stdout = slow
	type outcome struct {
		res *berm.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		res, err := sb.Exec(bounded(t), command)
		done <- outcome{res, err}
	}()
	for range 5 {
		within(t, liveness, "another command beside a blocked one", func() {
			if res, err := sb.Exec(bounded(t), shell("echo beside")); err != nil || string(res.Stdout) != "beside\n" {
				t.Errorf("beside: %v, %v", res, err)
			}
		})
	}
	if size > 8<<20 && exists(t, sb, "written") {
		t.Errorf("%d bytes were taken from the command while nobody read them", size)
	}
	close(slow.open)
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	checkExit(t, got.res, 0)
	if slow.count != size || slow.bad != 0 {
		t.Errorf("got %d bytes, want %d; %d pieces with wrong bytes", slow.count, size, slow.bad)
	}
}

// streamsCap: the cap applies to what is kept, each stream by itself, and says
// how much it dropped; it never applies to a writer.
func streamsCap(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	script := `i=0; while [ $i -lt 1000 ]; do echo 12345; i=$((i+1)); done; echo short >&2`
	command := shell(script)
	command.MaxOutput = 1000
	res := exited(t, sb, 0, command)
	if len(res.Stdout) != 1000 || res.StdoutDropped != 5000 {
		t.Errorf("kept %d and dropped %d of 6000 bytes with a cap of 1000", len(res.Stdout), res.StdoutDropped)
	}
	equal(t, "the kept part", res.Stdout, bytes.Repeat([]byte("12345\n"), 167)[:1000])
	if string(res.Stderr) != "short\n" || res.StderrDropped != 0 {
		t.Errorf("stderr %q, dropped %d", clip(res.Stderr), res.StderrDropped)
	}
	var all bytes.Buffer
	command.Stdout = &all
	res = exited(t, sb, 0, command)
	if all.Len() != 6000 || res.StdoutDropped != 0 || len(res.Stdout) != 0 {
		t.Errorf("the writer got %d of 6000 bytes, dropped %d, kept %d", all.Len(), res.StdoutDropped, len(res.Stdout))
	}
	exact := shell(`printf 1234`)
	exact.MaxOutput = 4
	if res := exited(t, sb, 0, exact); string(res.Stdout) != "1234" || res.StdoutDropped != 0 {
		t.Errorf("exactly the cap: %q, dropped %d", res.Stdout, res.StdoutDropped)
	}
}

// errFull is a caller's own error.
var errFull = errors.New("the caller's writer is full")

type failing struct{ room int }

// Write fails when there is no room left.
func (f *failing) Write(p []byte) (int, error) {
	if f.room < len(p) {
		return 0, fmt.Errorf("write: %w", errFull)
	}
	f.room -= len(p)
	return len(p), nil
}

// streamsWriterError: a writer's error is returned, and the command is not left
// hanging on it.
func streamsWriterError(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	command := shell(`head -c 1000000 /dev/zero; echo done >&2`)
	command.Stdout = &failing{room: 10}
	within(t, 10*time.Second, "a command whose output is not wanted", func() {
		res, err := sb.Exec(bounded(t), command)
		if !errors.Is(err, errFull) {
			t.Errorf("error %v, want the writer's", err)
		}
		if res == nil {
			t.Error("no result")
		}
	})
}

// arrival tells when the first bytes came.
type arrival struct{ first chan struct{} }

// Write closes first once.
func (a *arrival) Write(p []byte) (int, error) {
	select {
	case <-a.first:
	default:
		close(a.first)
	}
	return len(p), nil
}

// streamsAsItComes: output is there before the command has ended.
func streamsAsItComes(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	seen := &arrival{first: make(chan struct{})}
	release := newPipe()
	command := shell(`echo early; read -r line; exit 7`)
	command.Stdout, command.Stdin = seen, release.reader
	done := make(chan *berm.Result, 1)
	go func() {
		res, err := sb.Exec(bounded(t), command)
		if err != nil {
			t.Errorf("exec: %v", err)
		}
		done <- res
	}()
	within(t, 10*time.Second, "the first output", func() { <-seen.first })
	select {
	case res := <-done:
		t.Fatalf("the command ended before it could: %v", res)
	default:
	}
	release.write(t, "go\n")
	checkExit(t, <-done, 7)
}

// streamsSilence: a command that says nothing for longer than clients usually
// wait for a header, an answer or an idle connection is waited for.
func streamsSilence(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	silence := 100 * time.Second // more than the agent's keepalive, and than any default of net/http
	if testing.Short() {
		silence = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), silence+patience)
	defer cancel()
	command := shell(`sleep "$1"; echo late; exit 7`, fmt.Sprint(silence.Seconds()))
	command.Timeout = berm.NoTimeout
	res, err := sb.Exec(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	checkExit(t, res, 7)
	equal(t, "the late output", res.Stdout, []byte("late\n"))
}

// streamsBackgroundChild: a child that holds the output does not hold up the
// result, the leader's last words are there, and the result says that more may
// come.
func streamsBackgroundChild(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, liveness, "a command with a background child", func() {
		res, err := sb.Exec(bounded(t), shell(`sleep 1000 & i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done; echo last`))
		if err != nil {
			t.Errorf("exec: %v", err)
			return
		}
		if exitCode(res) != "0" || !bytes.HasSuffix(res.Stdout, []byte("\n499\nlast\n")) {
			t.Errorf("exit code %s, output ends in %q", exitCode(res), clip(res.Stdout[max(0, len(res.Stdout)-20):]))
		}
		if !res.OutputIncomplete {
			t.Error("the child still holds the output, but the result does not say so")
		}
	})
	res := exited(t, sb, 0, shell(`sleep 1000 >/dev/null 2>&1 </dev/null & echo last`))
	if res.OutputIncomplete {
		t.Error("nobody holds the output, but the result says that it is incomplete")
	}
}
