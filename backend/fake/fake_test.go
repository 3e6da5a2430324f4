package fake_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
)

// faultEnv makes the conformance run one on a broken fake.
const faultEnv = "BERM_FAKE_FAULT"

func TestConformance(t *testing.T) { //nolint:paralleltest // the suite looks at the whole process
	var faults fake.Faults
	if text := os.Getenv(faultEnv); text != "" {
		if err := json.Unmarshal([]byte(text), &faults); err != nil {
			t.Fatal(err)
		}
	}
	drivertest.Run(t, drivertest.Harness{
		Backend: func(*testing.T) driver.Backend { return fake.Config{Faults: faults} },
		Config: func(_ *testing.T, c *berm.Config) {
			if faults.HangCreate || faults.HangLink {
				c.ReadyTimeout = 3 * time.Second
			}
		},
		Skips: map[string]string{
			"host-killed/everything-ends": "the agent is a part of the host process and dies with it, before it can end anything",
		},
	})
}

// TestSuiteNoticesFaults proves the suite: on a fake that breaks a promise, each
// of the behaviours named here must fail.
func TestSuiteNoticesFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Geteuid() != 0 {
		t.Skip("the suite is proved as root; who calls makes no difference to it")
	}
	for _, c := range []struct {
		name    string
		faults  fake.Faults
		noticed []string
	}{
		{"lost output", fake.Faults{LoseOutput: true}, []string{"streams/apart", "streams/binary", "streams/big", "exec/arguments"}},
		{"invented exit", fake.Faults{InventExit: true}, []string{"exec/exit-status", "exec/signaled", "timeout/fires", "transport/lost"}},
		{"ignored kill", fake.Faults{IgnoreKill: true}, []string{"timeout/fires", "timeout/whole-tree", "timeout/daemon", "cancel/exec", "tree/deep"}},
		{"leak on cancel", fake.Faults{LeakOnCancel: true}, []string{"create/cancelled"}},
		{"skipped destroy", fake.Faults{SkipDestroy: true}, []string{"create/failed-later", "destroy/under-way", "destroy/everything-ends"}},
		{"lie in posture", fake.Faults{LieInPosture: true}, []string{"posture/filesystem", "posture/processes", "posture/privileges", "dial/own-loopback", "capabilities/networks"}},
		{"over-declared", fake.Faults{OverDeclare: true}, []string{"limits/memory", "limits/processes", "limits/disk", "capabilities/contained-paths"}},
		{"refused mounts", fake.Faults{RefuseMounts: true}, []string{"layout/outputs", "capabilities/host-dirs"}},
		{"hanging create", fake.Faults{HangCreate: true}, []string{"exec/exit-status"}},
		{"hanging link", fake.Faults{HangLink: true}, []string{"exec/exit-status"}},
		{"hanging destroy", fake.Faults{HangDestroy: true}, []string{"destroy/idempotent"}},
		{"dropped link", fake.Faults{DropLinkAfter: 100 << 10}, []string{"streams/big", "files/sizes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			failed := failures(t, c.faults, c.noticed)
			for _, name := range c.noticed {
				if !failed[name] {
					t.Errorf("the suite does not notice it in %s", name)
				}
			}
		})
	}
}

// failures runs the named behaviours on a broken fake in a process of its own
// and gives those that failed.
func failures(t *testing.T, faults fake.Faults, behaviours []string) map[string]bool {
	t.Helper()
	text, err := json.Marshal(faults)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var groups, names []string
	for _, full := range behaviours {
		group, name, _ := strings.Cut(full, "/")
		groups, names = append(groups, group), append(names, name)
	}
	child := exec.CommandContext(t.Context(), self, "-test.short", "-test.v", "-test.timeout=90s",
		fmt.Sprintf("-test.run=^TestConformance$/^(%s)$/^(%s)$", strings.Join(groups, "|"), strings.Join(names, "|")))
	child.Env = append(os.Environ(), faultEnv+"="+string(text), "BERM_TEST_AGENT="+drivertest.AgentBinary(t))
	out, err := child.CombinedOutput()
	if err == nil {
		t.Error("the suite passes")
	}
	failed := map[string]bool{}
	for _, name := range behaviours {
		failed[name] = strings.Contains(string(out), "--- FAIL: TestConformance/"+name+" ")
	}
	if t.Failed() || slices.ContainsFunc(behaviours, func(name string) bool { return !failed[name] }) {
		t.Logf("%v\n%s", err, out)
	}
	return failed
}

// TestServersInsideAreBounded: a server inside cannot make a caller of Transport
// read a header without end.
func TestServersInsideAreBounded(t *testing.T) {
	t.Parallel()
	p, err := berm.Open(t.Context(), fake.Config{}, berm.Config{
		Agent: berm.AgentProgram{Path: drivertest.AgentBinary(t)}, StateDir: filepath.Join(t.TempDir(), "state"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The fake's inside is this machine.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Query().Get("size"))
		w.Header().Set("Large", strings.Repeat("x", size))
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	transport := sb.Transport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for size, want := range map[int]bool{1 << 10: true, 1 << 20: false} {
		res, err := client.Get("http://localhost:" + port + "/?size=" + strconv.Itoa(size))
		if err == nil {
			_ = res.Body.Close()
		}
		if (err == nil) != want {
			t.Errorf("a header of %d bytes: %v", size, err)
		}
	}
}
