package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

func TestStreamsApartAndStatus(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	out := in.mustRun(t, shell("echo out; echo err >&2; exit 3"))
	if string(out.stdout) != "out\n" || string(out.stderr) != "err\n" {
		t.Errorf("stdout %q, stderr %q", out.stdout, out.stderr)
	}
	if !out.end.GetExited() || out.end.GetExitCode() != 3 || out.end.GetReason() != agentv1.EndReason_END_REASON_EXITED {
		t.Errorf("end %v", out.end)
	}
	if out.end.GetError() != "exit status 3" || out.end.GetDurationUs() == 0 || out.pid == 0 {
		t.Errorf("end %v, pid %d", out.end, out.pid)
	}
	if again := in.mustRun(t, shell("exit 0")); again.end.GetExitCode() != 0 || again.end.Error != nil {
		t.Errorf("the command after it: %v", again.end)
	}
}

func TestSignalledEnd(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	end := in.mustRun(t, shell("kill -TERM $$")).end
	if end.GetExited() || end.GetExitCode() != -1 || end.GetSignal() != 15 ||
		end.GetReason() != agentv1.EndReason_END_REASON_SIGNALED || end.GetStatus() != "signal: terminated" {
		t.Errorf("end %v", end)
	}
}

func TestHeredoc(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	out := in.mustRun(t, shell("cat > f <<EOF\nline one\nline two\nEOF\ncat f"))
	if string(out.stdout) != "line one\nline two\n" {
		t.Errorf("stdout %q", out.stdout)
	}
}

func TestManyAtOnceDoNotMix(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			want := strings.Repeat(fmt.Sprintf("token-%d\n", i), 200)
			out, err := in.run(context.Background(), shell(fmt.Sprintf("for n in $(seq 200); do echo token-%d; done", i)))
			if err != nil || string(out.stdout) != want {
				t.Errorf("command %d: %d bytes, want %d, %v", i, len(out.stdout), len(want), err)
			}
		})
	}
	all.Wait()
}

func TestBulkOutputIsExact(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	const size = 64 << 20
	script := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' 'o' & head -c %d /dev/zero | tr '\\0' 'e' >&2; wait", size, size)
	out := in.mustRun(t, shell(script))
	for name, stream := range map[string]struct {
		data []byte
		char byte
	}{"stdout": {out.stdout, 'o'}, "stderr": {out.stderr, 'e'}} {
		if len(stream.data) != size || bytes.Count(stream.data, []byte{stream.char}) != size {
			t.Errorf("%s has %d bytes, want %d of %q", name, len(stream.data), size, stream.char)
		}
	}
	if out.end.GetOutputIncomplete() {
		t.Error("the output is said to be incomplete")
	}
}

func TestBulkInputIsExact(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req := shell("sha256sum")
	req.Stdin = nil
	stream, err := in.process.Start(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	pids := make(chan uint32, 1)
	fed := make(chan []byte, 1)
	go func() {
		sum, err := in.feed(ctx, <-pids, 64<<20)
		if err != nil {
			t.Error(err)
		}
		fed <- sum
	}()
	out, err := collect(stream.Receive, func(pid uint32) { pids <- pid })
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x  -\n", <-fed); string(out.stdout) != want {
		t.Errorf("sum %q, want %q", out.stdout, want)
	}
}

// feed streams size bytes to a command, closes its input and gives their sum.
func (in *inside) feed(ctx context.Context, pid uint32, size int) ([]byte, error) {
	stream, err := in.process.StreamInput(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&agentv1.StreamInputRequest{Event: &agentv1.StreamInputRequest_Start{
		Start: &agentv1.StreamInputRequest_StartEvent{Process: byPid(pid)},
	}}); err != nil {
		return nil, err
	}
	sum := sha256.New()
	for sent := 0; sent < size; {
		block := bytes.Repeat([]byte{byte(sent >> 16), 1, 2, byte(sent >> 10)}, 50<<10/4+sent%3)
		block = block[:min(len(block), size-sent)]
		sum.Write(block)
		sent += len(block)
		input := &agentv1.ProcessInput{Input: &agentv1.ProcessInput_Stdin{Stdin: block}}
		if err := stream.Send(&agentv1.StreamInputRequest{Event: &agentv1.StreamInputRequest_Data{
			Data: &agentv1.StreamInputRequest_DataEvent{Input: input},
		}}); err != nil {
			return nil, err
		}
	}
	if _, err := stream.CloseAndReceive(); err != nil {
		return nil, err
	}
	_, err = in.process.CloseStdin(ctx, &agentv1.CloseStdinRequest{Process: byPid(pid)})
	return sum.Sum(nil), err
}

