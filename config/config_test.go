package config_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// stub is a backend that only declares.
type stub struct {
	name  string
	tier  driver.Tier
	Allow bool
}

func (s stub) Declare() driver.Capabilities {
	return driver.Capabilities{Backend: s.name, Tier: s.tier, HostDirs: true}
}

func (s stub) Open(context.Context, driver.Host) (driver.Driver, error) {
	return nil, errors.ErrUnsupported
}

// factories are stand-ins for the process and passthrough backends.
func factories() []driver.Factory {
	return []driver.Factory{
		{
			Tier: driver.TierProcess, Key: "engine", Values: []string{"auto", "bubblewrap"}, Name: "process",
			Keys: []string{"engine", "uidRange"},
			Decode: func(f *driver.Fields) (driver.Backend, []string) {
				var reasons []string
				var engine string
				var uids []int
				for _, reason := range []string{driver.Take(f, "engine", &engine), driver.Take(f, "uidRange", &uids)} {
					if reason != "" {
						reasons = append(reasons, reason)
					}
				}
				return stub{name: "process", tier: driver.TierProcess}, reasons
			},
		},
		{
			Tier: driver.TierPassthrough, Name: "passthrough", Keys: []string{"allow", "apiToken"},
			Decode: func(f *driver.Fields) (driver.Backend, []string) {
				b := stub{name: "passthrough", tier: driver.TierPassthrough}
				var token string
				if reason := driver.Take(f, "allow", &b.Allow); reason != "" {
					return nil, []string{reason}
				}
				driver.Take(f, "apiToken", &token)
				return b, nil
			},
		},
	}
}

func parse(t *testing.T, text string) *config.File {
	t.Helper()
	file, err := config.Parse([]byte(text), factories())
	if err != nil {
		t.Fatalf("parse %s: %v", text, err)
	}
	return file
}

// reasons parses what must be refused.
func reasons(t *testing.T, kind errdefs.Kind, text string) []string {
	t.Helper()
	file, err := config.Parse([]byte(text), factories())
	if err == nil {
		t.Fatalf("%q was accepted: %+v", text, file)
	}
	var known *errdefs.Error
	if !errors.As(err, &known) || known.Kind != kind {
		t.Fatalf("%q: got %v (%T), want kind %s", text, err, err, kind)
	}
	return known.Reasons
}

