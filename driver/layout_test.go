package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berm-dev/berm/driver"
)

var hostDirs = driver.Capabilities{Backend: "test", HostDirs: true}

// dir makes a real directory without links in its path.
func dir(t *testing.T, parts ...string) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(append([]string{base}, parts...)...)
	if err := os.MkdirAll(full, 0o755); err != nil {
		t.Fatal(err)
	}
	return full
}

func TestResolveOrder(t *testing.T) {
	t.Parallel()
	out, up, work, ro, skill := dir(t), dir(t), dir(t), dir(t), dir(t)
	layout := driver.Layout{
		Outputs: driver.HostVolume(out), Uploads: driver.HostVolume(up), Workdir: work, ReadOnly: []string{ro},
		Skills: []driver.Skill{{ID: "pdf", Source: driver.Source{HostDir: &driver.HostDir{HostPath: skill}}}},
	}
	got, faults, refusals := layout.Resolve(hostDirs)
	if len(faults)+len(refusals) > 0 {
		t.Fatal(faults, refusals)
	}
	want := []driver.Mount{
		{Name: "outputs", Source: out, Dest: "/mnt/user-data/outputs", Writable: true},
		{Name: "uploads", Source: up, Dest: "/mnt/user-data/uploads"},
		{Name: "skills/pdf", Source: skill, Dest: "/mnt/skills/pdf"},
		{Name: "workdir", Source: work, Dest: "/workspace", Writable: true},
		{Name: "readOnly " + ro, Source: ro, Dest: ro},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if layout.WorkRoot() != "/workspace" || (driver.Layout{}).WorkRoot() != "/mnt/user-data/outputs" {
		t.Error("the working directory is wrong")
	}
	got, _, _ = driver.Layout{}.Resolve(driver.Capabilities{})
	if diff := cmp.Diff([]driver.Mount{{Name: "outputs", Dest: "/mnt/user-data/outputs", Writable: true}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	base := dir(t)
	for _, sub := range []string{"a/b", "state/x", "real"} {
		if err := os.MkdirAll(filepath.Join(base, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file, link, through := filepath.Join(base, "file"), filepath.Join(base, "link"), filepath.Join(base, "link", "sub")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(base, "real"), link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(through, 0o755); err != nil {
		t.Fatal(err)
	}
	a, b := filepath.Join(base, "a"), filepath.Join(base, "a", "b")
	skill := func(id string) driver.Layout {
		return driver.Layout{Skills: []driver.Skill{{ID: id, Source: driver.Source{HostDir: &driver.HostDir{HostPath: a}}}}}
	}
	at := func(path string) driver.Layout {
		return driver.Layout{Uploads: &driver.Volume{Source: driver.Source{HostDir: &driver.HostDir{HostPath: a}}, Path: path}}
	}
	for name, c := range map[string]struct {
		layout driver.Layout
		want   string
	}{
		"missing":         {driver.Layout{Outputs: driver.HostVolume(base + "/none")}, "no such file"},
		"relative":        {driver.Layout{Outputs: driver.HostVolume("a")}, "is not absolute"},
		"empty":           {driver.Layout{Outputs: driver.HostVolume("")}, "is missing"},
		"unclean":         {driver.Layout{Outputs: driver.HostVolume(a + "/../a")}, "is not clean"},
		"NUL":             {driver.Layout{Outputs: driver.HostVolume("/a\x00b")}, "NUL"},
		"file":            {driver.Layout{Outputs: driver.HostVolume(file)}, "not a directory"},
		"link":            {driver.Layout{Outputs: driver.HostVolume(link)}, "symbolic link"},
		"through a link":  {driver.Layout{Outputs: driver.HostVolume(through)}, "goes through a symbolic link"},
		"own state":       {driver.Layout{Outputs: driver.HostVolume(base + "/state/x")}, "berm's own state"},
		"above own state": {driver.Layout{Outputs: driver.HostVolume(base)}, "berm's own state"},
		"host's proc":     {driver.Layout{Uploads: driver.HostVolume("/proc")}, "belongs to the system"},
		"host's sys":      {driver.Layout{Uploads: driver.HostVolume("/sys/fs/cgroup")}, "belongs to the system"},
		"host's devices":  {driver.Layout{Workdir: "/dev"}, "belongs to the system"},
		"everybody's etc": {driver.Layout{Scratch: driver.HostVolume("/dev/shm")}, "belongs to the system"},
		"somebody's etc":  {driver.Layout{Scratch: driver.HostVolume("/dev/shm/berm-kit-0-1/etc")}, "belongs to the system"},
		"host uids":       {driver.Layout{Scratch: driver.HostVolume("/run/berm-uids")}, "berm's own state"},
		"above host uids": {driver.Layout{ReadOnly: []string{"/run"}}, "berm's own state"},
		"shared memory":   {driver.Layout{Scratch: driver.HostVolume("/dev/shm/none-such")}, "no such file"},
		"no source":       {driver.Layout{Outputs: &driver.Volume{}}, "exactly one of"},
		"share":           {driver.Layout{Uploads: &driver.Volume{Source: driver.Source{AzureFileShare: &driver.AzureFileShare{}}}}, "azureFileShare"},
		"image":           {driver.Layout{Uploads: &driver.Volume{Source: driver.Source{InImage: &driver.InImage{}}}}, "inImage"},
		"overlap":         {driver.Layout{Outputs: driver.HostVolume(a), Uploads: driver.HostVolume(b)}, "overlap"},
		"overlap above":   {driver.Layout{Scratch: driver.HostVolume(b), Transcripts: driver.HostVolume(a)}, "overlap"},
		"same source":     {driver.Layout{Outputs: driver.HostVolume(a), Uploads: driver.HostVolume(a)}, "overlap"},
		"nested":          {at("/mnt/user-data/outputs/in"), "nested"},
		"same place":      {at("/mnt/user-data/outputs"), "both are at"},
		"proc":            {at("/proc/x"), "belongs to the system"},
		"root":            {at("/"), "is the root"},
		"inside relative": {at("x"), "is not absolute"},
		"inside dots":     {at("/x/../y"), "is not clean"},
		"skill slash":     {skill("a/b"), "must match"},
		"skill dots":      {skill(".."), "must match"},
		"skill dot":       {skill("."), "names no directory"},
		"skill twice":     {driver.Layout{Skills: append(skill("x").Skills, skill("x").Skills...)}, "more than once"},
	} {
		mounts, faults, refusals := c.layout.Resolve(hostDirs, filepath.Join(base, "state"))
		faults = append(faults, refusals...)
		if mounts != nil || !strings.Contains(strings.Join(faults, "\n"), c.want) {
			t.Errorf("%s: mounts %v, faults %q; want a fault with %q", name, mounts, faults, c.want)
		}
	}
	behind := driver.Layout{Outputs: driver.HostVolume(filepath.Join(base, "real"))}
	if _, faults, _ := behind.Resolve(hostDirs, through); !strings.Contains(strings.Join(faults, "\n"), "berm's own state") {
		t.Errorf("a state directory behind a link: %q", faults)
	}
	_, faults, _ := driver.Layout{Outputs: driver.HostVolume("rel"), Uploads: driver.HostVolume("/none-such"), Skills: skill("..").Skills}.Resolve(hostDirs)
	if len(faults) != 3 {
		t.Errorf("want all three faults at once, got %q", faults)
	}
	if _, faults, refusals := (driver.Layout{Outputs: driver.HostVolume(a)}).Resolve(driver.Capabilities{Backend: "x"}); len(faults) != 0 || len(refusals) != 1 {
		t.Errorf("a backend without host directories: %q, %q", faults, refusals)
	}
}

func TestExceeds(t *testing.T) {
	t.Parallel()
	bound := driver.Capabilities{
		Backend: "b", Tier: driver.TierProcess, Networks: []driver.Network{driver.NetworkNone},
		Memory: driver.Partial, TreeKill: driver.KillMark,
	}
	if over := bound.Exceeds(bound); len(over) > 0 {
		t.Errorf("exceeds itself: %q", over)
	}
	over := driver.Capabilities{
		Backend: "c", Tier: driver.TierContainer, Networks: []driver.Network{driver.NetworkHost}, Memory: driver.Enforced, Processes: driver.Partial,
		CPUs: driver.Partial, Disk: driver.Partial, TreeKill: driver.KillCgroup, HostDirs: true, ContainedPaths: true,
	}
	over.Isolation.Network = true
	if got := over.Exceeds(bound); len(got) != 10 {
		t.Errorf("want 10 sentences, got %d: %q", len(got), got)
	}
}

// decorated shows that a power is found through a decorator.
type decorated struct{ driver.Backend }

func (d decorated) Unwrap() driver.Backend { return d.Backend }

type plain struct{ driver.Backend }

type powerful struct{ driver.Backend }

func (powerful) Power() int { return 7 }

func TestAs(t *testing.T) {
	t.Parallel()
	type power interface{ Power() int }
	var inner driver.Backend = powerful{}
	if p, ok := driver.As[power](driver.Backend(decorated{decorated{inner}})); !ok || p.Power() != 7 {
		t.Error("the power was not found through two decorators")
	}
	if _, ok := driver.As[power](driver.Backend(decorated{plain{}})); ok {
		t.Error("a power was found that is not there")
	}
}
