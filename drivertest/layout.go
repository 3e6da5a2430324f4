package drivertest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func layoutGroup() group {
	return group{name: "layout", behaviours: []behaviour{
		{"outputs", layoutOutputs},
		{"owner", layoutOwner},
		{"workdir", layoutWorkdir},
		{"mounts", layoutMounts},
		{"read-only", layoutReadOnly},
		{"ephemeral", layoutEphemeral},
		{"per-sandbox", layoutPerSandbox},
		{"faults", layoutFaults},
	}}
}

// needsHostDirs skips what needs mounts of host directories.
func (s *suite) needsHostDirs(t *testing.T) {
	t.Helper()
	if !s.declared(t).HostDirs {
		t.Skip("the backend declares no mounts of host directories")
	}
}

// needsMounts skips what needs mounts at paths of their own.
func (s *suite) needsMounts(t *testing.T) {
	t.Helper()
	s.needsHostDirs(t)
	if !s.declared(t).ContainedPaths {
		t.Skip("paths inside are the host's, so a mount cannot be at a path of its own")
	}
}

// hostDir makes a directory on the host without a link in its path.
func hostDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// layout makes a sandbox with a layout of its own.
func (s *suite) layout(t *testing.T, l berm.Layout) *berm.Sandbox {
	t.Helper()
	return create(t, s.provider(t), berm.CreateOptions{Layout: &l})
}

// layoutOutputs: files cross in both directions, and stay after the sandbox.
func layoutOutputs(t *testing.T, s *suite) {
	s.needsHostDirs(t)
	dir := hostDir(t)
	writeHost(t, filepath.Join(dir, "before"), "from the host")
	sb := s.layout(t, berm.Layout{Outputs: berm.HostVolume(dir)})
	if got := sh(t, sb, `cat before; echo result > after; mkdir -p sub; echo deep > sub/deep; chmod 750 sub/deep; mv before moved; pwd`); got != "from the host"+sb.WorkDir()+"\n" {
		t.Errorf("inside: %q", got)
	}
	if err := sb.Files().WriteFile(bounded(t), "by-api", []byte("api"), 0o640); err != nil {
		t.Fatal(err)
	}
	destroyNow(t, sb)
	for name, want := range map[string]string{"after": "result\n", "sub/deep": "deep\n", "moved": "from the host", "by-api": "api"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "sub/deep")); err != nil || info.Mode() != 0o750 {
		t.Errorf("mode: %v, %v", info, err)
	}
}

func writeHost(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// layoutOwner: what the sandbox writes belongs to the directory's owner, who can
// use it, and no set-id bit reaches the host.
func layoutOwner(t *testing.T, s *suite) {
	s.needsMounts(t)
	dir := hostDir(t)
	owner := os.Geteuid()
	if owner == 0 {
		owner = 1001
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	sb := s.layout(t, berm.Layout{Outputs: berm.HostVolume(dir)})
	sh(t, sb, `echo x > file; mkdir sub; echo y > sub/file; chmod 755 file; mv sub renamed; echo z > exact; chmod 640 exact; chmod u+s file 2>/dev/null; chmod g+s renamed 2>/dev/null; exit 0`)
	if err := sb.Files().WriteFile(bounded(t), "by-api", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "renamed", "renamed/file", "by-api"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if uid := ownerOf(info); uid != owner {
			t.Errorf("%s belongs to uid %d, want %d", name, uid, owner)
		}
		if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v on the host", name, info.Mode())
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "exact")); err != nil || info.Mode() != 0o640 {
		t.Errorf("chmod inside is seen on the host as %v, %v", info, err)
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "exact"), 0o604), os.Rename(filepath.Join(dir, "exact"), filepath.Join(dir, "moved"))); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, sb, `stat -c %a moved; chmod 600 moved; mv moved renamed/; ls`); got != "604\nby-api\nfile\nrenamed\n" {
		t.Errorf("chmod and rename on the host are seen inside as %q", got)
	}
	writeHost(t, filepath.Join(dir, "late"), "late")
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "late"), owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if got := sh(t, sb, "cat late && echo more >> late"); got != "late" {
		t.Errorf("a file that came later: %q", got)
	}
}

func layoutWorkdir(t *testing.T, s *suite) {
	s.needsHostDirs(t)
	dir := hostDir(t)
	sb := s.layout(t, berm.Layout{Workdir: dir})
	if s.declared(t).ContainedPaths && sb.WorkDir() != driver.WorkspacePath {
		t.Errorf("WorkDir is %q, want %q", sb.WorkDir(), driver.WorkspacePath)
	}
	if got := sh(t, sb, "pwd -P; echo x > file"); got != sb.WorkDir()+"\n" {
		t.Errorf("pwd is %q, WorkDir %q", got, sb.WorkDir())
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Error(err)
	}
}

