package agentclient_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// collect receives to the end.
func collect(tb testing.TB, s *agentclient.Stream) (stdout, stderr string, end agentclient.End) {
	tb.Helper()
	var out, errs bytes.Buffer
	for {
		event, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), errs.String(), end
		}
		if err != nil {
			tb.Fatal(err)
		}
		out.Write(event.Stdout)
		errs.Write(event.Stderr)
		if event.End != nil {
			end = *event.End
		}
	}
}

func start(tb testing.TB, c *agentclient.Client, req agentclient.StartRequest) (*agentclient.Stream, uint32) {
	tb.Helper()
	s, err := c.Start(tb.Context(), req)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	event, err := s.Recv()
	if err != nil || !event.Started {
		tb.Fatalf("first event %+v, %v", event, err)
	}
	return s, event.PID
}

func TestCommand(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	s, _ := start(t, c, agentclient.StartRequest{
		Args: []string{"sh", "-c", `echo "$WORD"; pwd; echo err >&2; exit 3`}, Env: map[string]string{"WORD": "hi"}, KillOnClose: true,
	})
	out, errs, end := collect(t, s)
	if out != "hi\n"+home+"\n" || errs != "err\n" || end.Reason != agentclient.EndExited || end.ExitCode != 3 {
		t.Errorf("%q %q %+v", out, errs, end)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestCommandThatDoesNotStart(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	for reason, req := range map[agentclient.Reason]agentclient.StartRequest{
		agentclient.EndNotFound:      {Args: []string{"no-such-program"}},
		agentclient.EndNotExecutable: {Args: []string{"/etc/passwd"}},
		agentclient.EndBadDirectory:  {Args: []string{"true"}, Dir: home + "/none"},
	} {
		s, err := c.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		event, err := s.Recv()
		if err != nil || event.End == nil || event.End.Reason != reason || event.End.Error == "" {
			t.Errorf("%v: %+v, %v", req, event.End, err)
		}
		_ = s.Close()
	}
	for _, req := range []agentclient.StartRequest{
		{}, {Args: []string{""}}, {Args: []string{"a", "b\x00"}}, {Args: []string{"a"}, Timeout: -1}, {Args: []string{"a\xff"}},
		{Args: []string{"a"}, Env: map[string]string{"A": "\x00"}},
	} {
		_, err := c.Start(t.Context(), req)
		wantKind(t, err, errdefs.Invalid)
	}
}

func TestInputIsExact(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	for _, size := range []int{0, 1, 100 << 10, 8 << 20} {
		s, pid := start(t, c, agentclient.StartRequest{Args: []string{"wc", "-c"}, Stdin: true, KillOnClose: true})
		if err := c.Input(t.Context(), agentclient.Ref{PID: pid}, bytes.NewReader(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
		if out, _, _ := collect(t, s); strings.TrimSpace(out) != strconv.Itoa(size) {
			t.Errorf("%d: %q", size, out)
		}
	}
}

// endless is input that never ends and never blocks.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestInputOfAnEndedCommandReturns(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	s, pid := start(t, c, agentclient.StartRequest{Args: []string{"sh", "-c", "head -c 1 >/dev/null; exit 4"}, Stdin: true, KillOnClose: true})
	done := make(chan error, 1)
	go func() { done <- c.Input(t.Context(), agentclient.Ref{PID: pid}, endless{}) }()
	if _, _, end := collect(t, s); end.ExitCode != 4 {
		t.Errorf("%+v", end)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("endless input was taken")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("input hangs")
	}
	wantKind(t, c.Input(t.Context(), agentclient.Ref{PID: 1 << 30}, strings.NewReader("x")), errdefs.NotFound)
}

func TestInputEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	_, pid := start(t, c, agentclient.StartRequest{Args: []string{"sleep", "100"}, Stdin: true, KillOnClose: true})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantKind(t, c.Input(ctx, agentclient.Ref{PID: pid}, endless{}), errdefs.Timeout)
}

func TestSignalAndList(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	s, pid := start(t, c, agentclient.StartRequest{Args: []string{"sleep", "100"}, Tag: "mine", KillOnClose: true})
	list, err := c.List(t.Context())
	if err != nil || !slices.ContainsFunc(list, func(p agentclient.Process) bool { return p.PID == pid && p.Tag == "mine" && p.Args[1] == "100" }) {
		t.Errorf("%+v, %v", list, err)
	}
	wantKind(t, c.Signal(t.Context(), agentclient.Ref{PID: pid}, 65), errdefs.Invalid)
	if err := c.Signal(t.Context(), agentclient.Ref{PID: pid}, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, _, end := collect(t, s); end.Reason != agentclient.EndSignaled || end.Signal != syscall.SIGTERM || end.ExitCode != -1 {
		t.Errorf("%+v", end)
	}
	wantKind(t, c.Signal(t.Context(), agentclient.Ref{PID: pid}, syscall.SIGTERM), errdefs.NotFound)
}

func TestTimeoutAndClose(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	s, _ := start(t, c, agentclient.StartRequest{Args: []string{"sleep", "100"}, Timeout: 50 * time.Millisecond, KillOnClose: true})
	if _, _, end := collect(t, s); end.Reason != agentclient.EndTimedOut {
		t.Errorf("%+v", end)
	}
	s, pid := start(t, c, agentclient.StartRequest{Args: []string{"sleep", "100"}, KillOnClose: true})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Recv(); err == nil {
		t.Error("an event after Close")
	}
	waitFor(t, func() bool { return errors.Is(syscall.Kill(int(pid), 0), syscall.ESRCH) })
}

func TestDeadlineOfTheStreamIsTheCallers(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	s, err := c.Start(ctx, agentclient.StartRequest{Args: []string{"sleep", "100"}, KillOnClose: true})
	for err == nil {
		_, err = s.Recv()
	}
	wantKind(t, err, errdefs.Timeout)
}

func TestProbe(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	listener, err := net.Listen("unix", "@berm-probe-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	socket := strings.TrimPrefix(listener.Addr().String(), "@")
	write(t, home+"/file", "x")
	res, err := c.Probe(t.Context(), &agentv1.ProbeRequest{
		WritePaths:      []string{home, home + "/file", home + "/none"},
		AbstractSockets: []string{socket, "berm-nobody-listens"},
		SizePaths:       []string{home, home + "/none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(res.GetWritable(), []string{home, home + "/file"}) {
		t.Errorf("writable: %v", res.GetWritable())
	}
	if !slices.Equal(res.GetConnected(), []string{socket}) {
		t.Errorf("connected: %v", res.GetConnected())
	}
	if len(res.GetSizes()) != 2 || res.GetSizes()[0] == 0 || res.GetSizes()[1] != 0 {
		t.Errorf("sizes: %v", res.GetSizes())
	}
	if len(res.GetCapEffective()) != 16 || res.GetUidMap() == "" || int(res.GetUid()) != os.Getuid() {
		t.Errorf("%v", res)
	}
	if content, err := os.ReadFile(home + "/file"); err != nil || string(content) != "x" {
		t.Errorf("the probe wrote: %q, %v", content, err)
	}
	// The test process is dumpable and of the same user: its memory is open.
	if !res.GetAgentReadable() {
		t.Error("the agent of a test can be read, and the probe did not see it")
	}
	if left := leftovers(t, home); left != nil {
		t.Errorf("left: %v", left)
	}
}

func echo(tb testing.TB, serve func(net.Conn)) int {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			})
		}
	})
	tb.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return listener.Addr().(*net.TCPAddr).Port
}

func TestDialHalfCloses(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	port := echo(t, func(conn net.Conn) {
		// It answers only when it has seen the end.
		data, _ := io.ReadAll(conn)
		_, _ = conn.Write(data)
	})
	conn, err := c.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestDialDeadlinesAndRefusals(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	hold := make(chan struct{})
	port := echo(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "early")
		<-hold
	})
	conn, err := c.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "early" {
		t.Errorf("%q, %v", got, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read past the deadline: %v", err)
	}
	close(hold)
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("after the server's end: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for _, port := range []int{0, -1, 65536} {
		_, err := c.Dial(t.Context(), port)
		wantKind(t, err, errdefs.Invalid)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	_, err = c.Dial(t.Context(), free)
	wantKind(t, err, errdefs.Unavailable)
}

// A client that goes away ends the connection inside, even when neither side
// sends anything more.
func TestDialCloseReachesTheServer(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	seen := make(chan error, 1)
	port := echo(t, func(conn net.Conn) {
		_, err := io.Copy(io.Discard, conn)
		// The server keeps its own side open: only a reset tells it more.
		for err == nil {
			_, err = conn.Write([]byte("x"))
		}
		seen <- err
	})
	conn, err := c.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
	case <-time.After(15 * time.Second):
		t.Fatal("the server's connection lives on")
	}
}
