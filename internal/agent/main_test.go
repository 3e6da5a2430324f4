package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/goleak"

	"github.com/berm-dev/berm/internal/agent"
	agentconnect "github.com/berm-dev/berm/internal/agent/connect"
	"github.com/berm-dev/berm/internal/agent/execmode"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

// TestMain makes the test binary an agent too: it is what the tested agent
// starts for its exec and probe modes, and what tests start as one of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "exec":
			os.Exit(execmode.Main(os.Args[2:]))
		case "probe":
			os.Exit(exitStatus(agent.RunProbe(os.Stdin, os.Stdout)))
		case "connect":
			os.Exit(agentconnect.Main(context.Background(), os.Args[2:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
		case "serve":
			os.Exit(exitStatus(agent.Run(context.Background(), 3)))
		}
	}
	remove, err := makeOwnProgram()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Benchmarks of the start shim want the real program: this binary starts
	// slower.
	if path := os.Getenv("BERM_AGENT"); path != "" {
		ownProgram = path
	}
	status := m.Run()
	remove()
	// The HTTP server's connections linger half a second after a refused request,
	// which nobody can wait for.
	lingering := goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait")
	if err := goleak.Find(lingering); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func exitStatus(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// inside is an agent under test with its clients.
type inside struct {
	process agentv1connect.ProcessClient
	client  *http.Client
	link    *fdpass.Link
	dir     string
	agent   int // its pid when it has a process of its own
}

const testPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// bootFor is the boot message of a plain agent that works in dir.
func bootFor(dir string) boot.Config {
	return boot.Config{User: "user", Home: dir, Dir: dir, Path: testPath}
}

// named is a descriptor of the boot message.
type named struct {
	name string
	file *os.File
}

// open starts an agent in this process and returns when it answers.
func open(tb testing.TB, config boot.Config, files ...named) *inside {
	tb.Helper()
	host, guest, err := fdpass.Pair()
	if err != nil {
		tb.Fatal(err)
	}
	in := dial(tb, host, config, files)
	served := make(chan error, 1)
	go func() { served <- agent.Serve(context.Background(), guest, "/proc/self/exe") }()
	ready(tb, in.link)
	tb.Cleanup(func() {
		if err := in.link.Close(); err != nil {
			tb.Error(err)
		}
		select {
		case err := <-served:
			if err != nil {
				tb.Errorf("serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			tb.Error("the agent did not end with its link")
		}
	})
	return in
}

// openOwn starts an agent in a process of its own, as backends do, with a
// prefix before its command line (setpriv ...).
func openOwn(tb testing.TB, config boot.Config, prefix []string, files ...named) *inside {
	tb.Helper()
	host, guest, err := fdpass.Pair()
	if err != nil {
		tb.Fatal(err)
	}
	defer guest.Close()
	argv := append(slices.Clone(prefix), ownProgram, "serve")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.ExtraFiles = []string{"MARKER=of-the-host"}, "/", []*os.File{guest}
	var noise bytes.Buffer
	cmd.Stderr = &noise
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	in := dial(tb, host, config, files)
	in.agent = cmd.Process.Pid
	tb.Cleanup(func() {
		if err := in.link.Close(); err != nil {
			tb.Error(err)
		}
		overdue := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer overdue.Stop()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("agent: %v: %s", err, noise.String())
		}
	})
	ready(tb, in.link)
	return in
}

// ownProgram is a copy of the test binary that any user may execute. It is made
// before the first test forks: a child that holds the file open for writing
// would make it busy.
var ownProgram string

func makeOwnProgram() (remove func(), err error) {
	dir, err := os.MkdirTemp("/tmp", "berm-agent-test-")
	if err != nil {
		return nil, err
	}
	ownProgram = filepath.Join(dir, "agent")
	return func() { _ = os.RemoveAll(dir) }, errors.Join(os.Chmod(dir, 0o755), copyFile("/proc/self/exe", ownProgram))
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// dial makes the host's side.
func dial(tb testing.TB, control *os.File, config boot.Config, files []named) *inside {
	tb.Helper()
	var sent []*os.File
	for _, f := range files {
		config.Files = append(config.Files, f.name)
		sent = append(sent, f.file)
	}
	payload, err := config.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	l, err := fdpass.New(control, payload, sent, fdpass.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	client := &http.Client{Transport: l}
	transport := connecthttp.NewTransport(client, "http://"+link.DataHost, connecthttp.WithCompressors())
	return &inside{
		process: agentv1connect.NewProcessClient(connect.NewClient(transport)),
		client:  client, link: l, dir: config.Dir,
	}
}

func ready(tb testing.TB, l *fdpass.Link) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Ready(ctx); err != nil {
		tb.Fatalf("ready: %v", err)
	}
}

// outcome is what a command's stream gave.
type outcome struct {
	pid            uint32
	stdout, stderr []byte
	end            *agentv1.ProcessEvent_EndEvent
}

// shell is a request for sh -c that belongs to its stream.
func shell(script string) *agentv1.StartRequest {
	off := false
	return &agentv1.StartRequest{
		Process: &agentv1.ProcessConfig{Cmd: "sh", Args: []string{"-c", script}},
		Stdin:   &off, KillOnClose: true, TypedFailures: true,
	}
}

// run collects a command's stream to its end.
func (in *inside) run(ctx context.Context, req *agentv1.StartRequest) (*outcome, error) {
	stream, err := in.process.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return collect(stream.Receive, nil)
}

func (in *inside) mustRun(tb testing.TB, req *agentv1.StartRequest) *outcome {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := in.run(ctx, req)
	if err != nil {
		tb.Fatalf("run %v: %v", req.GetProcess().GetArgs(), err)
	}
	return out
}

// collect reads events; started, when not nil, is told the pid.
func collect(receive func() (*agentv1.StartResponse, error), started func(uint32)) (*outcome, error) {
	out := &outcome{}
	for {
		res, err := receive()
		if errors.Is(err, io.EOF) {
			if out.end == nil {
				return out, errors.New("the stream has no end event")
			}
			return out, nil
		}
		if err != nil {
			return out, err
		}
		switch event := res.GetEvent().GetEvent().(type) {
		case *agentv1.ProcessEvent_Start:
			out.pid = event.Start.GetPid()
			if started != nil {
				started(out.pid)
			}
		case *agentv1.ProcessEvent_Data:
			out.stdout = append(out.stdout, event.Data.GetStdout()...)
			out.stderr = append(out.stderr, event.Data.GetStderr()...)
		case *agentv1.ProcessEvent_End:
			out.end = event.End
		}
	}
}

func byPid(pid uint32) *agentv1.ProcessSelector {
	return &agentv1.ProcessSelector{Selector: &agentv1.ProcessSelector_Pid{Pid: pid}}
}