// layoutMounts: every mount is where the layout says, and can do what its mode
// says.
func layoutMounts(t *testing.T, s *suite) {
	s.needsMounts(t)
	dirs := map[string]string{}
	for _, name := range []string{"outputs", "scratch", "uploads", "tools", "transcripts", "skill", "moved"} {
		dirs[name] = hostDir(t)
		writeHost(t, filepath.Join(dirs[name], "name"), name)
	}
	skill := func(name, at string) berm.Skill {
		return berm.Skill{ID: "s_" + name + ".1-x", Source: berm.Source{HostDir: &berm.HostDir{HostPath: dirs[name]}}, Path: at}
	}
	sb := s.layout(t, berm.Layout{
		Outputs: berm.HostVolume(dirs["outputs"]), Scratch: berm.HostVolume(dirs["scratch"]), Uploads: berm.HostVolume(dirs["uploads"]),
		ToolResults: berm.HostVolume(dirs["tools"]), Transcripts: berm.HostVolume(dirs["transcripts"]),
		Skills: []berm.Skill{skill("skill", ""), skill("moved", "/opt/elsewhere")},
	})
	for at, want := range map[string]struct {
		name     string
		writable bool
	}{
		driver.OutputsPath: {"outputs", true}, driver.ScratchPath: {"scratch", true}, driver.UploadsPath: {"uploads", false},
		driver.ToolResultsPath: {"tools", false}, driver.TranscriptsPath: {"transcripts", false},
		driver.SkillsPath + "/s_skill.1-x": {"skill", false}, "/opt/elsewhere": {"moved", false},
	} {
		if got := sh(t, sb, `cat "$1/name"`, at); got != want.name {
			t.Errorf("%s holds %q, want %q", at, got, want.name)
		}
		res, err := sb.Exec(bounded(t), shell(`: > "$1/new" && : >> "$1/name" && mv "$1/name" "$1/renamed"`, at))
		if err != nil || res.Success() != want.writable {
			t.Errorf("%s: writable is not %v: %v, %v", at, want.writable, res, err)
		}
		if _, err := os.Stat(filepath.Join(dirs[want.name], "new")); (err == nil) != want.writable {
			t.Errorf("%s on the host: %v", at, err)
		}
	}
}

// layoutReadOnly: a further host directory is at its own path, and cannot be
// written.
func layoutReadOnly(t *testing.T, s *suite) {
	s.needsMounts(t)
	dir := hostDir(t)
	writeHost(t, filepath.Join(dir, "file"), "content")
	sb := s.layout(t, berm.Layout{ReadOnly: []string{dir}})
	if got := sh(t, sb, `cat "$1/file"; (: > "$1/new") 2>/dev/null && echo written; (echo x > "$1/file") 2>/dev/null && echo changed; exit 0`, dir); got != "content" {
		t.Errorf("inside: %q", got)
	}
}

// layoutEphemeral: without a source the outputs are there, and gone with the
// sandbox; two sandboxes do not share them.
func layoutEphemeral(t *testing.T, s *suite) {
	a, b := s.sandbox(t), s.sandbox(t)
	sh(t, a, "echo a > file")
	if exists(t, b, "file") {
		t.Error("two sandboxes share their outputs")
	}
	if !s.declared(t).ContainedPaths {
		dir := a.WorkDir()
		destroyNow(t, a)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the ephemeral directory is left: %v", err)
		}
	}
}

// layoutPerSandbox: sandboxes of one provider may differ.
func layoutPerSandbox(t *testing.T, s *suite) {
	s.needsHostDirs(t)
	one, two := hostDir(t), hostDir(t)
	for _, dir := range []string{one, two} {
		sh(t, s.layout(t, berm.Layout{Outputs: berm.HostVolume(dir)}), `echo "$1" > mine`, dir)
	}
	for _, dir := range []string{one, two} {
		if got, err := os.ReadFile(filepath.Join(dir, "mine")); err != nil || strings.TrimSpace(string(got)) != dir {
			t.Errorf("%s: %q, %v", dir, got, err)
		}
	}
}

// layoutFaults: what cannot be mounted is refused, each by name, at once.
func layoutFaults(t *testing.T, s *suite) {
	dir := hostDir(t)
	writeHost(t, filepath.Join(dir, "file"), "")
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	bad := berm.Layout{
		Outputs:     berm.HostVolume("relative"),
		Scratch:     berm.HostVolume(filepath.Join(dir, "missing")),
		Uploads:     berm.HostVolume(filepath.Join(dir, "file")),
		ToolResults: berm.HostVolume(filepath.Join(dir, "link")),
		Transcripts: &berm.Volume{},
		Skills:      []berm.Skill{{ID: "../x", Source: berm.Source{HostDir: &berm.HostDir{HostPath: dir}}}},
		Workdir:     s.stateDir,
	}
	_, err := s.provider(t).Create(bounded(t), berm.CreateOptions{Layout: &bad})
	wantKind(t, err, errdefs.Invalid)
	for _, name := range []string{"outputs", "scratch", "uploads", "toolResults", "transcripts", "../x", "workdir"} {
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
	if s.declared(t).ContainedPaths {
		return
	}
	_, err = s.provider(t).Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Uploads: berm.HostVolume(dir)}})
	if s.declared(t).HostDirs {
		wantKind(t, err, errdefs.Unsupported)
	}
	if err == nil || !strings.Contains(err.Error(), "uploads") {
		t.Errorf("uploads cannot be at their path, and the error is: %v", err)
	}
}
