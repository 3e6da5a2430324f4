//go:build linux

package attack_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// everyMount is a layout with a mount of every kind.
type everyMount struct {
	layout berm.Layout
	// writable and readOnly are paths inside, the working directory first.
	writable, readOnly []string
	sources            []string // on the host, in the order of all paths
}

// allMounts makes the sources; each has a file "given" and a link "link-abs" to a
// target.
func allMounts(t *testing.T, target string) everyMount {
	t.Helper()
	source := func() string {
		dir := hostDir(t)
		put(t, filepath.Join(dir, "given"), "given")
		if err := os.Symlink(target, filepath.Join(dir, "link-abs")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	work, outputs, scratch := source(), source(), source()
	uploads, tools, transcripts, skill, ro := source(), source(), source(), source(), source()
	return everyMount{
		layout: berm.Layout{
			Workdir: work, Outputs: berm.HostVolume(outputs), Scratch: berm.HostVolume(scratch), Uploads: berm.HostVolume(uploads),
			ToolResults: berm.HostVolume(tools), Transcripts: berm.HostVolume(transcripts), ReadOnly: []string{ro},
			Skills: []berm.Skill{{ID: "s", Source: berm.Source{HostDir: &berm.HostDir{HostPath: skill}}}},
		},
		writable: []string{driver.WorkspacePath, driver.OutputsPath, driver.ScratchPath},
		readOnly: []string{driver.UploadsPath, driver.ToolResultsPath, driver.TranscriptsPath, driver.SkillsPath + "/s", ro},
		sources:  []string{work, outputs, scratch, uploads, tools, transcripts, skill, ro},
	}
}

func (m everyMount) paths() []string { return slices.Concat(m.writable, m.readOnly) }

// given is the planted file of each of some paths.
func given(paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, p+"/given")
	}
	return out
}

