package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

func backgroundGroup() group {
	return group{name: "background", behaviours: []behaviour{
		{"outlives-its-caller", backgroundOutlives},
		{"listed", backgroundListed},
		{"replayed", backgroundReplayed},
		{"reconnected", backgroundReconnected},
		{"input", backgroundInput},
		{"timeout", backgroundTimeout},
		{"faults", backgroundFaults},
		{"terminal", backgroundTerminal},
		{"terminal-exec", backgroundTerminalExec},
	}}
}

// begin starts a command in the background; the context that started it is over.
func begin(t *testing.T, sb *berm.Sandbox, c berm.Command) *berm.Process {
	t.Helper()
	ctx, cancel := context.WithCancel(bounded(t))
	p, err := sb.Start(ctx, c)
	cancel()
	if err != nil {
		t.Fatalf("start %q: %v", c.Args, err)
	}
	return p
}

// backgroundOutlives: a command in the background goes on without anybody, and
// Kill ends its whole tree.
func backgroundOutlives(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	p := begin(t, sb, shell("(setsid sh -c 'sleep 1000') & echo up; sleep 1000"))
	if p.PID() <= 0 {
		t.Errorf("pid %d", p.PID())
	}
	followed, stop := context.WithCancel(bounded(t))
	var out bytes.Buffer
	_, err := p.Follow(followed, &berm.Offsets{}, writerFunc(func(data []byte) {
		stop() // the follower goes, the command stays
		out.Write(data)
	}), nil)
	wantKind(t, err, errdefs.Cancelled)
	if out.String() != "up\n" {
		t.Errorf("output %q", out.String())
	}
	exited(t, sb, 0, shell(fmt.Sprintf("kill -0 %d", p.PID())))
	if err := p.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	res, err := p.Wait(bounded(t))
	if err != nil || res.Reason != berm.Signaled || res.Signal != syscall.SIGKILL || res.ExitCode != nil {
		t.Errorf("after Kill: %v, %v", res, err)
	}
	eventually(t, liveness, "the daemon's end", func() bool {
		return !strings.Contains(string(exited(t, sb, 0, shell("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true")).Stdout), "sleep 1000")
	})
	// Its end is known to those who come late.
	if res, err = p.Wait(bounded(t)); err != nil || res.Signal != syscall.SIGKILL {
		t.Errorf("once more: %v, %v", res, err)
	}
}