func TestFull(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out", "up", "skill", "work", "ro"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.ReplaceAll(`
tier: process          # the default
engine: bubblewrap
layout:
  outputs: {source: {hostDir: {hostPath: DIR/out}}, path: /out}
  uploads:
    source:
      hostDir:
        hostPath: DIR/up
  skills:
    - id: pdf
      source: {hostDir: {hostPath: DIR/skill}}
  workdir: DIR/work
  readOnly: [DIR/ro]
toolchains: [DIR/python, /opt/node]
defaultEgress: {kind: host}
defaultTimeoutMs: 1500
defaultMemoryLimitMb: 64
defaultMaxProcesses: 32
cpus: 1.5
bestEffort: true
env: {LANG: C.UTF-8, N: "1"}
require: [filesystem, processes]
stateDir: DIR/state
agent: DIR/berm-agent
`, "DIR", dir)
	file := parse(t, text)
	want := berm.Config{
		Agent:    berm.AgentProgram{Path: dir + "/berm-agent"},
		StateDir: dir + "/state",
		Layout: berm.Layout{
			Outputs:  &berm.Volume{Source: berm.Source{HostDir: &berm.HostDir{HostPath: dir + "/out"}}, Path: "/out"},
			Uploads:  berm.HostVolume(dir + "/up"),
			Skills:   []berm.Skill{{ID: "pdf", Source: berm.Source{HostDir: &berm.HostDir{HostPath: dir + "/skill"}}}},
			Workdir:  dir + "/work",
			ReadOnly: []string{dir + "/ro"},
		},
		Toolchains: berm.Toolchains{Roots: []string{dir + "/python", "/opt/node"}},

		Limits:  berm.Limits{MemoryBytes: 64 << 20, Processes: 32, CPUs: 1.5, BestEffort: true},
		Network: driver.NetworkHost,
		Require: berm.Isolation{Filesystem: true, Processes: true},
		Timeout: 1500 * time.Millisecond,
		Env:     map[string]string{"LANG": "C.UTF-8", "N": "1"},
	}
	if diff := cmp.Diff(want, file.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if file.BackendName != "process" {
		t.Errorf("backend name %q", file.BackendName)
	}
	encoded, err := file.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again := parse(t, string(encoded))
	if diff := cmp.Diff(file.Config, again.Config); diff != "" {
		t.Errorf("encoded and parsed again (-first +second):\n%s", diff)
	}
}

func TestToolchains(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]berm.Toolchains{
		"tier: process\n":                               {},
		"tier: process\ntoolchains: none\n":             {},
		"tier: process\ntoolchains: auto\n":             {Auto: true},
		`{"tier":"process","toolchains":["/opt/node"]}`: {Roots: []string{"/opt/node"}},
	} {
		file := parse(t, text)
		encoded, err := file.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range []berm.Toolchains{file.Config.Toolchains, parse(t, string(encoded)).Config.Toolchains} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", text, diff)
			}
		}
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]driver.Network{
		`{"tier":"process"}`: "",
		`{"tier":"process","defaultEgress":{"kind":"deny-all"}}`:                                         driver.NetworkNone,
		`{"tier":"process","defaultEgress":{"kind":"host"}}`:                                             driver.NetworkHost,
		`{"tier":"process","network":"host"}`:                                                            driver.NetworkHost,
		"tier: process\nnetwork: none\ndefaultEgress: {kind: deny-all}\n":                                driver.NetworkNone,
		`{"tier":"process","network":"gated"}`:                                                           driver.NetworkGated,
		"tier: process\nnetwork: gated\ndefaultEgress: {kind: deny-all}\n":                               driver.NetworkGated,
		`{"tier":"process","defaultEgress":{"kind":"allow-all"}}`:                                        driver.NetworkGated,
		`{"tier":"process","defaultEgress":{"kind":"static","allow":[]}}`:                                driver.NetworkGated,
		`{"tier":"process","credentials":[{"host":"api.example.com","env":"A"}]}`:                        driver.NetworkGated,
		"tier: process\ndefaultEgress: {kind: deny-all}\ncredentials: [{host: a.example.com, env: A}]\n": driver.NetworkGated,
	} {
		if got := parse(t, text).Config.Network; got != want {
			t.Errorf("%s: network %q, want %q", text, got, want)
		}
	}
}

// TestRefusals has one reason for each file.
func TestRefusals(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 33) + strings.Repeat("]", 33)
	for _, c := range []struct {
		kind       errdefs.Kind
		text, want string
	}{
		{errdefs.Invalid, ``, "the file is empty"},
		{errdefs.Invalid, `[]`, "the file must hold an object, not a list"},
		{errdefs.Invalid, `hello`, "the file must hold an object, not a string"},
		{errdefs.Invalid, "{\"tier\":\"process\"} x", "something follows the object"},
		{errdefs.Invalid, `{"tier":"process"`, "the file ends in the middle"},
		{errdefs.Invalid, "\xff", "the file is not UTF-8"},
		{errdefs.Invalid, `{"tier":"process","tier":"passthrough"}`, "tier: given more than once"},
		{errdefs.Invalid, `{"tier":"process","env":{"A":"1","A":"2"}}`, "env.A: given more than once"},
		{errdefs.Invalid, "tier: process\ntier: process\n", `mapping key "tier" already defined`},
		{errdefs.Invalid, "tier: &a process\nagent: *a\n", "anchors, aliases and merge keys are not accepted"},
		{errdefs.Invalid, "tier: !!str process\n", "tags and directives are not accepted"},
		{errdefs.Invalid, "tier: process\n---\ntier: process\n", "more than one YAML document"},
		{errdefs.Invalid, "tier: process\ndefaultTimeoutMs: 0x10\n", "defaultTimeoutMs: the number 0x10 has to be written as in JSON"},
		{errdefs.Invalid, "tier: process\ndefaultTimeoutMs: 010\n", "defaultTimeoutMs: the number 010 has to be written as in JSON"},
		{errdefs.Invalid, "tier: process\nenv:\n  A: 1\n", "env.A: must be a string, not a number"},
		{errdefs.Invalid, "tier: process\nenv:\n", "env: has no value; leave the field out instead"},
		{errdefs.Invalid, `{"tier":"process","agent":null}`, "agent: has no value; leave the field out instead"},
		{errdefs.Invalid, "tier: process\n1: a\n", "the key 1 is not a string; quote it"},
		{errdefs.Invalid, `{"tier":` + deep + `}`, "nested more than 32 deep"},
		{errdefs.Invalid, "tier: " + deep + "\n", "nested more than 32 deep"},
		{errdefs.Invalid, "tier: " + strings.Repeat("[", 30000), "nested more than 32 deep"},
		{errdefs.Invalid, strings.Repeat("- ", 20000), "nested more than 32 deep"},
		{errdefs.Invalid, strings.Repeat("a: b\n", 20000), "more than 32768 YAML tokens"},
		{errdefs.Invalid, "#" + strings.Repeat("x", 1<<20), "larger than 1048576 bytes"},
		{errdefs.Invalid, `{}`, "tier: is missing; known here: process, passthrough"},
		{errdefs.Invalid, `{"tier":"proces"}`, `tier: "proces" is unknown; known here: process, passthrough; did you mean "process"?`},
		{errdefs.Unsupported, `{"tier":"microvm"}`, `tier: no backend for "microvm" is built into this program; known here: process, passthrough`},
		{errdefs.Invalid, `{"tier":"process","engine":"bubblewrp"}`, `engine: "bubblewrp" is unknown; known here: auto, bubblewrap; did you mean "bubblewrap"?`},
		{errdefs.Unsupported, `{"tier":"process","engine":"seatbelt"}`, `engine: no backend for "seatbelt" is built into this program; known here: auto, bubblewrap`},
		{errdefs.Invalid, `{"tier":"process","engine":1}`, "engine: must be a string, not a number"},
		{errdefs.Invalid, `{"tier":"process","uidRange":"x"}`, "uidRange: "},
		{errdefs.Invalid, `{"tier":"process","allow":true}`, "allow: unknown field"},
		{errdefs.Invalid, `{"tier":"process","uidRagne":[]}`, `uidRagne: unknown field; did you mean "uidRange"?`},
		{errdefs.Invalid, `{"tier":"process","defaultTimeoutMS":1}`, `defaultTimeoutMS: unknown field; did you mean "defaultTimeoutMs"?`},
		{errdefs.Invalid, `{"tier":"process","workdir":"/"}`, `workdir: unknown field; did you mean "layout.workdir"?`},
		{errdefs.Invalid, `{"tier":"process","layout":{"output":{}}}`, `layout.output: unknown field; did you mean "outputs"?`},
		{errdefs.Invalid, `{"tier":"process","layout":{"outputs":{"source":{"hostDir":{"hostPath":"/","x":1}}}}}`, "layout.outputs.source.hostDir.x: unknown field"},
		{errdefs.Invalid, `{"tier":"process","layout":{"outputs":{}}}`, "layout.outputs.source: must be exactly one of hostDir, azureFileShare, inImage"},
		{errdefs.Invalid, `{"tier":"process","layout":{"outputs":{"source":{"hostDir":{}}}}}`, `layout.outputs.source.hostDir.hostPath: host path "" is missing`},
		{errdefs.Invalid, `{"tier":"process","layout":{"outputs":{"source":{"hostDir":{"hostPath":"./x"}}}}}`, `layout.outputs.source.hostDir.hostPath: host path "./x" is not absolute`},
		{errdefs.Invalid, `{"tier":"process","layout":{"outputs":{"source":{"hostDir":{"hostPath":"/no-such-dir"}}}}}`, `layout.outputs.source.hostDir.hostPath: host path "/no-such-dir" cannot be used: no such file or directory`},
		{errdefs.Invalid, `{"tier":"process","layout":{"outputs":{"source":{"hostDir":{"hostPath":"/usr"}},"path":"/a/../b"}}}`, `layout.outputs.path: path "/a/../b" is not clean`},
		{errdefs.Invalid, `{"tier":"process","layout":{"uploads":{"source":{"inImage":{}}}}}`, "layout.uploads: backend process has no image"},
		{errdefs.Invalid, `{"tier":"process","layout":{"workdir":"rel"}}`, `layout.workdir: host path "rel" is not absolute`},
		{errdefs.Invalid, `{"tier":"process","layout":{"readOnly":["/usr","rel"]}}`, `layout.readOnly[1]: path "rel" is not absolute`},
		{errdefs.Invalid, `{"tier":"process","layout":{"skills":[{"id":"a","source":{"hostDir":{"hostPath":"/usr"}}},{"id":"a/b","source":{"hostDir":{"hostPath":"/usr"}}}]}}`, `layout.skills[1].id: "a/b": must match`},
		{errdefs.Invalid, `{"tier":"process","layout":{"skills":["x"]}}`, "layout.skills[0]: must be an object, not a string"},
		{errdefs.Invalid, `{"tier":"process","layout":{"workdir":"/a\u0000b"}}`, `has a NUL byte`},
		{errdefs.Invalid, `{"tier":"process","env":{"A B":"1"}}`, "env.A B: not the name of an environment variable"},
		{errdefs.Invalid, `{"tier":"process","env":{"A;touch x":"1"}}`, "env.A;touch x: not the name of an environment variable"},
		{errdefs.Invalid, `{"tier":"process","env":{"A":"a\u0000b"}}`, "env.A: has a NUL byte"},
		{errdefs.Invalid, `{"tier":"process","defaultTimeoutMs":0}`, "defaultTimeoutMs: must be a whole number from 1 to 2147483647, not 0"},
		{errdefs.Invalid, `{"tier":"process","defaultTimeoutMs":2147483648}`, "defaultTimeoutMs: must be a whole number from 1 to 2147483647"},
		{errdefs.Invalid, `{"tier":"process","defaultTimeoutMs":1.5}`, "defaultTimeoutMs: must be a whole number"},
		{errdefs.Invalid, `{"tier":"process","defaultTimeoutMs":"1s"}`, "defaultTimeoutMs: must be a whole number, not a string"},
		{errdefs.Invalid, `{"tier":"process","defaultMemoryLimitMb":1}`, "defaultMemoryLimitMb: must be a whole number from 4 to"},
		{errdefs.Invalid, `{"tier":"process","defaultMaxProcesses":0}`, "defaultMaxProcesses: must be a whole number from 1 to"},
		{errdefs.Invalid, `{"tier":"process","cpus":-1}`, "cpus: must be a number from 0.01 to 4096, not -1"},
		{errdefs.Invalid, `{"tier":"process","cpus":1e999}`, "cpus: must be a number from 0.01 to 4096"},
		{errdefs.Invalid, `{"tier":"process","bestEffort":"yes"}`, "bestEffort: must be true or false, not a string"},
		{errdefs.Invalid, `{"tier":"process","require":["netwrok"]}`, `require[0]: "netwrok" is unknown; known: filesystem, network, processes, limits; did you mean "network"?`},
		{errdefs.Invalid, `{"tier":"process","require":["network","network"]}`, `require[1]: "network" is given twice`},
		{errdefs.Invalid, `{"tier":"process","require":"network"}`, "require: must be a list, not a string"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":"deny-all"}`, "defaultEgress: must be an object, not a string"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{}}`, "defaultEgress.kind: must be one of"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"deny_all"}}`, `defaultEgress.kind: "deny_all" is unknown; known: deny-all, allow-all, static, resolver, host; did you mean "deny-all"?`},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"static"}}`, "defaultEgress.allow: is missing"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"static","allow":["*.com"]}}`, `egress: rule "*.com"`},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"static","allow":["a.example.com"],"url":"https://x/"}}`, "defaultEgress.url: unknown field"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"resolver"}}`, "defaultEgress: must have exactly one of command and url"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"resolver","command":["/bin/true"],"url":"https://a.example/"}}`, "defaultEgress: must have exactly one of command and url"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"resolver","command":["true"]}}`, `defaultEgress.command[0]: "true" is not an absolute path`},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"resolver","url":"http://a.example/"}}`, "defaultEgress.url: must be an https:// address"},
		{errdefs.Invalid, `{"tier":"process","defaultEgress":{"kind":"resolver","url":"https://u:p@a.example/"}}`, "defaultEgress.url: must be an https:// address"},
		{errdefs.Invalid, `{"tier":"process","network":"none","defaultEgress":{"kind":"allow-all"}}`, "network: none contradicts defaultEgress.kind allow-all"},
		{errdefs.Invalid, `{"tier":"process","network":"gated","defaultEgress":{"kind":"host"}}`, "network: gated contradicts defaultEgress.kind host"},
		{errdefs.Invalid, `{"tier":"process","network":"host","credentials":[{"host":"api.example.com","value":"hunter2hunter2"}]}`, "credentials, allowInwardFor: need the egress gate"},
		{errdefs.Invalid, `{"tier":"process","credentials":[{"host":"api.example.com"}]}`, "credentials[0]: must have exactly one of value, env, file"},
		{errdefs.Invalid, `{"tier":"process","credentials":[{"host":"api.example.com","value":"a","env":"B"}]}`, "credentials[0]: must have exactly one of value, env, file"},
		{errdefs.Invalid, `{"tier":"process","credentials":[{"host":"api.example.com","env":"A=B"}]}`, `credentials[0].env: "A=B" is not the name of an environment variable`},
		{errdefs.Invalid, `{"tier":"process","credentials":[{"host":"api.example.com","file":"x"}]}`, `credentials[0].file: "x" is not an absolute path`},
		{errdefs.Invalid, `{"tier":"process","credentials":[{"host":"api.example.com","env":"A","heder":"x"}]}`, `credentials[0].heder: unknown field; did you mean "header"?`},
		{errdefs.Invalid, `{"tier":"process","credentials":[{"host":"192.0.2.1","env":"A"}]}`, "egress: credential 0"},
		{errdefs.Invalid, `{"tier":"process","network":"gated","allowInwardFor":[".example.com"]}`, `egress: allowInwardFor ".example.com"`},
		{errdefs.Invalid, `{"tier":"process","network":"hots"}`, `network: "hots" is unknown; known: none, gated, host; did you mean "host"?`},
		{errdefs.Invalid, `{"tier":"process","network":"host","defaultEgress":{"kind":"deny-all"}}`, "network: host contradicts defaultEgress.kind deny-all"},
		{errdefs.Invalid, `{"tier":"process","toolchains":"atuo"}`, `toolchains: "atuo" is unknown; write auto, none, or a list of folders; did you mean "auto"?`},
		{errdefs.Invalid, `{"tier":"process","toolchains":true}`, "toolchains: must be auto, none, or a list of folders, not "},
		{errdefs.Invalid, `{"tier":"process","toolchains":["/a","b"]}`, `toolchains[1]: "b" is not a clean absolute path`},
		{errdefs.Invalid, `{"tier":"process","toolchains":[1]}`, "toolchains[0]: must be a string, not a number"},
		{errdefs.Invalid, `{"tier":"process","stateDir":"x"}`, `stateDir: "x" is not an absolute path`},
		{errdefs.Invalid, `{"tier":"process","stateDir":"/a/../b"}`, `stateDir: "/a/../b" is not clean; write "/b"`},
	} {
		got := reasons(t, c.kind, c.text)
		if len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%.80q:\n got %q\nwant %q", c.text, got, c.want)
		}
	}
}

// TestAllReasons has many faults in one file, of both kinds.
func TestAllReasons(t *testing.T) {
	t.Parallel()
	got := reasons(t, errdefs.Invalid, `
