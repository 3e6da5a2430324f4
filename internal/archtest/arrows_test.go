package archtest_test

import (
	"slices"
	"strings"
	"testing"
)

// ban says that code in `from` reaches nothing in `to`, by whatever way round.
// A pattern is a folder ("driver"), a folder and all below it ("backend/..."),
// or "." for the root package.
type ban struct {
	from, to string
	// except are folders of `to` that may be reached all the same.
	except []string
	why    string
}

// bans are the arrows of docs/design.md. Tests are excepted.
var bans = []ban{
	{from: "errdefs", to: "...", why: "everything imports errdefs: it is a leaf"},
	{from: "posture", to: "...", except: []string{"errdefs", "internal/defence"}, why: "posture is pure: it judges facts and gathers none"},
	{from: "egress", to: "...", except: []string{"errdefs", "posture", "internal/defence", "egress/internal/address"}, why: "a decision about egress depends on its policy and nothing else"},
	{from: "link/...", to: "...", except: []string{"link/...", "errdefs", "posture", "internal/boot", "internal/defence"}, why: "a link carries bytes and knows neither backends nor the API"},
	{from: "driver", to: "...", except: []string{"errdefs", "posture", "egress", "egress/internal/address", "link", "internal/defence"}, why: "the contract cannot depend on those who sign it"},

	{from: "backend/...", to: ".", why: "a backend is below the API: what it needs of berm is in its Spec"},
	{from: "backend/...", to: "drivertest/...", why: "the suite tests backends; they do not carry it"},
	{from: "backend/...", to: "config", why: "the reader of configurations gets a driver.Factory and is not called back"},
	{from: "backend/...", to: "cmd/...", why: "programs are at the top"},
	{from: "backend/...", to: "internal/agentclient", why: "what is said to the agent is said once, in berm"},
	{from: "backend/passthrough", to: "internal/agent", why: "the agent runs as a program of its own; only the fake has it in process"},
	{from: "backend/process/...", to: "internal/agent", why: "the agent runs as a program of its own; only the fake has it in process"},

	{from: ".", to: "backend/...", why: "the caller chooses the wall: berm knows the contract only"},
	{from: ".", to: "config", why: "a program configures berm with Go values; files are for programs that read files"},
	{from: ".", to: "drivertest/...", why: "the suite is for tests"},
	{from: ".", to: "internal/agent", why: "the host talks to the agent; it does not contain it"},
	{from: ".", to: "internal/server/...", why: "servers are built on berm"},
	{from: ".", to: "cmd/...", why: "programs are at the top"},

	{from: "config", to: "backend/...", why: "backends are handed in as factories, so that a program links only those it wants"},
	{from: "drivertest/...", to: "backend/...", why: "the suite knows no backend: outside backends run it too"},
	{from: "internal/server/...", to: "backend/...", why: "a server gets its provider handed in"},
	{from: "internal/mcpserver/...", to: "backend/...", why: "a server gets its provider handed in"},
	{from: "internal/agentclient", to: "internal/agent", why: "both sides share the protocol, not code"},
	{from: "internal/agentclient", to: "driver", why: "a client needs a link, not the machine behind it"},
	{from: "internal/agent", to: ".", why: "the agent is inside the wall: the API is outside"},
	{from: "internal/agent", to: "driver", why: "the agent is inside the wall: machines are made outside"},
	{from: "internal/agent", to: "backend/...", except: []string{"backend/process/seccomp"}, why: "one agent serves all backends"},
	{from: "internal/agent", to: "config", why: "the agent is told by its boot message, by no file"},
	{from: "internal/agent", to: "internal/agentclient", why: "both sides share the protocol, not code"},
	{from: "internal/boot", to: "...", why: "both sides of the wall import it: it is a leaf"},
	{from: "internal/defence", to: "...", why: "everything asks it for a switch, and in a release it has none: it is a leaf"},
	{from: "cmd/berm-agent", to: ".", why: "what is in the agent is in reach of its payloads: keep it small"},
	{from: "cmd/berm-agent", to: "backend/...", except: []string{"backend/process/launch", "backend/process/seccomp"}, why: "of the backends the agent holds only the root launcher and the filter's compiler"},

	{from: "...", to: "cmd/...", except: []string{"cmd/..."}, why: "programs are at the top"},
}

