package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/all"
	"github.com/berm-dev/berm/driver"
)

// TestMain lets the scripts run this test binary as `berm`.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"berm": main})
}

// TestScripts runs every script that starts something, on each backend.
func TestScripts(t *testing.T) {
	t.Parallel()
	agent := build(t, "github.com/berm-dev/berm/cmd/berm-agent")
	mute := build(t, "./testdata/mute")
	configs := map[string]string{"process": "tier: process\n", "passthrough": "tier: passthrough\nallow: true\n"}
	for _, backend := range []string{"process", "passthrough"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("bwrap"); err != nil && backend == "process" {
				t.Skip("bubblewrap is not installed")
			}
			testscript.Run(t, testscript.Params{
				Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, Cmds: commands(),
				Condition: func(cond string) (bool, error) {
					if cond == "memory" {
						return backend == "process" && memoryLimited(t, agent), nil
					}
					return cond == backend, nil
				},
				Setup: func(env *testscript.Env) error {
					env.Setenv("BACKEND", backend)
					env.Setenv("BERM_AGENT", agent)
					env.Setenv("MUTE_AGENT", mute)
					env.Setenv("CONF", filepath.Join(env.WorkDir, "berm.yaml"))
					env.Values["env"] = env
					// The host's own state is left alone.
					text := configs[backend] + "stateDir: " + filepath.Join(env.WorkDir, "state") + "\n"
					return os.WriteFile(filepath.Join(env.WorkDir, "berm.yaml"), []byte(text), 0o600)
				},
			})
		})
	}
}

// memoryLimited reports whether the default backend can bound memory here.
func memoryLimited(t *testing.T, agent string) bool {
	t.Helper()
	found, err := berm.Probe(t.Context(), all.Factories()[0].Default(), berm.Config{
		Agent: berm.AgentProgram{Path: agent}, StateDir: filepath.Join(t.TempDir(), "state"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return found.Available && found.Capabilities.Memory == driver.Enforced
}

// TestLineScripts runs the scripts about command lines and files, which start
// nothing.
func TestLineScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/line", RequireExplicitExec: true, RequireUniqueNames: true, Cmds: commands(),
		Setup: func(env *testscript.Env) error {
			env.Setenv("BERM_AGENT", "/nowhere/berm-agent")
			return nil
		},
	})
}

// build makes a static program in a directory of the test's own.
func build(t *testing.T, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, text)
	}
	// Below it a sandbox of another user has to find the program.
	for _, dir := range []string{filepath.Dir(out), filepath.Dir(filepath.Dir(out))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// commands are what the scripts have besides testscript's own.
func commands() map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	return map[string]func(ts *testscript.TestScript, neg bool, args []string){
		"exits":     cmdExits,
		"json":      cmdJSON,
		"interrupt": cmdInterrupt,
		"eventually": func(ts *testscript.TestScript, _ bool, args []string) {
			waitFor(ts, args[0])
		},
	}
}

// cmdExits is `exits STATUS PROGRAM [ARG...]`: exec with an exact exit status.
func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitCode(ts, ts.Exec(args[1], args[2:]...)); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func exitCode(ts *testscript.TestScript, err error) int {
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.ExitCode()
	}
	ts.Fatalf("%v", err)
	return -1
}

// cmdJSON is `json FILE PATH WANT`: the value at a dotted path of a JSON file
// ("stdout" for the last output), as JSON. `! json FILE PATH` says that there is
// none.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	var value any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &value))
	found := true
	for part := range strings.SplitSeq(args[1], ".") {
		switch v := value.(type) {
		case map[string]any:
			value, found = v[part]
		case []any:
			i, err := strconv.Atoi(part)
			if found = err == nil && i < len(v); found {
				value = v[i]
			}
		default:
			found = false
		}
	}
	if neg {
		if found {
			ts.Fatalf("%s is %v, want nothing", args[1], value)
		}
		return
	}
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false)
	ts.Check(encoder.Encode(value))
	if text := strings.TrimSpace(got.String()); !found || text != args[2] {
		ts.Fatalf("%s is %s, want %s", args[1], text, args[2])
	}
}