tier: process
engien: auto
layout: {outputs: {source: {hostDir: {hostPath: rel}}}, scrach: {}}
defaultEgress: {kind: resolver}
defaultTimeoutMs: -1
env: {"1A": x}
require: [everything]
`)
	for _, want := range []string{
		`engien: unknown field; did you mean "engine"?`,
		`layout.outputs.source.hostDir.hostPath: host path "rel" is not absolute`,
		`layout.scrach: unknown field; did you mean "scratch"?`,
		"defaultTimeoutMs: must be a whole number",
		"env.1A: not the name of an environment variable",
		`require[0]: "everything" is unknown`,
		"defaultEgress: must have exactly one of command and url",
	} {
		if !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("no reason %q in %q", want, got)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d reasons: %q", len(got), got)
	}
}

func TestRedacted(t *testing.T) {
	t.Parallel()
	file := parse(t, `{"tier":"passthrough","allow":true,"apiToken":"hunter2","env":{"PASS":"hunter2"}}`)
	out, err := file.Redacted()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "hunter2") || strings.Count(string(out), "(redacted)") != 2 {
		t.Errorf("redacted: %s", out)
	}
	full, err := file.Encode()
	if err != nil || strings.Count(string(full), "hunter2") != 2 {
		t.Errorf("redacting changed the file: %s, %v", full, err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := config.Load(filepath.Join(dir, "none.yaml"), factories()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := config.Load(dir, factories()); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("directory: %v", err)
	}
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.json")
	for path, text := range map[string]string{good: "tier: passthrough\nallow: true\n", bad: `{"tier": 1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := config.Load(good, factories())
	if err != nil {
		t.Fatal(err)
	}
	if b, ok := file.Backend.(stub); !ok || !b.Allow {
		t.Errorf("backend %+v", file.Backend)
	}
	if _, err := config.Load(bad, factories()); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("the error does not name the file: %v", err)
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"outptus": "outputs", "OUTPUTS": "outputs", "scratches": "scratch", "x": "", "": "", "uploads": "uploads",
		"banana": "", strings.Repeat("o", 1000): "",
	} {
		if got := config.Nearest(name, []string{"outputs", "scratch", "uploads"}); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}