func TestInputEndWithoutData(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req := shell("cat; echo end")
	req.Stdin = nil
	stream, err := in.process.Start(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	out, err := collect(stream.Receive, func(pid uint32) {
		for range 2 {
			if _, err := in.process.CloseStdin(ctx, &agentv1.CloseStdinRequest{Process: byPid(pid)}); err != nil {
				t.Error(err)
			}
		}
		_, err := in.process.SendInput(ctx, &agentv1.SendInputRequest{
			Process: byPid(pid), Input: &agentv1.ProcessInput{Input: &agentv1.ProcessInput_Stdin{Stdin: []byte("x")}},
		})
		if code := connect.CodeOf(err); code != connect.CodeInternal && code != connect.CodeNotFound {
			t.Errorf("input after its end: %v", err)
		}
	})
	if err != nil || string(out.stdout) != "end\n" {
		t.Errorf("stdout %q, %v", out.stdout, err)
	}
}

func TestStdinOffIsEmpty(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	if out := in.mustRun(t, shell("cat; readlink /proc/self/fd/0")); string(out.stdout) != "/dev/null\n" {
		t.Errorf("stdout %q", out.stdout)
	}
}

func TestDescriptorsAndEnvironment(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]bool{"direct": false, "marked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := bootFor(t.TempDir())
			config.Mark = mark
			in := openOwn(t, config, nil)
			req := shell("")
			req.Process = &agentv1.ProcessConfig{
				Cmd: "env", Envs: map[string]string{"GODEBUG": "inittrace=1", "LANG": "C", "EMPTY": ""},
			}
			out := in.mustRun(t, req)
			shellOf := "/bin/sh"
			if _, err := os.Stat("/bin/bash"); err == nil {
				shellOf = "/bin/bash"
			}
			want := strings.Join([]string{
				"EMPTY=", "GODEBUG=inittrace=1", "HOME=" + in.dir, "LANG=C", "LOGNAME=user", "PATH=" + testPath,
				"SHELL=" + shellOf, "TMPDIR=/tmp", "USER=user", "",
			}, "\n")
			if string(out.stdout) != want || len(out.stderr) != 0 {
				t.Errorf("environment\n%s\nwant\n%s\nstderr %q", out.stdout, want, out.stderr)
			}
			req.Process = &agentv1.ProcessConfig{Cmd: "ls", Args: []string{"/proc/self/fd"}}
			// 3 is the directory itself.
			if fds := in.mustRun(t, req); string(fds.stdout) != "0\n1\n2\n3\n" {
				t.Errorf("descriptors %q", fds.stdout)
			}
			// Arguments arrive as they are, argv[0] too.
			req.Process = &agentv1.ProcessConfig{Cmd: "cat", Args: []string{"/proc/self/cmdline"}}
			if args := in.mustRun(t, req); string(args.stdout) != "cat\x00/proc/self/cmdline\x00" {
				t.Errorf("arguments %q", args.stdout)
			}
		})
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	nul := "a\x00b"
	for name, config := range map[string]*agentv1.ProcessConfig{
		"no command":      {},
		"NUL in command":  {Cmd: nul},
		"NUL in argument": {Cmd: "true", Args: []string{nul}},
		"NUL in value":    {Cmd: "true", Envs: map[string]string{"A": nul}},
		"NUL in cwd":      {Cmd: "true", Cwd: &nul},
		"key with ;":      {Cmd: "true", Envs: map[string]string{"A;touch x": "1"}},
		"key with =":      {Cmd: "true", Envs: map[string]string{"A=B": "1"}},
		"empty key":       {Cmd: "true", Envs: map[string]string{"": "1"}},
		"digit first":     {Cmd: "true", Envs: map[string]string{"1A": "1"}},
	} {
		_, err := in.run(t.Context(), &agentv1.StartRequest{Process: config, TypedFailures: true})
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]bool{"direct": false, "marked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := bootFor(t.TempDir())
			config.Mark = mark
			in := open(t, config)
			write(t, filepath.Join(in.dir, "plain"), "not a program", 0o644)
			write(t, filepath.Join(in.dir, "script"), "#!/nonexistent/interpreter\n", 0o755)
			write(t, filepath.Join(in.dir, "garbage"), "\x7fELFgarbage", 0o755)
			missing, file := "/nonexistent/dir", filepath.Join(in.dir, "plain")
			cases := map[string]struct {
				config *agentv1.ProcessConfig
				want   agentv1.EndReason
			}{
				"no such program":      {&agentv1.ProcessConfig{Cmd: "no-such-program"}, agentv1.EndReason_END_REASON_NOT_FOUND},
				"no such path":         {&agentv1.ProcessConfig{Cmd: "/no/such"}, agentv1.EndReason_END_REASON_NOT_FOUND},
				"not executable":       {&agentv1.ProcessConfig{Cmd: "./plain"}, agentv1.EndReason_END_REASON_NOT_EXECUTABLE},
				"directory":            {&agentv1.ProcessConfig{Cmd: "/tmp"}, agentv1.EndReason_END_REASON_NOT_EXECUTABLE},
				"no interpreter":       {&agentv1.ProcessConfig{Cmd: "./script"}, agentv1.EndReason_END_REASON_NOT_EXECUTABLE},
				"bad format":           {&agentv1.ProcessConfig{Cmd: "./garbage"}, agentv1.EndReason_END_REASON_NOT_EXECUTABLE},
				"cwd missing":          {&agentv1.ProcessConfig{Cmd: "true", Cwd: &missing}, agentv1.EndReason_END_REASON_BAD_DIRECTORY},
				"cwd missing, cmd too": {&agentv1.ProcessConfig{Cmd: "nope", Cwd: &missing}, agentv1.EndReason_END_REASON_BAD_DIRECTORY},
				"cwd is a file":        {&agentv1.ProcessConfig{Cmd: "true", Cwd: &file}, agentv1.EndReason_END_REASON_BAD_DIRECTORY},
				"request's PATH":       {&agentv1.ProcessConfig{Cmd: "true", Envs: map[string]string{"PATH": "/nonexistent"}}, agentv1.EndReason_END_REASON_NOT_FOUND},
			}
			for name, c := range cases {
				out, err := in.run(t.Context(), &agentv1.StartRequest{Process: c.config, TypedFailures: true})
				if err != nil || out.end.GetReason() != c.want || out.end.GetExited() || out.pid != 0 {
					t.Errorf("%s: %v %v", name, out, err)
				}
			}
			_, err := in.run(t.Context(), &agentv1.StartRequest{Process: &agentv1.ProcessConfig{Cmd: "true", Cwd: &missing}})
			if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "cwd '/nonexistent/dir' does not exist") {
				t.Errorf("untyped: %v", err)
			}
		})
	}
}