// process-tier 1.7 "denyRead: direct, via symlink, /proc/self/root, /proc/1/root",
// "write outside via symlink", behaviours D 32: no path through any mount leads to
// a file of the host's that is not in one.
func TestPathsLeadToNoFileOfTheHost(t *testing.T) {
	t.Parallel()
	prepare(t)
	const marker = "the host's own secret"
	secret := filepath.Join(hostDir(t), "secret")
	put(t, secret, marker)
	mounts := allMounts(t, secret)
	b := place(t, nil, mounts.layout)
	v := attack(t, b, "host-paths", append([]string{secret}, mounts.paths()...)...)
	for _, a := range v {
		if strings.Contains(a.Detail, marker) {
			t.Errorf("%s leads to it", a.Name)
		}
	}
	v.blocked(t, "ENOENT", "EACCES", "EPERM", "ENOTDIR", "ELOOP", "ENXIO")
	// The control: the same reader, where there is something.
	inside := attack(t, b, "host-paths", append([]string{driver.WorkspacePath + "/given"}, driver.WorkspacePath)...)
	if n := len(slices.DeleteFunc(slices.Clone(inside), func(a attempt) bool { return a.Detail != "given" })); n < 10 {
		t.Errorf("only %d of %d ways lead to a file that is inside, so the rest proves nothing: %v", n, len(inside), inside)
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != marker {
		t.Errorf("%q %v", got, err)
	}
}

// attacks 6: what was opened for reading is not reopened for writing, on no
// read-only mount and nowhere in the system.
func TestReadOnlyStaysReadOnly(t *testing.T) {
	t.Parallel()
	prepare(t)
	mounts := allMounts(t, "/nowhere")
	b := place(t, nil, mounts.layout)
	var before []string
	for _, dir := range mounts.sources[len(mounts.writable):] {
		before = append(before, listing(t, dir)...)
	}
	files := append(given(mounts.readOnly), "/usr/bin/env", "/etc/passwd", "/proc/sys/kernel/hostname")
	attack(t, b, "reopen", files...).blocked(t, "EROFS", "EACCES", "EPERM", "EBADF", "EINVAL", "ENOENT", "EXDEV", "EOPNOTSUPP", "ENODEV", "EIO")
	var after []string
	for _, dir := range mounts.sources[len(mounts.writable):] {
		after = append(after, listing(t, dir)...)
	}
	same(t, "read-only sources", before, after)
	control := attack(t, b, "reopen", mounts.writable[0]+"/given").of("write by read")
	if len(control) != 1 || control[0].Errno != "" {
		t.Errorf("in a writable mount: %v, so the rest proves nothing", control)
	}
}

// attacks 6, the other half: a file of the host's that is given as input is copied,
// not handed over.
func TestInputIsNoDescriptorOfTheHost(t *testing.T) {
	t.Parallel()
	b := shared(t)
	name := filepath.Join(hostDir(t), "input")
	put(t, name, "input")
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := b.Exec(bounded(t), berm.Command{Stdin: f, Args: []string{"sh", "-c",
		`readlink /proc/self/fd/0; (echo x > /proc/self/fd/0) 2>/dev/null; (: > /dev/stdin) 2>/dev/null; cat`}})
	if err != nil || !res.Success() {
		t.Fatalf("%v %v", res, err)
	}
	kind, rest, _ := strings.Cut(string(res.Stdout), "\n")
	// What is written to one's own pipe comes back, before or after the rest.
	if kind, _, _ = strings.Cut(kind, "["); kind != "pipe:" && kind != "socket:" || !strings.Contains(rest, "input") {
		t.Errorf("inside: %q", res.Stdout)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "input" {
		t.Errorf("the host's file: %q %v", got, err)
	}
}

// process-tier 1.7 "Hard link from outside: EXDEV", behaviours D 32: nothing crosses
// from one mount into another but by copying.
func TestNothingIsLinkedAcrossMounts(t *testing.T) {
	t.Parallel()
	prepare(t)
	mounts := allMounts(t, "/nowhere")
	b := place(t, nil, mounts.layout)
	args := append(given(mounts.paths()), "/usr/bin/env", "/etc/passwd", "/proc/self/exe", "/tmp/attack", "--")
	v := attack(t, b, "cross-links", append(args, mounts.writable...)...)
	v.blocked(t, "EXDEV", "EROFS", "EBUSY", "EPERM", "ENOENT", "EACCES", "ELOOP")
	for _, a := range v.of("link " + mounts.readOnly[0]) {
		if a.Errno != "EXDEV" {
			t.Errorf("%s: %s", a.Name, a.Errno)
		}
	}
	if got := sh(t, b, `ln given control && stat -c %h given`); got != "2\n" {
		t.Errorf("within one mount: %q, so the rest proves nothing", got)
	}
	for _, dir := range mounts.sources {
		if found, _ := filepath.Glob(dir + "/crossed-*"); len(found) > 0 {
			t.Errorf("on the host: %v", found)
		}
	}
}

// process-tier 1.7 "mv .git, rm of pinned dirs: EBUSY", "remount / rw": mount points
// stay where they are, with what is in them.
func TestMountPointsStay(t *testing.T) {
	t.Parallel()
	prepare(t)
	mounts := allMounts(t, "/nowhere")
	b := place(t, nil, mounts.layout)
	points := append(mounts.paths(), "/tmp", "/home/user", "/dev/shm", "/etc", "/usr", "/proc", "/dev", "/run")
	attack(t, b, "move-mounts", points...).blocked(t, "EBUSY", "EROFS", "EXDEV", "EISDIR", "ENOTDIR", "EINVAL", "EPERM", "EACCES", "ENOTEMPTY", "EEXIST")
	for _, p := range mounts.paths() {
		if got := sh(t, b, `cat "$1/given"`, p); got != "given" {
			t.Errorf("%s: %q", p, got)
		}
	}
}

// attacks 16, "Source swapped for a link between validation and mount": a source
// that somebody exchanges all the time is mounted as the directory that it was, or
// not at all.
func TestSourceThatIsSwapped(t *testing.T) {
	t.Parallel()
	prepare(t)
	parent, secret := hostDir(t), hostDir(t)
	put(t, filepath.Join(secret, "given"), "the host's own secret")
	source, link := filepath.Join(parent, "source"), filepath.Join(parent, "link")
	if err := errors.Join(os.Mkdir(source, 0o755), os.Symlink(secret, link)); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(source, "given"), "given")
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			if err := unix.Renameat2(unix.AT_FDCWD, source, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("swap: %v", err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	refused, mounted := 0, 0
	for i := 0; i < scaled(400) || i < 2000 && (refused == 0 || mounted == 0); i++ {
		for _, layout := range []berm.Layout{{Workdir: source}, {Uploads: berm.HostVolume(source)}} {
			sb, err := stage.provider.Create(bounded(t), berm.CreateOptions{Layout: &layout})
			if err != nil {
				if kind := errdefs.KindOf(err); kind != errdefs.Invalid && kind != errdefs.Unavailable && kind != errdefs.NotFound {
					t.Errorf("refused with %v: %v", kind, err)
				}
				refused++
				continue
			}
			mounted++
			got, err := sb.Files().ReadFile(bounded(t), driver.UploadsPath+"/given")
			if layout.Workdir != "" {
				got, err = sb.Files().ReadFile(bounded(t), driver.WorkspacePath+"/given")
			}
			if err != nil || string(got) != "given" {
				t.Errorf("mounted: %q %v", got, err)
			}
			destroyed(t, sb)
		}
	}
	close(stop)
	swapping.Wait()
	if refused == 0 || mounted == 0 {
		t.Errorf("%d times refused and %d times mounted: the swap was not met", refused, mounted)
	}
}

// attacks 16: sources that alias each other in another mode, berm's own state, and
// what is no files, by every name that they have.
func TestSourcesThatAreRefused(t *testing.T) {
	t.Parallel()
	prepare(t)
	dir := hostDir(t)
	inner := filepath.Join(dir, "inner")
	linked := filepath.Join(hostDir(t), "linked")
	state := filepath.Join(stage.dir, "state")
	if err := errors.Join(os.MkdirAll(filepath.Join(inner, "deeper"), 0o755), os.Symlink(dir, linked)); err != nil {
		t.Fatal(err)
	}
	kits, err := filepath.Glob("/dev/shm/berm-kit-*")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]berm.Layout{
		"the same directory in two modes":    {Workdir: dir, Uploads: berm.HostVolume(dir)},
		"writable below read-only":           {Workdir: inner, Uploads: berm.HostVolume(dir)},
		"read-only below writable":           {Workdir: dir, Uploads: berm.HostVolume(inner)},
		"read-only at its own path below it": {Outputs: berm.HostVolume(dir), ReadOnly: []string{inner}},
		"skill in outputs": {Outputs: berm.HostVolume(dir), Skills: []berm.Skill{
			{ID: "s", Source: berm.Source{HostDir: &berm.HostDir{HostPath: filepath.Join(inner, "deeper")}}},
		}},
		"a link":                 {Workdir: linked},
		"through a link":         {Workdir: filepath.Join(linked, "inner")},
		"own state":              {Workdir: state},
		"below own state":        {Uploads: berm.HostVolume(filepath.Join(state, "sandboxes"))},
		"above own state":        {Workdir: stage.dir},
		"own state, read-only":   {ReadOnly: []string{state}},
		"processes":              {Uploads: berm.HostVolume("/proc")},
		"a process":              {Uploads: berm.HostVolume(fmt.Sprintf("/proc/%d/root", os.Getpid()))},
		"descriptors":            {Uploads: berm.HostVolume("/proc/self/fd")},
		"devices":                {Uploads: berm.HostVolume("/dev")},
		"shared memory":          {Workdir: "/dev/shm"},
		"cgroups":                {Uploads: berm.HostVolume("/sys/fs/cgroup")},
		"nested inside":          {Workdir: dir, Outputs: &berm.Volume{Source: berm.Source{HostDir: &berm.HostDir{HostPath: dir}}, Path: driver.WorkspacePath + "/x"}},
		"over the sandbox's etc": {Outputs: &berm.Volume{Source: berm.Source{HostDir: &berm.HostDir{HostPath: dir}}, Path: "/etc"}},
	}
	for i, kit := range kits {
		cases[fmt.Sprint("a driver's kit ", i)] = berm.Layout{Workdir: kit}
	}
	if len(kits) == 0 {
		t.Error("no driver has a kit in shared memory, so that cannot be tried")
	}
	before := listing(t, dir)
	for name, layout := range cases {
		sb, err := stage.provider.Create(bounded(t), berm.CreateOptions{Layout: &layout})
		if err == nil {
			destroyed(t, sb)
			t.Errorf("%s is mounted", name)
			continue
		}
		if kind := errdefs.KindOf(err); kind != errdefs.Invalid && kind != errdefs.Unsupported {
			t.Errorf("%s: %v %v", name, kind, err)
		}
	}
	same(t, "after the refusals", before, listing(t, dir))
}

// The state directory behind a link is still berm's own by its real name.
func TestStateBehindALink(t *testing.T) {
	t.Parallel()
	prepare(t)
	dir := hostDir(t)
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink(real, link)); err != nil {
		t.Fatal(err)
	}
	p := opened(t, func(c *berm.Config) { c.StateDir = filepath.Join(link, "state") })
	for _, source := range []string{real, link, dir, filepath.Join(real, "state"), filepath.Join(real, "state", "sandboxes")} {
		sb, err := p.Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Workdir: source}})
		if err == nil {
			destroyed(t, sb)
		}
		if !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// attacks 16, "a socket inside uploads": it can be connected to although the mount is
