//go:build linux

package attack_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/drivertest"
)

const (
	// liveness bounds what has to happen "at once", on a host that is busy with
	// other tests; patience bounds everything else.
	liveness = 5 * time.Second
	patience = 60 * time.Second
)

// stage is what all tests share: the two programs, one provider and one sandbox.
var stage struct {
	once           sync.Once
	dir            string // TestMain makes and removes it
	agent, payload string // "" when the preparation failed
	provider       *berm.Provider
	shared         *box
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "berm-attack-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stage.dir = dir
	code := m.Run()
	if stage.provider != nil {
		err = stage.provider.Close()
	}
	if err != nil || os.RemoveAll(dir) != nil {
		fmt.Fprintln(os.Stderr, "close the shared provider:", err)
		code = 1
	}
	os.Exit(code)
}

// prepare fills the stage at the first call, and fails every test when it cannot.
func prepare(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("bubblewrap is not installed here")
	}
	stage.once.Do(func() {
		agent := keep(t, drivertest.AgentBinary(t))
		stage.payload = keep(t, drivertest.Binary(t, "BERM_TEST_ATTACK", "attack", "github.com/berm-dev/berm/backend/process/attack/payload"))
		stage.agent = agent
		stage.provider = open(t, nil)
		stage.shared = settle(t, stage.provider, berm.CreateOptions{})
	})
	if stage.shared == nil {
		t.Fatal("the shared sandbox could not be made; see the first failure")
	}
}

// keep moves a program to where it outlives the test that built it.
func keep(t *testing.T, from string) string {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(stage.dir, filepath.Base(from))
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// open opens the backend with a changed configuration. The caller closes it.
func open(t *testing.T, change func(*berm.Config)) *berm.Provider {
	t.Helper()
	config := berm.Config{Agent: berm.AgentProgram{Path: stage.agent}, StateDir: filepath.Join(stage.dir, "state")}
	if change != nil {
		change(&config)
	}
	p, err := berm.Open(bounded(t), process.Config{}, config)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return p
}

// box is a sandbox with the payload's program in it.
type box struct {
	*berm.Sandbox
	payload string // its path inside
}

// shared is the sandbox for attacks that leave it as it was.
func shared(t *testing.T) *box {
	t.Helper()
	prepare(t)
	return stage.shared
}

// fresh makes a sandbox of the shared provider that ends with the test.
func fresh(t *testing.T, opts berm.CreateOptions) *box {
	t.Helper()
	prepare(t)
	b := settle(t, stage.provider, opts)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return b
}

// settle makes a sandbox and puts the payload's program into it.
func settle(t *testing.T, p *berm.Provider, opts berm.CreateOptions) *box {
	t.Helper()
	sb, err := p.Create(bounded(t), opts)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	program, err := os.ReadFile(stage.payload)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Sandbox: sb, payload: path.Join(sb.WorkDir(), "attack")}
	if err := sb.Files().Create(bounded(t), b.payload, 0o755, bytes.NewReader(program)); err != nil {
		t.Fatalf("install the payload: %v", err)
	}
	return b
}

// bounded is a context for what is not expected to take long.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// output runs a command inside that has to exit 0 and gives its standard output.
func output(t *testing.T, b *box, args ...string) string {
	t.Helper()
	res, err := b.Exec(bounded(t), berm.Command{Args: args})
	if err != nil || !res.Success() {
		stderr := []byte(nil)
		if res != nil {
			stderr = res.Stderr[:min(len(res.Stderr), 500)]
		}
		t.Fatalf("%q: %v %v %s", args, res, err, stderr)
	}
	return string(res.Stdout)
}

// alive checks that the sandbox still runs commands, at once.
func alive(t *testing.T, b *box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), liveness)
	defer cancel()
	if res, err := b.Exec(ctx, berm.Command{Args: []string{"true"}}); err != nil || !res.Success() {
		t.Errorf("the sandbox is not well afterwards: %v %v", res, err)
	}
}