func write(tb testing.TB, path, text string, mode os.FileMode) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		tb.Fatal(err)
	}
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := bootFor(home)
	config.Dir = "/"
	in := open(t, config)
	for cwd, want := range map[string]string{"": "/", "~": home, "~/sub": home + "/sub", "sub": home + "/sub", "/usr": "/usr"} {
		req := shell("pwd -P")
		req.Process.Cwd = &cwd
		if out := in.mustRun(t, req); string(out.stdout) != want+"\n" {
			t.Errorf("cwd %q: %q", cwd, out.stdout)
		}
	}
}

func TestLingeringChild(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]bool{"session": false, "marked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := bootFor(t.TempDir())
			config.Mark = mark
			in := open(t, config)
			began := time.Now()
			out := in.mustRun(t, shell("echo before; (sleep 0.3; echo late; echo went on > after; sleep 30) & echo done; exit 4"))
			if time.Since(began) > 2*time.Second {
				t.Errorf("the leader's end took %v", time.Since(began))
			}
			if string(out.stdout) != "before\ndone\n" || !out.end.GetOutputIncomplete() || out.end.GetExitCode() != 4 {
				t.Errorf("stdout %q, end %v", out.stdout, out.end)
			}
			if len(out.end.GetLingering()) == 0 {
				t.Fatalf("end %v", out.end)
			}
			// It neither blocks nor dies of its output.
			eventually(t, func() bool { _, err := os.Stat(filepath.Join(in.dir, "after")); return err == nil })
			kill := &agentv1.SendSignalRequest{Process: byPid(out.pid), Signal: agentv1.Signal_SIGNAL_SIGKILL}
			if _, err := in.process.SendSignal(t.Context(), kill); err != nil {
				t.Fatal(err)
			}
			for _, pid := range out.end.GetLingering() {
				eventually(t, func() bool { return !alive(int(pid)) })
			}
			eventually(t, func() bool {
				_, err := in.process.SendSignal(t.Context(), kill)
				return connect.CodeOf(err) == connect.CodeNotFound
			})
		})
	}
}