// owners names who alone may import something directly, tests excepted.
var owners = []struct {
	what, why string
	who       []string
}{
	{"backend/all", "only programs link every backend", []string{"cmd/..."}},
	{"drivertest", "the suite is for tests", []string{"drivertest/..."}},
	{"link/linktest", "the suite is for tests", []string{"link/linktest"}},
	{"backend/fake", "the fake isolates nothing: it is chosen by tests and by name", []string{"backend/all", "drivertest/..."}},
	{"internal/gen/...", "generated types are what crosses the link; the rest has types of its own", []string{
		".", "internal/agent", "internal/agentclient", "internal/server/...", "internal/gen/...", "bench/...", "link/linktest", "drivertest/...",
		// It breaks answers on purpose, between the agent and the host.
		"backend/fake",
	}},
	{"testing", "the testing package adds flags and weight to a program", []string{"drivertest/...", "link/linktest", "bench/..."}},
	{"github.com/spf13/cobra", "command lines are for programs", []string{"cmd/..."}},
	{"github.com/goccy/go-yaml", "YAML is read in one place", []string{"config"}},
	{"net/http/httptest", "servers on ports are for tests", []string{"drivertest/...", "link/linktest"}},
	{"unsafe", "where types and bounds end, so that it can be reviewed", []string{
		"backend/process/...", "internal/agent", "internal/agent/...", "link/fdpass", "internal/gen/...", "drivertest/payload",
	}},
	{"internal/agent/execmode/first", "importing it runs code: for the agent's main alone", []string{"cmd/berm-agent"}},
	{"plugin", "code is linked, not loaded", nil},
	{"expvar", "registers itself on the global mux", nil},
	{"net/http/pprof", "registers itself on the global mux", nil},
}

// TestArrows follows every import inside the module and reports a banned target
// with the way that led there.
func TestArrows(t *testing.T) {
	t.Parallel()
	graph := arrows(repository(t))
	for from := range graph {
		ways := reach(graph, from)
		for _, b := range bans {
			if !matches(b.from, from) {
				continue
			}
			for to, way := range ways {
				if to != from && matches(b.to, to) && !slices.ContainsFunc(b.except, func(p string) bool { return matches(p, to) }) {
					t.Errorf("%s: %s", strings.Join(way, " -> "), b.why)
				}
			}
		}
	}
}

func TestOwners(t *testing.T) {
	t.Parallel()
	for _, f := range repository(t).sources() {
		if strings.HasPrefix(f.dir, "tools/") {
			continue
		}
		for _, name := range imports(f) {
			for _, o := range owners {
				if matches(o.what, folder(name)) && !slices.ContainsFunc(o.who, func(p string) bool { return matches(p, f.dir) }) {
					t.Errorf("%s imports %s: %s (allowed: %s)", f.path, name, o.why, strings.Join(o.who, ", "))
				}
			}
		}
	}
}

// TestBansAreWellFormed keeps the data honest: each has a reason, and a pattern
// that says what it means.
func TestBansAreWellFormed(t *testing.T) {
	t.Parallel()
	for _, b := range bans {
		if b.why == "" || b.from == "" || b.to == "" {
			t.Errorf("ban %q -> %q is incomplete", b.from, b.to)
		}
	}
	for pattern, hits := range map[string]map[string]bool{
		"backend/...": {"backend/fake": true, "backend": true, "backendx": false, ".": false},
		"driver":      {"driver": true, "driver/x": false, "drivertest": false},
		".":           {".": true, "driver": false},
		"...":         {".": true, "driver": true, "a/b": true},
	} {
		for name, want := range hits {
			if matches(pattern, name) != want {
				t.Errorf("pattern %q on %q: want %v", pattern, name, want)
			}
		}
	}
}

func matches(pattern, name string) bool {
	if pattern == "..." {
		return !strings.Contains(strings.SplitN(name, "/", 2)[0], "..")
	}
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == below || strings.HasPrefix(name, below+"/")
	}
	return name == pattern
}

// arrows maps each folder to the folders of the module that it imports.
func arrows(tr *tree) map[string][]string {
	graph := map[string][]string{}
	for _, f := range tr.sources() {
		if strings.HasPrefix(f.dir, "tools") {
			continue
		}
		if _, ok := graph[f.dir]; !ok {
			graph[f.dir] = nil
		}
		for _, name := range imports(f) {
			if name == module || strings.HasPrefix(name, module+"/") {
				graph[f.dir] = append(graph[f.dir], folder(name))
			}
		}
	}
	return graph
}

// folder turns an import path of the module into its folder and leaves others.
func folder(name string) string {
	if name == module {
		return "."
	}
	return strings.TrimPrefix(name, module+"/")
}

// reach gives every folder that can be reached, with one shortest way.
func reach(graph map[string][]string, from string) map[string][]string {
	ways := map[string][]string{from: {from}}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range graph[queue[0]] {
			if _, ok := ways[next]; !ok {
				ways[next] = append(slices.Clone(ways[queue[0]]), next)
				queue = append(queue, next)
			}
		}
	}
	return ways
}
