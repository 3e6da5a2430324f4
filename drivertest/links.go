package drivertest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func linksGroup() group {
	return group{name: "links", behaviours: []behaviour{
		{"planted", linksPlanted},
		{"as-sources", linksAsSources},
		{"read-only", linksReadOnly},
		{"swapped-parent", linksSwappedParent},
	}}
}

// linksPlanted: a link that the sandbox left in its outputs leads nowhere on the
// host: not for the API, and not as the source of a later mount.
func linksPlanted(t *testing.T, s *suite) {
	s.needsMounts(t)
	dir, secret := hostDir(t), hostDir(t)
	writeHost(t, filepath.Join(secret, "secret"), "the host's own")
	sb := s.layout(t, berm.Layout{Outputs: berm.HostVolume(dir)})
	sh(t, sb, `ln -s "$1/secret" file; ln -s "$1" dir; ln -s / root`, secret)
	for _, name := range []string{"file", "dir/secret", "root" + secret + "/secret"} {
		if got, err := sb.Files().ReadFile(bounded(t), name); err == nil && string(got) != "planted" {
			t.Errorf("%s leads to %q", name, got)
		}
		// Such a path may well exist inside; the host's must not notice.
		if err := sb.Files().WriteFile(bounded(t), name, []byte("planted"), 0o644); err != nil {
			wantKind(t, err, errdefs.NotFound, errdefs.Denied, errdefs.Unsupported, errdefs.Unavailable, errdefs.Invalid)
		}
		if got, err := os.ReadFile(filepath.Join(secret, "secret")); err != nil || string(got) != "the host's own" {
			t.Errorf("%s was written on the host: %q, %v", name, got, err)
		}
	}
	_, err := s.provider(t).Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Outputs: berm.HostVolume(filepath.Join(dir, "dir"))}})
	wantKind(t, err, errdefs.Invalid)
}

// guarded is a tree on the host that nobody may change.
type guarded struct {
	dir    string
	before []string
}