// alive is false for what is gone or only waits to be collected.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := data[bytes.LastIndexByte(data, ')')+2:]
	return rest[0] != 'Z' && rest[0] != 'X'
}

// eventually looks until it is so; the bound is a liveness bound.
func eventually(tb testing.TB, so func() bool) {
	tb.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !so() {
		if time.Now().After(deadline) {
			tb.Fatal("it did not come about")
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestConnectListSignalTag(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	tag := "web"
	// envd's way: the stream's end ends nothing.
	ctx, leave := context.WithCancel(t.Context())
	stream, err := in.process.Start(ctx, &agentv1.StartRequest{
		Process: &agentv1.ProcessConfig{Cmd: "sh", Args: []string{"-c", "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done"}},
		Tag:     &tag,
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Receive()
	if err != nil {
		t.Fatal(err)
	}
	pid := first.GetEvent().GetStart().GetPid()
	if up, err := stream.Receive(); err != nil || string(up.GetEvent().GetData().GetStdout()) != "up\n" {
		t.Fatalf("%v %v", up, err)
	}
	leave()
	byTag := &agentv1.ProcessSelector{Selector: &agentv1.ProcessSelector_Tag{Tag: tag}}
	follow, err := in.process.Connect(t.Context(), &agentv1.ConnectRequest{Process: byTag})
	if err != nil {
		t.Fatal(err)
	}
	if start, err := follow.Receive(); err != nil || start.GetEvent().GetStart().GetPid() != pid {
		t.Fatalf("%v %v", start, err)
	}
	list, err := in.process.List(t.Context(), &agentv1.ListRequest{})
	if err != nil || len(list.GetProcesses()) != 1 || list.GetProcesses()[0].GetPid() != pid || list.GetProcesses()[0].GetTag() != tag {
		t.Errorf("%v %v", list, err)
	}
	if _, err := in.process.SendSignal(t.Context(), &agentv1.SendSignalRequest{Process: byPid(pid), SignalNumber: 15}); err != nil {
		t.Fatal(err)
	}
	got, end := readConnect(t, follow.Receive)
	if string(got) != "got\n" || end.GetExitCode() != 5 {
		t.Errorf("%q %v", got, end)
	}
	// A late one has the end alone.
	late, err := in.process.Connect(t.Context(), &agentv1.ConnectRequest{Process: byTag})
	if err != nil {
		t.Fatal(err)
	}
	if got, end := readConnect(t, late.Receive); len(got) != 0 || end.GetExitCode() != 5 {
		t.Errorf("%q %v", got, end)
	}
	for _, number := range []int32{-1, 65} {
		_, err := in.process.SendSignal(t.Context(), &agentv1.SendSignalRequest{Process: byPid(pid), SignalNumber: number})
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("signal %d: %v", number, err)
		}
	}
}

func readConnect(t *testing.T, receive func() (*agentv1.ConnectResponse, error)) ([]byte, *agentv1.ProcessEvent_EndEvent) {
	t.Helper()
	var data []byte
	var end *agentv1.ProcessEvent_EndEvent
	for {
		res, err := receive()
		if errors.Is(err, io.EOF) {
			return data, end
		}
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, res.GetEvent().GetData().GetStdout()...)
		if e := res.GetEvent().GetEnd(); e != nil {
			end = e
		}
	}
}

func TestEnvdPathsAndJSON(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	for _, path := range []string{"/process.Process/List", "/berm.agent.v1.Process/List"} {
		res, err := in.client.Post("http://data.berm"+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 200 || string(body) != "{}" {
			t.Errorf("%s: %d %q %v", path, res.StatusCode, body, err)
		}
	}
	res, err := in.client.Post("http://data.berm/berm.agent.v1.Control/Probe", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != 404 {
		t.Errorf("control on the data plane: %d", res.StatusCode)
	}
}
