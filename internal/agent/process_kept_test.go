package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// kept is a request for a command that outlives its stream.
func kept(script string, keep uint32) *agentv1.StartRequest {
	req := shell(script)
	req.KillOnClose, req.KeepBytes = false, keep
	return req
}

// begin starts a command and leaves its stream; the id is the command's.
func (in *inside) begin(t *testing.T, req *agentv1.StartRequest) (id uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := in.process.Start(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	res, err := stream.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return res.GetEvent().GetStart().GetId()
}

func byID(id uint64) *agentv1.ProcessSelector {
	return &agentv1.ProcessSelector{Selector: &agentv1.ProcessSelector_Id{Id: id}}
}

// followed is what a Connect gave.
type followed struct {
	outcome
	pty []byte
	// gaps are the bytes that were no longer there.
	gaps uint64
	next uint64
}

// follow connects and reads until stop says so, or the end.
func (in *inside) follow(ctx context.Context, id uint64, from *agentv1.Offsets, stop func(*followed) bool) (*followed, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := in.process.Connect(ctx, &agentv1.ConnectRequest{Process: byID(id), From: from})
	if err != nil {
		return nil, err
	}
	out := &followed{next: from.GetStdout() + from.GetPty()}
	for {
		res, err := stream.Receive()
		if errors.Is(err, io.EOF) && out.end != nil {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		switch event := res.GetEvent().GetEvent().(type) {
		case *agentv1.ProcessEvent_Data:
			data := append(event.Data.GetStdout(), event.Data.GetPty()...)
			if from != nil && event.Data.GetOffset() < out.next {
				return out, fmt.Errorf("data at %d, want %d or later", event.Data.GetOffset(), out.next)
			}
			out.gaps += event.Data.GetOffset() - out.next
			out.next = event.Data.GetOffset() + uint64(len(data))
			out.stdout, out.pty = append(out.stdout, event.Data.GetStdout()...), append(out.pty, event.Data.GetPty()...)
		case *agentv1.ProcessEvent_End:
			out.end = event.End
		}
		if stop != nil && stop(out) {
			return out, nil
		}
	}
}

// TestReattachIsExactlyOnce: streams that come and go in the middle of a flood
// have every byte once between them, and the end when the command is long over.
func TestReattachIsExactlyOnce(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	id := in.begin(t, kept("for i in $(seq 20000); do echo line-$i; done", 1<<20))
	var all []byte
	for stops := 1; ; stops++ {
		out, err := in.follow(t.Context(), id, &agentv1.Offsets{Stdout: uint64(len(all))}, func(f *followed) bool {
			return f.end == nil && len(f.stdout) > 5000*(1+stops%3)
		})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, out.stdout...)
		if out.gaps != 0 {
			t.Fatalf("%d bytes are missing", out.gaps)
		}
		if out.end != nil {
			if out.end.GetTotal().GetStdout() != uint64(len(all)) || out.end.GetExitCode() != 0 {
				t.Errorf("end %v", out.end)
			}
			break
		}
	}
	lines := strings.Split(strings.TrimSuffix(string(all), "\n"), "\n")
	if len(lines) != 20000 || lines[0] != "line-1" || lines[19999] != "line-20000" {
		t.Errorf("%d lines, the first %q", len(lines), lines[0])
	}
	// From an offset of a command that is over.
	tail := uint64(len(all) - 11)
	out, err := in.follow(t.Context(), id, &agentv1.Offsets{Stdout: tail}, nil)
	if err != nil || string(out.stdout) != "line-20000\n" || out.end == nil {
		t.Errorf("the tail: %q, %v", out.stdout, err)
	}
}

// TestKeptOutputIsBounded: a follower that comes late is told how much is gone,
// and a command whose output is not kept gives a late one nothing old.
func TestKeptOutputIsBounded(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	const size = 3 << 20
	id := in.begin(t, kept(fmt.Sprintf("head -c %d /dev/zero", size), 64<<10))
	ended := func() *followed {
		out, err := in.follow(t.Context(), id, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}()
	if total := ended.end.GetTotal().GetStdout(); total != size {
		t.Errorf("%d bytes were counted", total)
	}
	out, err := in.follow(t.Context(), id, &agentv1.Offsets{}, nil)
	if err != nil || out.gaps+uint64(len(out.stdout)) != size || len(out.stdout) < 64<<10 || len(out.stdout) > 128<<10 {
		t.Errorf("%d bytes are there, %d gone, %v", len(out.stdout), out.gaps, err)
	}
	id = in.begin(t, kept("echo old", 0))
	out, err = in.follow(t.Context(), id, &agentv1.Offsets{}, nil)
	if err != nil || len(out.stdout) != 0 && string(out.stdout) != "old\n" || out.end.GetTotal() != nil {
		t.Errorf("nothing was to be kept: %q, %v, %v", out.stdout, out.end, err)
	}
	if _, err := in.follow(t.Context(), id+1000, nil, nil); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("an unknown id: %v", err)
	}
}

func terminal(script string, columns, rows uint32) *agentv1.StartRequest {
	req := kept(script, 64<<10)
	req.Pty = &agentv1.PTY{Size: &agentv1.PTY_Size{Cols: columns, Rows: rows}}
	return req
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	id := in.begin(t, terminal(`test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM
while read -r line; do case $line in size) stty size ;; end) break ;; *) echo got $line ;; esac; done; tty; exit 4`, 100, 30))
	seen := func(want string) func(*followed) bool {
		return func(f *followed) bool { return strings.Contains(string(f.pty), want) }
	}
	if out, err := in.follow(t.Context(), id, &agentv1.Offsets{}, seen("xterm-256color")); err != nil || !strings.HasPrefix(string(out.pty), "30 100\r\n") {
		t.Fatalf("%q, %v", out.pty, err)
	}
	size := &agentv1.PTY{Size: &agentv1.PTY_Size{Cols: 120, Rows: 40}}
	if _, err := in.process.Update(t.Context(), &agentv1.UpdateRequest{Process: byID(id), Pty: size}); err != nil {
		t.Fatal(err)
	}
	type keys = agentv1.ProcessInput_Pty
	input := func(in2 *agentv1.ProcessInput) error {
		_, err := in.process.SendInput(t.Context(), &agentv1.SendInputRequest{Process: byID(id), Input: in2})
		return err
	}
	if err := input(&agentv1.ProcessInput{Input: &keys{Pty: []byte("size\n")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.follow(t.Context(), id, &agentv1.Offsets{}, seen("40 120")); err != nil {
		t.Fatal(err)
	}
	if err := input(&agentv1.ProcessInput{Input: &agentv1.ProcessInput_Stdin{Stdin: []byte("x")}}); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("standard input for a terminal: %v", err)
	}
	if err := input(&agentv1.ProcessInput{Input: &keys{Pty: []byte("keys\nend\n")}}); err != nil {
		t.Fatal(err)
	}
	out, err := in.follow(t.Context(), id, &agentv1.Offsets{}, nil)
	if err != nil || out.end.GetExitCode() != 4 || !bytes.Contains(out.pty, []byte("/dev/pts/")) {
		t.Errorf("%q, %v, %v", out.pty, out.end, err)
	}
	if !bytes.Contains(out.pty, []byte("got keys\r\n")) {
		t.Errorf("%q", out.pty)
	}
	if _, err := in.process.Update(t.Context(), &agentv1.UpdateRequest{Process: byID(id), Pty: size}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another size after the end: %v", err)
	}
}

// TestTerminalFaults: sizes that are none, keys for a pipe, the end of what
// cannot end.
func TestTerminalFaults(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	for _, size := range [][2]uint32{{0, 10}, {10, 0}, {1 << 16, 10}, {10, 1 << 31}} {
		if _, err := in.run(t.Context(), terminal("true", size[0], size[1])); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("a terminal of %d: %v", size, err)
		}
	}
	id := in.begin(t, kept("sleep 1000", 0))
	_, err := in.process.SendInput(t.Context(), &agentv1.SendInputRequest{Process: byID(id), Input: &agentv1.ProcessInput{Input: &agentv1.ProcessInput_Pty{Pty: []byte("x")}}})
	if connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("keys for a pipe: %v", err)
	}
	size := &agentv1.PTY{Size: &agentv1.PTY_Size{Cols: 1, Rows: 2}}
	if _, err := in.process.Update(t.Context(), &agentv1.UpdateRequest{Process: byID(id), Pty: size}); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("a size for a pipe: %v", err)
	}
	id = in.begin(t, terminal("exec sleep 1000", 80, 24))
	if _, err := in.process.CloseStdin(t.Context(), &agentv1.CloseStdinRequest{Process: byID(id)}); connect.CodeOf(err) != connect.CodeUnknown {
		t.Errorf("the end of a terminal's input: %v", err)
	}
	// The interrupt character reaches the programs on it.
	if _, err := in.process.SendInput(t.Context(), &agentv1.SendInputRequest{Process: byID(id), Input: &agentv1.ProcessInput{Input: &agentv1.ProcessInput_Pty{Pty: []byte{3}}}}); err != nil {
		t.Fatal(err)
	}
	out, err := in.follow(t.Context(), id, &agentv1.Offsets{}, nil)
	if err != nil || out.end.GetSignal() != 2 {
		t.Errorf("after the interrupt character: %q %v, %v", out.pty, out.end, err)
	}
}