func newGuarded(t *testing.T) guarded {
	t.Helper()
	g := guarded{dir: hostDir(t)}
	if err := os.MkdirAll(filepath.Join(g.dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeHost(t, filepath.Join(g.dir, "file"), "the host's own")
	writeHost(t, filepath.Join(g.dir, "in", "keep"), "the host's own")
	g.before = g.list(t)
	return g
}

// list gives names, modes and contents.
func (g guarded) list(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		content := ""
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(data)
		}
		info, err := d.Info()
		out = append(out, path+" "+info.Mode().String()+" "+content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// untouched fails when something has changed.
func (g guarded) untouched(t *testing.T, by string) {
	t.Helper()
	if now := g.list(t); !slices.Equal(now, g.before) {
		t.Errorf("%s changed the host's %q to %q", by, g.before, now)
	}
}

// linkKinds makes links of every kind to a guarded tree.
func linkKinds(t *testing.T, g guarded) map[string]string {
	t.Helper()
	dir := hostDir(t)
	relative, err := filepath.Rel(dir, g.dir)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{
		"file": filepath.Join(g.dir, "file"), "dir": g.dir, "missing": filepath.Join(g.dir, "missing"), "out-of-tree": relative,
		"root": "/", "loop": "loop", "process": "/proc/self/cwd", "chain": "dir",
	}
	for name, target := range kinds {
		kinds[name] = filepath.Join(dir, name)
		if err := os.Symlink(target, kinds[name]); err != nil {
			t.Fatal(err)
		}
	}
	kinds["on-the-way"] = filepath.Join(dir, "dir", "in")
	kinds["root-on-the-way"] = filepath.Join(dir, "root") + filepath.Join(g.dir, "in")
	return kinds
}

// linksAsSources: whatever a link that is named as a source leads to, for
// whichever mount, it is refused as what it is or the sandbox starts; what it
// leads to stays as it was.
func linksAsSources(t *testing.T, s *suite) {
	g := newGuarded(t)
	for kind, source := range linkKinds(t, g) {
		for name, layout := range map[string]berm.Layout{
			"outputs": {Outputs: berm.HostVolume(source)}, "scratch": {Scratch: berm.HostVolume(source)}, "uploads": {Uploads: berm.HostVolume(source)},
			"toolResults": {ToolResults: berm.HostVolume(source)}, "transcripts": {Transcripts: berm.HostVolume(source)},
			"skills":  {Skills: []berm.Skill{{ID: "s", Source: berm.Source{HostDir: &berm.HostDir{HostPath: source}}}}},
			"workdir": {Workdir: source}, "readOnly": {ReadOnly: []string{source}},
		} {
			sb, err := s.provider(t).Create(bounded(t), berm.CreateOptions{Layout: &layout})
			if err != nil {
				wantKind(t, err, errdefs.Invalid, errdefs.Unsupported)
			} else {
				places := []string{"."}
				if s.declared(t).ContainedPaths {
					places = append(places, "/mnt/user-data/*", "/mnt/skills/*", driver.TranscriptsPath, driver.WorkspacePath, source)
				}
				_, err = sb.Exec(bounded(t), shell(`for d in $*; do echo spoiled > "$d/in/keep"; echo spoiled > "$d/new"; done 2>/dev/null`, places...))
				if err != nil {
					t.Errorf("%s as %s: %v", kind, name, err)
				}
				destroyNow(t, sb)
			}
			g.untouched(t, "a link of kind "+kind+" as "+name)
		}
	}
}

// linksReadOnly: links in what is mounted read-only, of every kind, keep no
// sandbox from starting, and nothing can be written through them.
func linksReadOnly(t *testing.T, s *suite) {
	s.needsMounts(t)
	g := newGuarded(t)
	kinds := linkKinds(t, g)
	dir, out := filepath.Dir(kinds["dir"]), hostDir(t)
	sb := s.layout(t, berm.Layout{Outputs: berm.HostVolume(out), ReadOnly: []string{dir}})
	got := sh(t, sb, `cd "$1" || exit 1
for l in *; do
	[ -L "$l" ] || echo "$l is no link"
	(echo spoiled > "$l") 2>/dev/null; (echo spoiled > "$l/in/keep") 2>/dev/null; (echo spoiled > "$l/new") 2>/dev/null
	rm -rf "$l" 2>/dev/null; ln -sf "$PWD/file" "$l" 2>/dev/null; mv "$l" "$l.moved" 2>/dev/null
done
ls | wc -l`, dir)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 8 || got != "8\n" {
		t.Errorf("the read-only directory has %v, %v; inside: %q", entries, err, got)
	}
	g.untouched(t, "a link in a read-only mount")
	for name := range kinds {
		for _, op := range []func(context.Context, string) error{
			func(ctx context.Context, p string) error {
				return sb.Files().WriteFile(ctx, p, []byte("spoiled"), 0o644)
			},
			func(ctx context.Context, p string) error { return sb.Files().RemoveAll(ctx, p) },
			func(ctx context.Context, p string) error { return sb.Files().MkdirAll(ctx, p+"/new", 0o755) },
		} {
			var known *errdefs.Error
			if err := op(bounded(t), dir+"/"+name); err != nil && !errors.As(err, &known) {
				t.Errorf("%s: %v (%T)", name, err, err)
			}
		}
	}
	g.untouched(t, "the API through a link in a read-only mount")
}

// linksSwappedParent: a payload that swaps a parent of a later mount's source for
// a link, over and over, gets nothing of the host's mounted.
func linksSwappedParent(t *testing.T, s *suite) {
	s.needsMounts(t)
	g, dir := newGuarded(t), hostDir(t)
	swapper := s.layout(t, berm.Layout{Outputs: berm.HostVolume(dir)})
	ctx, cancel := context.WithCancel(bounded(t))
	up, ended := &arrival{first: make(chan struct{})}, make(chan error, 1)
	command := shell(`mkdir -p p/in; ln -s "$1" l; echo up; while :; do mv p q; mv l p; mv p l; mv q p; sleep 0.1; done`, g.dir)
	command.Stdout = up
	go func() {
		_, err := swapper.Exec(ctx, command)
		ended <- err
	}()
	within(t, patience, "the swapping starts", func() { <-up.first })
	// Both outcomes are waited for, but whoever is too slow for one has tried.
	started, refused := 0, 0
	for deadline := time.Now().Add(patience / 4); (started < 5 || refused < 20) && time.Now().Before(deadline); {
		sb, err := s.provider(t).Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Outputs: berm.HostVolume(filepath.Join(dir, "p", "in"))}})
		if err != nil {
			wantKind(t, err, errdefs.Invalid, errdefs.NotFound, errdefs.Unavailable)
			refused++
			time.Sleep(5 * time.Millisecond) // the swapper's turn
			continue
		}
		started++
		if res, err := sb.Exec(bounded(t), shell(`if [ -e keep ]; then echo found; fi; : > planted-"$1"`, itoa(started))); err != nil || len(res.Stdout) > 0 {
			t.Errorf("a sandbox on a swapped path: %v, %v", res, err)
		}
		destroyNow(t, sb)
	}
	cancel()
	wantKind(t, <-ended, errdefs.Cancelled)
	if t.Logf("%d sandboxes started, %d were refused", started, refused); refused == 0 {
		t.Error("the path was never swapped while it was looked at")
	}
	g.untouched(t, "a swapped parent")
	if files, err := filepath.Glob(filepath.Join(dir, "*", "in", "planted-*")); err != nil || len(files) != started {
		t.Errorf("%d sandboxes started, and %q were written, %v", started, files, err)
	}
}

// destroySameID: an identity is free again when its machine is gone.
func destroySameID(t *testing.T, s *suite) {
	image, err := os.ReadFile(s.agent)
	if err != nil {
		t.Fatal(err)
	}
	state := hostDir(t)
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := s.harness.Backend(t).Open(bounded(t), driver.Host{
		Agent: driver.Agent{Image: image, Origin: s.agent}, StateDir: state, Instance: "again",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	spec := &driver.Spec{
		ID: unique()[:20], Network: d.Capabilities().Networks[0], WorkRoot: driver.OutputsPath,
		Mounts: []driver.Mount{{Name: "outputs", Dest: driver.OutputsPath, Writable: true}},
	}
	for i := range 3 {
		m, err := d.Create(bounded(t), spec)
		if err != nil {
			t.Fatalf("create %d with one id: %v", i, err)
		}
		if l, err := m.Link(bounded(t)); err != nil || l.Err() != nil || m.ID() != spec.ID {
			t.Errorf("machine %d: id %s, %v", i, m.ID(), err)
		}
		if err := m.Destroy(bounded(t)); err != nil {
			t.Errorf("destroy %d: %v", i, err)
		}
	}
}
