package agent

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/berm-dev/berm/internal/agent/execmode"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

// maxMessage bounds one message that the host sends, in bytes.
const maxMessage = 16 << 20

// Config is what an agent is made of.
type Config struct {
	// Boot is the backend's message. Its Files are matched by Files below.
	Boot boot.Config
	// Files has the descriptors by name; the agent owns them from New on, also
	// when New fails. It may be nil.
	Files map[string]*os.File
	// Executable is the agent's own program, started for its exec and probe
	// modes. It is needed when Boot asks for marks or limits by rlimit.
	Executable string
	// Reap makes the agent collect every orphan that ends below this process. It
	// is for a process that is the agent alone, init or a child subreaper: each
	// other part of the process that started a child would lose its status.
	Reap bool
	// settled is closed when the process can take signals, nil where nobody sees
	// to that. There is no agent, and so no payload, before.
	settled <-chan struct{}
	// outlet is the egress listener that was opened for this agent, nil for none.
	outlet *outlet
}

// Agent serves one sandbox. Its methods may be called concurrently.
type Agent struct {
	data      http.Handler
	control   *control
	processes *processes
	session   *session
	metrics   *metrics
	files     *files
	closeOnce sync.Once
}

// New makes an agent and everything that its commands need. Errors say what the
// boot message asked for and could not be had.
func New(config Config) (*Agent, error) {
	sess := newSession(config)
	procs, err := newProcesses(config, sess)
	if err != nil {
		return nil, err
	}
	// The probe, if the host wants one, runs while the rest is made.
	a := &Agent{processes: procs, control: newControl(config, procs, sess), session: sess, files: newFiles(config.Boot, sess), metrics: newMetrics(config)}
	a.data = a.dataHandler()
	if config.settled != nil {
		<-config.settled
	}
	return a, nil
}

// Data serves processes, files and what clients ask about the sandbox. A server
// may forward requests to it.
func (a *Agent) Data() http.Handler { return a.data }

// Control serves posture, tunnels and /init. Only the host's own streams reach it.
func (a *Agent) Control() http.Handler { return a.control }

// Close ends every process of every command and waits for all goroutines of the
// agent. Requests that are being served end by themselves. A second call does
// nothing.
func (a *Agent) Close() {
	a.closeOnce.Do(func() {
		a.control.close()
		a.files.watches.close()
		a.processes.close()
	})
}

func (a *Agent) dataHandler() http.Handler {
	rpc := connect.NewServer()
	agentv1connect.RegisterProcessHandler(rpc, a.processes)
	a.files.register(rpc)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, rpc, connecthttp.WithCompressors(), connecthttp.WithReadMaxBytes(messageLimit()))
	a.files.mount(mux)
	a.session.mount(mux)
	mountRefusals(mux)
	mux.HandleFunc("GET /metrics", a.metrics.serve)
	mux.Handle("/process.Process/", alias("/process.Process/", "/berm.agent.v1.Process/", mux))
	mux.Handle("/filesystem.Filesystem/", alias("/filesystem.Filesystem/", "/berm.agent.v1.Filesystem/", mux))
	return withGate(withOrigins(a.session.withAccess(mux)))
}

func messageLimit() int {
	if defence.AgentMessageSize.Off() {
		return 1 << 30
	}
	return maxMessage
}

// alias serves paths below from as the same paths below to.
func alias(from, to string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rewritten := *r
		location := *r.URL
		location.Path = to + strings.TrimPrefix(r.URL.Path, from)
		location.RawPath = ""
		rewritten.URL = &location
		next.ServeHTTP(w, &rewritten)
	})
}

// namedFile returns the one descriptor called name, nil when the boot message
// has none.
func (c Config) namedFile(name string) *os.File { return c.Files[name] }

// taskFiles returns the cgroup v1 files that the starting thread has to join.
func (c Config) taskFiles() []*os.File {
	var out []*os.File
	for name, file := range c.Files {
		if strings.HasPrefix(name, boot.TasksPrefix) {
			out = append(out, file)
		}
	}
	return out
}

// closeFiles gives up every descriptor.
func (c Config) closeFiles() {
	for _, file := range c.Files {
		_ = file.Close()
	}
}

// check refuses a configuration that could not start a command safely.
func (c Config) check() error {
	var faults []error
	needsShim := c.Boot.Mark || c.Boot.Processes > 0 || c.Boot.DataBytes > 0
	if needsShim && c.Executable == "" {
		faults = append(faults, errors.New("marks and limits need the agent's own program"))
	}
	for _, name := range c.Boot.Files {
		if c.Files[name] == nil {
			faults = append(faults, fmt.Errorf("descriptor %q is missing", name))
		}
	}
	for _, path := range []string{c.Boot.Home, c.Boot.Dir} {
		if !strings.HasPrefix(path, "/") {
			faults = append(faults, fmt.Errorf("directory %q is not absolute", path))
		}
	}
	return errors.Join(faults...)
}

// Exec is package execmode's Main, for programs that are an agent among other
// things, as test binaries are.
func Exec(args []string) int { return execmode.Main(args) }