// read-only, and every posture says so.
func TestSocketInAMountIsStated(t *testing.T) {
	t.Parallel()
	prepare(t)
	uploads := hostDir(t)
	l, err := net.Listen("unix", filepath.Join(uploads, "s"))
	if err != nil {
		t.Skipf("the path is too long for a socket here: %v", err)
	}
	defer l.Close()
	if err := os.Chmod(filepath.Join(uploads, "s"), 0o777); err != nil {
		t.Fatal(err)
	}
	b := place(t, nil, berm.Layout{Uploads: berm.HostVolume(uploads)})
	if notes := strings.Join(b.Posture().Notes, "; "); !strings.Contains(notes, "unix socket that lies in a mounted directory can be connected to") {
		t.Errorf("the posture does not say it: %s", notes)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.CopyN(conn, conn, 1)
		_ = conn.Close()
	})
	attack(t, b, "connect", "unix "+driver.UploadsPath+"/s").succeeded(t)
	_ = l.Close()
	serving.Wait()
}

// Names of directories that a mount table, a log or an option list takes for
// something else are mounted as they are, and shown escaped.
func TestSourcesWithOddNames(t *testing.T) {
	t.Parallel()
	prepare(t)
	parent := hostDir(t)
	for _, name := range []string{
		"line\nfeed", "a b", "tab\tx", "back\\134slash", "quote\"'", "\x1b[31mred", "\ufffd\ufffd", "\xff\xfe", "--bind", "-", "$(id)", "a,b:c=d", strings.Repeat("n", 255), "\u202e",
	} {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, "given"), name)
		sb, err := stage.provider.Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Workdir: dir}})
		if err != nil {
			// A root caller's launcher is told in JSON, which holds no other bytes.
			if utf8.ValidString(name) || errdefs.KindOf(err) != errdefs.Invalid {
				t.Errorf("%q: %v", name, err)
			}
			continue
		}
		if got, err := sb.Files().ReadFile(bounded(t), "given"); err != nil || !bytes.Equal(got, []byte(name)) {
			t.Errorf("%q: %q %v", name, got, err)
		}
		destroyed(t, sb)
		_, err = stage.provider.Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Workdir: dir + "/none\x1b[2J"}})
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%q: the error is not escaped: %q", name, err)
		}
	}
}