// backgroundListed: the list has what runs, by its tag and arguments.
func backgroundListed(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	tag := unique()
	c := berm.Command{Args: []string{"sleep", "1000"}, Tag: tag}
	p := begin(t, sb, c)
	find := func() *berm.Process {
		list, err := sb.Processes(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range list {
			if other.Tag() == tag {
				return other
			}
		}
		return nil
	}
	found := find()
	if found == nil || found.PID() != p.PID() || strings.Join(found.Args(), " ") != "sleep 1000" {
		t.Fatalf("listed %+v", found)
	}
	if err := found.Signal(bounded(t), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res, err := found.Wait(bounded(t)); err != nil || res.Signal != syscall.SIGTERM {
		t.Errorf("end %v, %v", res, err)
	}
	if find() != nil {
		t.Error("it is listed after its end")
	}
	wantKind(t, p.Signal(bounded(t), syscall.SIGTERM), errdefs.NotFound)
}

// backgroundReplayed: those who come late get what was kept, those who come too
// late are told what is gone.
func backgroundReplayed(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	p := begin(t, sb, shell("for i in $(seq 3000); do echo line $i; done; echo err >&2; exit 7"))
	if res, err := p.Wait(bounded(t)); err != nil || res.ExitCode == nil || *res.ExitCode != 7 {
		t.Fatalf("end %v, %v", res, err)
	}
	var all, errs, rest bytes.Buffer
	at := &berm.Offsets{}
	res, err := p.Follow(bounded(t), at, &all, &errs)
	if err != nil {
		t.Fatal(err)
	}
	checkExit(t, res, 7)
	if all.Len() < 20000 || !strings.HasSuffix(all.String(), "line 3000\n") || errs.String() != "err\n" || at.Missing != 0 || at.Stdout != uint64(all.Len()) {
		t.Errorf("%d bytes, %q, offsets %+v", all.Len(), errs.String(), at)
	}
	if _, err := p.Follow(bounded(t), &berm.Offsets{Stdout: at.Stdout - 10, Stderr: at.Stderr}, &rest, &rest); err != nil || rest.String() != "line 3000\n" {
		t.Errorf("the rest is %q, %v", rest.String(), err)
	}
	big := shell("head -c 1000000 /dev/zero")
	big.MaxOutput = 10000
	p, all = begin(t, sb, big), bytes.Buffer{}
	if _, err := p.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	at = &berm.Offsets{}
	if _, err := p.Follow(bounded(t), at, &all, nil); err != nil {
		t.Fatal(err)
	}
	if all.Len() < 10000 || all.Len() > 100000 || at.Missing+uint64(all.Len()) != 1000000 || at.Stdout != 1000000 {
		t.Errorf("%d bytes were kept, offsets %+v", all.Len(), at)
	}
}

// backgroundReconnected: a connection that breaks in the middle costs a follower
// nothing.
func backgroundReconnected(t *testing.T, s *suite) {
	var cuts cutter
	ctx := bounded(t)
	p, err := berm.Open(ctx, s.changed(t, func(m driver.Machine) driver.Machine {
		return cutMachine{Machine: m, cuts: &cuts}
	}), s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	sb := create(t, p, berm.CreateOptions{})
	proc := begin(t, sb, shell("for i in $(seq 2000); do echo line $i; done; sleep 0.3; for i in $(seq 2000); do echo more $i; done"))
	var out bytes.Buffer
	at := &berm.Offsets{}
	res, err := proc.Follow(ctx, at, &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkExit(t, res, 0)
	var want strings.Builder
	for _, word := range []string{"line", "more"} {
		for i := range 2000 {
			fmt.Fprintf(&want, "%s %d\n", word, i+1)
		}
	}
	if out.String() != want.String() || at.Missing != 0 {
		t.Errorf("%d bytes, want %d; offsets %+v", out.Len(), want.Len(), at)
	}
	if cuts.count() == 0 {
		t.Error("no connection was cut")
	}
}

// cutter counts connections that it cut.
type cutter struct {
	mu  sync.Mutex
	cut int
}

func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

type cutMachine struct {
	driver.Machine
	cuts *cutter
}

// Unwrap implements driver.Unwrapper.
func (m cutMachine) Unwrap() driver.Machine { return m.Machine }

// Link gives a link whose first streams of events break.
func (m cutMachine) Link(ctx context.Context) (link.Link, error) {
	l, err := m.Machine.Link(ctx)
	if err != nil {
		return nil, err
	}
	return cutLink{Link: l, cuts: m.cuts}, nil
}

type cutLink struct {
	link.Link
	cuts *cutter
}

// RoundTrip cuts the body of every Connect until three were cut.
func (l cutLink) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := l.Link.RoundTrip(req)
	if err == nil && strings.HasSuffix(req.URL.Path, "/Connect") && l.cuts.count() < 3 {
		res.Body = &cutBody{ReadCloser: res.Body, left: 5000, cuts: l.cuts}
	}
	return res, err
}

type cutBody struct {
	io.ReadCloser
	left int
	cuts *cutter
}

// Read breaks after a while.
func (b *cutBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.cuts.mu.Lock()
		b.cuts.cut++
		b.cuts.mu.Unlock()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// backgroundInput: input comes in pieces from whoever has it, and ends once.
func backgroundInput(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	p := begin(t, sb, berm.Command{Args: []string{"cat"}, StdinOpen: true})
	if err := p.Write(bounded(t), []byte("one ")); err != nil {
		t.Fatal(err)
	}
	if err := p.Input(bounded(t), strings.NewReader("two")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	res, err := p.Follow(bounded(t), &berm.Offsets{}, &out, nil)
	if err != nil || !res.Success() || out.String() != "one two" {
		t.Errorf("%q, %v, %v", out.String(), res, err)
	}
	// Without it the input is empty.
	p = begin(t, sb, berm.Command{Args: []string{"cat"}})
	within(t, liveness, "an empty input", func() { res, err = p.Wait(bounded(t)) })
	if err != nil || !res.Success() {
		t.Errorf("an empty input: %v, %v", res, err)
	}
}

// backgroundTimeout: the timeout is the command's, whoever watches.
func backgroundTimeout(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	c := shell("echo up; sleep 1000")
	c.Timeout = 200 * time.Millisecond
	p := begin(t, sb, c)
	var res *berm.Result
	var err error
	var out bytes.Buffer
	within(t, 10*time.Second, "the timeout", func() { res, err = p.Follow(bounded(t), &berm.Offsets{}, &out, nil) })
	if err != nil || res.Reason != berm.TimedOut || out.String() != "up\n" {
		t.Errorf("%v, %q, %v", res, out.String(), err)
	}
}

// backgroundFaults: what cannot be started, and what is asked wrongly.
func backgroundFaults(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	_, err := sb.Start(bounded(t), berm.Command{Args: []string{"no-such-program"}})
	wantKind(t, err, errdefs.NotStarted)
	for name, c := range map[string]berm.Command{
		"a writer":        {Args: []string{"true"}, Stdout: io.Discard},
		"a reader":        {Args: []string{"true"}, Stdin: strings.NewReader("")},
		"no program":      {},
		"a flat terminal": {Args: []string{"true"}, TTY: &berm.Size{Columns: 80}},
	} {
		if _, err := sb.Start(bounded(t), c); errdefs.KindOf(err) != errdefs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = sb.Exec(bounded(t), berm.Command{Args: []string{"true"}, StdinOpen: true})
	wantKind(t, err, errdefs.Invalid)
	p := begin(t, sb, berm.Command{Args: []string{"sleep", "1000"}})
	wantKind(t, p.Resize(bounded(t), berm.Size{Columns: 80, Rows: 24}), errdefs.Invalid)
	broken := fmt.Errorf("this writer is broken")
	loud := begin(t, sb, shell("echo loud; sleep 1000"))
	if _, err := loud.Follow(bounded(t), &berm.Offsets{}, brokenWriter{broken}, nil); err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("a broken writer: %v", err)
	}
	if err := loud.Kill(bounded(t)); err != nil {
		t.Errorf("the command of a broken writer: %v", err)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// backgroundTerminal: a program on a terminal sees it, its size and its changes.
func backgroundTerminal(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	c := shell(`stty size; while read -r line; do case $line in size) stty size ;; end) break ;; esac; done; test -t 1; exit $?`)
	c.TTY = &berm.Size{Columns: 100, Rows: 30}
	p := begin(t, sb, c)
	if err := p.Resize(bounded(t), berm.Size{Columns: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(bounded(t), []byte("size\nend\n")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	res, err := p.Follow(bounded(t), &berm.Offsets{}, &out, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkExit(t, res, 0)
	if !strings.Contains(out.String(), "40 120\r\n") {
		t.Errorf("output %q", out.String())
	}
}

// backgroundTerminalExec: Exec and its input work on a terminal too, whose end
// of input is a character.
func backgroundTerminalExec(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	c := shell(`test -t 0 && echo "$TERM"; cat; echo over`)
	c.TTY, c.Stdin = &berm.Size{Columns: 80, Rows: 24}, strings.NewReader("typed\n")
	res := exited(t, sb, 0, c)
	if out := string(res.Stdout); !strings.HasPrefix(out, "xterm-256color\r\n") && !strings.Contains(out, "\r\nxterm-256color\r\n") || !strings.Contains(out, "typed\r\n") || !strings.HasSuffix(out, "over\r\n") {
		t.Errorf("output %q", out)
	}
}