// cmdInterrupt is `interrupt STATUS SIGNAL PATTERN PROGRAM [ARG...]`: it starts
// the program, waits until a file matches, sends the signal (INT+ for many), and
// waits for the exit status. Its output becomes stdout and stderr.
func cmdInterrupt(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	env, ok := ts.Value("env").(*testscript.Env)
	if !ok {
		ts.Fatalf("no environment")
	}
	path, err := exec.LookPath(args[3])
	if err != nil {
		path = filepath.Join(strings.Split(env.Getenv("PATH"), ":")[0], args[3])
	}
	cmd := exec.Command(path, args[4:]...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), env.Vars
	for _, name := range []string{"CONF", "BERM_AGENT"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	ts.Check(cmd.Start())
	waitFor(ts, args[2])
	sig, known := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1}[strings.TrimSuffix(args[1], "+")]
	if !known {
		ts.Fatalf("unknown signal %s", args[1])
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ts.Check(cmd.Process.Signal(sig))
	// Two equal signals that are pending together are one, so a repeated one is
	// sent until it has worked.
	var again <-chan time.Time
	if strings.HasSuffix(args[1], "+") {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		again = ticker.C
	}
	late := time.After(8 * time.Second)
	for {
		select {
		case err := <-ended:
			if got := exitCode(ts, err); got != want {
				ts.Fatalf("exit status %d, want %d", got, want)
			}
			return
		case <-again:
			_ = cmd.Process.Signal(sig)
		case <-late:
			_ = cmd.Process.Kill()
			<-ended
			ts.Fatalf("no end within 8 s")
		}
	}
}

// waitFor waits until a file matches the pattern.
func waitFor(ts *testscript.TestScript, pattern string) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if found, err := filepath.Glob(ts.MkAbs(pattern)); err == nil && len(found) > 0 {
			return
		}
	}
	ts.Fatalf("%s did not appear", pattern)
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"1": 1, "512M": 512 << 20, "512MiB": 512 << 20, "1GiB": 1 << 30, "1G": 1 << 30, "4096K": 4 << 20, "2T": 2 << 40, "7B": 7,
		"8388607T": 8388607 << 40,
		"":         -1, "0": -1, "0M": -1, "-1": -1, "+1": -1, "1.5G": -1, "1MB": -1, "1g": -1, "M": -1, "1 M": -1, "1GiBB": -1,
		"8388608T": -1, "99999999999999999999": -1, "0x10": -1, "1e3": -1, "M1": -1, "1iB": -1,
	} {
		got, err := parseSize(text)
		if want < 0 && err == nil || want > 0 && (err != nil || got != want) {
			t.Errorf("parseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

// TestUnknownFlags: the rest of the line is still read, so that its faults are
// told as well.
func TestUnknownFlags(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"run", "--outptus", "x", "--memroy=1", "--pids", "many", "--timeout", "never", "--", "true"}, nil, &stdout, &stderr)
	if code != 125 || stdout.Len() > 0 {
		t.Errorf("exit status %d, stdout %q", code, stdout.String())
	}
	for _, want := range []string{
		"unknown flag: --outptus; did you mean --outputs?", "unknown flag: --memroy; did you mean --memory?",
		`--pids: "many" is not a whole number`, `--timeout: "never" is not a duration`,
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in:\n%s", want, &stderr)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{
		"1", "512M", "1GiB", "0", "-1", "1.5G", "KiB", "9999999999999999999999T", "１M", "", " 1", "1 M", "1k", "1KB", "1Kib", "1B", "1BB", "8EiB", "9223372036854775807", "9223372036854775808B", "+1", "0x10", "1e3", "1_000",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := parseSize(text)
		if err != nil {
			return
		}
		if again, err := parseSize(fmt.Sprintf("%dB", size)); size <= 0 || err != nil || again != size {
			t.Errorf("parseSize(%q) = %d, which reads as %d, %v", text, size, again, err)
		}
	})
}
