package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/posture"
)

// agentImage is the agent's program.
func agentImage(t *testing.T) []byte {
	t.Helper()
	image, err := os.ReadFile(drivertest.AgentBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// opened opens the backend on this host in a state directory of its own.
func opened(t *testing.T) (*bubble, string) {
	t.Helper()
	state := t.TempDir()
	// It runs after all drivers of the test have been closed.
	t.Cleanup(func() {
		err := filepath.WalkDir(state, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				t.Errorf("left: %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return openedIn(t, state), state
}

// openedIn opens the backend in a state directory.
func openedIn(t *testing.T, state string) *bubble {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("bubblewrap is not installed here")
	}
	d, err := Config{}.Open(t.Context(), driver.Host{
		Agent: driver.Agent{Image: agentImage(t)}, StateDir: state, Instance: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	b, ok := d.(*bubble)
	if !ok {
		t.Fatalf("driver is %T", d)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// plainSpec asks for the usual limits, where they can be kept.
func plainSpec(d *bubble, mounts ...driver.Mount) *driver.Spec {
	spec := &driver.Spec{ID: randomID(), Network: driver.NetworkNone, Limits: driver.Limits{Processes: 64, DiskBytes: 64 << 20}}
	spec.Mounts = append([]driver.Mount{{Name: "outputs", Dest: driver.OutputsPath, Writable: true}}, mounts...)
	if d.caps.Memory == driver.Enforced {
		spec.Limits.MemoryBytes = 256 << 20
	}
	return spec
}

// created makes a sandbox that is destroyed with the test.
func created(t *testing.T, d *bubble, spec *driver.Spec) *machine {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got, err := d.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := got.(*machine)
	if !ok {
		t.Fatalf("machine is %T", got)
	}
	t.Cleanup(func() { destroyed(t, m) })
	return m
}

// destroyed ends a sandbox and looks for what is left of it.
func destroyed(t *testing.T, m *machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := m.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if _, err := os.Lstat(fmt.Sprintf("/proc/%d", m.child.proc.Pid)); err == nil {
		t.Error("bubblewrap is still there")
	}
	for _, pattern := range []string{"/sys/fs/cgroup/berm/berm-", "/sys/fs/cgroup/*/berm/berm-"} {
		if found, _ := filepath.Glob(pattern + m.id); len(found) > 0 {
			t.Errorf("cgroups are left: %v", found)
		}
	}
}

// run runs a shell script inside and gives its output and end.
func run(t *testing.T, m *machine, script string) (string, agentclient.End) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := agentclient.New(m.link).Start(ctx, agentclient.StartRequest{Args: []string{"sh", "-c", script}, KillOnClose: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var out bytes.Buffer
	var end agentclient.End
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), end
		}
		if err != nil {
			t.Fatalf("%s: %v (so far %q)", script, err, out.String())
		}
		out.Write(event.Stdout)
		out.Write(event.Stderr)
		if event.End != nil {
			end = *event.End
		}
	}
}

func TestSandboxRunsCommandsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	out, end := run(t, m, "id -u; id -un; pwd; hostname; echo hi > f && cat f")
	if out != "1000\nuser\n"+driver.OutputsPath+"\nberm\nhi\n" || end.ExitCode != 0 {
		t.Errorf("%q %+v", out, end)
	}
	destroyed(t, m)
	destroyed(t, m)
	select {
	case <-m.link.Done():
	default:
		t.Error("the link outlives the sandbox")
	}
}

func TestWitnessTellsEveryHostClaim(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	facts, err := m.Witness(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	record := posture.Check(posture.TableFor("process"), d.caps.Isolation, facts)
	for _, f := range record.Findings {
		if f.Witness == posture.Host && f.Status != posture.Held {
			t.Errorf("%s: %s %s", f.Claim, f.Status, f.Detail)
		}
	}
	if held, detail := apart(os.Getpid(), "net", os.Getpid()); held {
		t.Errorf("the witness takes its own namespace for another: %s", detail)
	}
}

func TestNetworkHostKeepsTheOtherWalls(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	spec := plainSpec(d)
	spec.Network = driver.NetworkHost
	m := created(t, d, spec)
	facts, err := m.Witness(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts {
		if want := f.Claim != posture.NetworkNamespace; f.Held != want && f.Claim != posture.MemoryLimit && f.Claim != posture.ProcessLimit {
			t.Errorf("%s: %v %s", f.Claim, f.Held, f.Detail)
		}
	}
	host, err := os.ReadFile("/etc/resolv.conf")
	if err == nil {
		if out, _ := run(t, m, "cat /etc/resolv.conf"); out != string(host) {
			t.Errorf("resolv.conf is %q", out)
		}
	}
}

func TestMountsShowTheLayout(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	dir := t.TempDir()
	rw, ro := filepath.Join(dir, "rw"), filepath.Join(dir, "ro")
	for _, name := range []string{rw, ro} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(name, "given"), []byte("given"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := created(t, d, plainSpec(d,
		driver.Mount{Name: "workdir", Source: rw, Dest: driver.WorkspacePath, Writable: true},
		driver.Mount{Name: "uploads", Source: ro, Dest: driver.UploadsPath}))
	out, end := run(t, m, "pwd; cat given "+driver.UploadsPath+"/given; echo made > made; touch made || echo lost; touch "+driver.UploadsPath+"/x 2>/dev/null")
	if out != driver.WorkspacePath+"\ngivengiven" || end.ExitCode == 0 {
		t.Errorf("%q %+v", out, end)
	}
	info, err := os.Stat(filepath.Join(rw, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if parent, err := os.Stat(rw); err != nil || ownerOf(info) != ownerOf(parent) {
		t.Errorf("the file belongs to %d, the directory to %d", ownerOf(info), ownerOf(parent))
	}
	if _, err := os.Stat(filepath.Join(ro, "x")); err == nil {
		t.Error("a read-only mount was written")
	}
}

func TestALinkAsSourceIsRefusedAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	spec := plainSpec(d, driver.Mount{Name: "uploads", Source: filepath.Join(dir, "link"), Dest: driver.UploadsPath})
	t.Cleanup(func() {
		if err := d.cgroups.Sweep(context.Background(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	if _, err := d.Create(t.Context(), spec); err == nil {
		t.Fatal("a link was followed")
	} else if !strings.Contains(err.Error(), "link") {
		t.Errorf("the reason is not said: %v", err)
	}
	if found, _ := filepath.Glob("/sys/fs/cgroup/*/berm/berm-" + spec.ID); len(found) > 0 {
		t.Errorf("left: %v", found)
	}
}

func TestCreateThatIsCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	for _, after := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 6 * time.Millisecond} {
		spec := plainSpec(d)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		m, err := d.Create(ctx, spec)
		cancel()
		if err == nil {
			if err := m.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, errdefs.Timeout) {
			t.Errorf("after %v: %v", after, err)
		}
		if found, _ := filepath.Glob("/sys/fs/cgroup/*/berm/berm-" + spec.ID); len(found) > 0 {
			t.Errorf("after %v: left %v", after, found)
		}
	}
}

func TestDestroyWorksAfterTheSandboxEndedByItself(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	if err := m.child.proc.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.link.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the link does not notice")
	}
	for deadline := time.Now().Add(10 * time.Second); m.child.first.alive() && time.Now().Before(deadline); {
		// The link ends a little before the process does.
		runtime.Gosched()
	}
	if _, err := m.Witness(t.Context()); err == nil {
		t.Error("a dead sandbox has a witness")
	}
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			if err := m.Destroy(context.Background()); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	work.Wait()
}

// Destroy is done when the sandbox's processes are gone, whoever has ended
// bubblewrap before; and one whose time was over before it began says that.
func TestDestroyWaitsForWhatOutlivesBubblewrap(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Destroy(ended); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "does not end") {
		t.Errorf("with an ended context: %v", err)
	}
	m = created(t, d, plainSpec(d))
	if err := m.child.proc.Kill(); err != nil {
		t.Fatal(err)
	}
	first := m.child.first.pid
	destroyed(t, m)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", first)); err == nil {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", first)); err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d is left: %s", first, stat)
		}
	}
}
func TestDiagnoseSaysWhatThisHostCan(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	found := d.Diagnose()
	if len(found.Facts) == 0 || !strings.HasPrefix(found.Facts[0], "bubblewrap ") {
		t.Errorf("%+v", found)
	}
	for _, p := range found.Problems {
		if p.Fatal || p.Fix == "" {
			t.Errorf("%+v", p)
		}
	}
	_, err := Config{BwrapPath: "/nowhere/bwrap"}.Open(t.Context(), driver.Host{StateDir: t.TempDir()})
	var unready *driver.UnreadyError
	if !errors.Is(err, errdefs.Unavailable) || !errors.As(err, &unready) || len(unready.Problems) == 0 || !unready.Problems[0].Fatal {
		t.Errorf("%v", err)
	}
}

func TestBurstOfCreates(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	var work sync.WaitGroup
	for range 12 {
		work.Go(func() {
			m, err := d.Create(context.Background(), plainSpec(d))
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if err := m.Destroy(context.Background()); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	work.Wait()
}

func TestSandboxIsAdoptedWhereNamespacesDelegate(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	if !d.cgroups.Support().Kill {
		t.Skip("this user has no cgroup v2 tree here")
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mountinfo")
	changed := strings.ReplaceAll(string(table), "- cgroup2 cgroup2 rw", "- cgroup2 cgroup2 rw,nsdelegate")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	d.cgroups = cgroup.Open(cgroup.Host{MountInfo: file, Detach: d.detach})
	m := created(t, d, plainSpec(d))
	if !m.group.NeedsAdoption() {
		t.Skip("the mount table has another form here")
	}
	if out, end := run(t, m, "echo adopted"); out != "adopted\n" {
		t.Errorf("%q %+v", out, end)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", m.child.first.pid))
	if err != nil || !strings.Contains(string(data), "berm-"+m.id+"/agent\n") {
		t.Errorf("the agent is in %s, %v", data, err)
	}
}
