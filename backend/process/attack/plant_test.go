//go:build linux

package attack_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// outputsOf makes a sandbox whose working directory is a host directory that
// belongs, for a root caller, to somebody else.
func outputsOf(t *testing.T) (b *box, dir string, owner int) {
	t.Helper()
	dir, owner = hostDir(t), os.Geteuid()
	if owner == 0 {
		owner = 1001
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	return place(t, nil, berm.Layout{Outputs: berm.HostVolume(dir)}), dir, owner
}

// cleanOnHost checks that nothing below a directory has a set-id bit, is a device or a
// whiteout, or belongs to anybody but owner, and counts what is there.
func cleanOnHost(t *testing.T, dir string, owner int) int {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrPermission) { // a folder that is closed has been looked at itself
			return err
		}
		var s unix.Stat_t
		if err := unix.Lstat(name, &s); err != nil {
			return err
		}
		n++
		if s.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Errorf("%s has mode %o on the host", name, s.Mode)
		}
		if kind := s.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
			t.Errorf("%s is a device on the host", name)
		}
		if int(s.Uid) != owner {
			t.Errorf("%s belongs to %d, want %d", name, s.Uid, owner)
		}
		if text := attributes(name); strings.Contains(text, "security.") || strings.Contains(text, "trusted.") {
			t.Errorf("%s has attributes %s", name, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// attacks 5 and "setuid file, FIFO, socket, c 0,0": no way to make a set-id file or
// a device is left, and what can be made belongs to the directory's owner.
func TestNoSetIDFileAndNoDeviceReachesTheHost(t *testing.T) {
	t.Parallel()
	b, dir, owner := outputsOf(t)
	for _, d := range []string{driver.OutputsPath, "/tmp"} {
		v := attack(t, b, "set-id", d)
		for _, a := range v {
			// openat2 is not there; a mode that is not looked at is no way either.
			if a.Errno == "" {
				t.Errorf("%s succeeded in %s", a.Name, d)
			}
		}
		attack(t, b, "nodes", d).blocked(t, "EPERM", "EINVAL")
	}
	sh(t, b, `ls -ln /tmp | grep -c '^[-d]..[sS]' | grep -qx 0`)
	if n := cleanOnHost(t, dir, owner); n < 5 {
		t.Errorf("only %d files are there, so nothing was tried", n)
	}
	// The control: on the host nothing forbids most of it.
	free := slices.DeleteFunc(onHost(t, "set-id", hostDir(t)), func(a attempt) bool { return a.Errno != "" })
	if len(free) < 20 {
		t.Errorf("on the host only %d ways succeed, so the rest proves little: %v", len(free), free)
	}
	onHost(t, "nodes", hostDir(t)).of("whiteout by rename").succeeded(t)
}

// The same by the programs that everybody has.
func TestNoSetIDFileByPrograms(t *testing.T) {
	t.Parallel()
	b, dir, owner := outputsOf(t)
	sh(t, b, `cp /bin/true a; chmod u+s a; chmod 6755 a; install -m 4755 a b; mkdir -m 2755 d; chmod g+s d; mkdir d/e; cp -p a c
(umask 0; mkdir -p m; chmod 7777 m); cp -a /usr/bin/passwd /usr/bin/su . ; tar -C / -cpf - usr/bin/su | tar -xpf - ; mknod null c 1 3; mknod disk b 8 0; setfacl -m u:0:rwx a; setcap cap_sys_admin+ep a; true`)
	if n := cleanOnHost(t, dir, owner); n < 6 {
		t.Errorf("only %d files are there", n)
	}
}

// attacks "FIFO, socket, absolute and outward links in outputs: collection neither
// hangs nor follows": by every way to read, write, list and remove.
func TestPlantedFilesNeitherHangNorLead(t *testing.T) {
	t.Parallel()
	prepare(t)
	const marker = "the host's own secret"
	secret := hostDir(t)
	put(t, filepath.Join(secret, "given"), marker)
	b, dir, owner := outputsOf(t)
	attack(t, b, "plant", driver.OutputsPath, filepath.Join(secret, "given"), secret)
	attack(t, b, "odd-names", driver.OutputsPath).succeeded(t)
	cleanOnHost(t, dir, owner)
	names, err := os.ReadDir(dir) // the host's own view: more than ReadDir below may show
	if err != nil {
		t.Fatal(err)
	}
	entries, err := b.Files().ReadDir(bounded(t), ".")
	if err != nil || len(entries) < len(names)-10 {
		t.Errorf("listed %d of %d: %v", len(entries), len(names), err)
	}
	for _, e := range names {
		touchEverything(t, b, e.Name(), marker)
	}
	walked := 0
	err = fs.WalkDir(b.FS(bounded(t), "."), ".", func(_ string, _ fs.DirEntry, err error) error {
		walked++
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	})
	if err != nil || walked < len(entries) {
		t.Errorf("walked over %d: %v", walked, err)
	}
	if got, err := os.ReadFile(filepath.Join(secret, "given")); err != nil || string(got) != marker {
		t.Errorf("the host's file: %q %v", got, err)
	}
	alive(t, b)
}

// touchEverything tries one name by every call, each of which has to end in time and
// not with the host's content.
func touchEverything(t *testing.T, b *box, name, marker string) {
	t.Helper()
	files := b.Files()
	for what, call := range map[string]func() ([]byte, error){
		"stat":  func() ([]byte, error) { _, err := files.Stat(bounded(t), name); return nil, err },
		"lstat": func() ([]byte, error) { _, err := files.Lstat(bounded(t), name); return nil, err },
		"read link": func() ([]byte, error) {
			text, err := files.ReadLink(bounded(t), name)
			return []byte(text), err
		},
		"list": func() ([]byte, error) { _, err := files.ReadDir(bounded(t), name); return nil, err },
		"open": func() ([]byte, error) {
			r, err := files.Open(bounded(t), name)
			if err != nil {
				return nil, err
			}
			defer r.Close()
			return io.ReadAll(io.LimitReader(r, 4096))
		},
		"read by FS": func() ([]byte, error) {
			f, err := b.FS(bounded(t), ".").Open(name)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			return io.ReadAll(io.LimitReader(f, 4096))
		},
	} {
		began := time.Now()
		data, err := call()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s of %q took %v", what, name, took)
		}
		if strings.Contains(string(data), marker) {
			t.Errorf("%s of %q gave the host's file", what, name)
		}
		var known *errdefs.Error
		// A directory that is opened by FS says so when it is read, without berm.
		if err != nil && !errors.As(err, &known) && what != "read by FS" {
			t.Errorf("%s of %q: %T %v", what, name, err, err)
		}
		if err != nil && what != "read by FS" && strings.ContainsAny(err.Error(), "\x1b\n\x07") {
			t.Errorf("%s of %q: the error is not escaped: %q", what, name, err)
		}
	}
}

// attacks 15: content is written to planted names, and trees with them removed,
// without following.
func TestPlantedFilesAreNotWrittenThrough(t *testing.T) {
	t.Parallel()
	b, dir, owner := outputsOf(t)
	secret := hostDir(t)
	put(t, filepath.Join(secret, "given"), "kept")
	attack(t, b, "plant", driver.OutputsPath, filepath.Join(secret, "given"), secret)
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range names {
		began := time.Now()
		err := b.Files().WriteFile(bounded(t), e.Name(), []byte("new"), 0o644)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("to write %q took %v: %v", e.Name(), took, err)
		}
	}
	cleanOnHost(t, dir, owner)
	for _, e := range names {
		if err := b.Files().RemoveAll(bounded(t), e.Name()); err != nil {
			t.Errorf("remove %q: %v", e.Name(), err)
		}
	}
	if left, err := os.ReadDir(secret); err != nil || len(left) != 1 {
		t.Errorf("the host's folder: %v %v", left, err)
	}
	if got, err := os.ReadFile(filepath.Join(secret, "given")); err != nil || string(got) != "kept" {
		t.Errorf("the host's file: %q %v", got, err)
	}
	alive(t, b)
}

// attacks 21, "deep trees, 100,000 files": trees that overflow what walks them, and
// the host's memory while it looks.
func TestTreesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	b, dir, _ := outputsOf(t)
	depth, count := scaled(24_000), scaled(100_000)
	sh(t, b, `mkdir deep /tmp/wide`)
	// The host's disk is what takes the time.
	attack(t, b, "deep", driver.OutputsPath+"/deep", fmt.Sprint(depth/4)).succeeded(t)
	sh(t, b, `mkdir /tmp/deep`)
	attack(t, b, "deep", "/tmp/deep", fmt.Sprint(depth)).succeeded(t)
	attack(t, b, "many", "/tmp/wide", fmt.Sprint(count)).succeeded(t)
	peak := heapPeak(t, func() {
		entries, err := b.Files().ReadDir(bounded(t), "/tmp/wide")
		if len(entries) != count && !errors.Is(err, errdefs.Exhausted) {
			t.Errorf("%d entries of %d: %v", len(entries), count, err)
		}
		long := "/tmp/deep" + strings.Repeat("/d", depth)
		if _, err := b.Files().Stat(bounded(t), long); err == nil {
			t.Errorf("a path of %d bytes was found, longer than the kernel takes", len(long))
		}
	})
	if peak > 256<<20 {
		t.Errorf("the host's memory grew by %d MiB", peak>>20)
	}
	for _, name := range []string{"deep", "/tmp/deep", "/tmp/wide"} {
		if err := b.Files().RemoveAll(bounded(t), name); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
		if _, err := b.Files().Lstat(bounded(t), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("on the host: %v %v", left, err)
	}
}

// Files of terabytes that cost nothing to make: the host reads what it asked for.
func TestSparseFilesDoNotFillTheHost(t *testing.T) {
	t.Parallel()
	b, _, _ := outputsOf(t)
	sh(t, b, `truncate -s 4T sparse`)
	peak := heapPeak(t, func() {
		if data, err := b.Files().ReadFile(bounded(t), "sparse"); !errors.Is(err, errdefs.Exhausted) {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		if data, err := fs.ReadFile(b.FS(bounded(t), "."), "sparse"); !errors.Is(err, errdefs.Exhausted) {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		r, err := b.Files().Open(bounded(t), "sparse")
		if err != nil {
			t.Error(err)
			return
		}
		n, err := io.CopyN(io.Discard, r, 8<<20)
		if n != 8<<20 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		began := time.Now()
		if err := r.Close(); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("close after %v: %v", time.Since(began), err)
		}
	})
	if peak > 128<<20 {
		t.Errorf("the host's memory grew by %d MiB", peak>>20)
	}
	alive(t, b)
}

// heapPeak gives by how many bytes the heap in use grew at most while f ran. Other
// tests run beside: bounds have to leave room for them.
func heapPeak(t *testing.T, f func()) int64 {
	t.Helper()
	heap := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	runtime.GC()
	before := heap()
	var peak atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			peak.Store(max(peak.Load(), heap()))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return peak.Load() - before
}

// The host can always open, read and write what lies in shared directories,
// whatever locks and leases are held on it inside.
func TestLocksDoNotHoldUpTheHost(t *testing.T) {
	t.Parallel()
	prepare(t)
	outputs, uploads := hostDir(t), hostDir(t)
	out, up := filepath.Join(outputs, "given"), filepath.Join(uploads, "given")
	put(t, out, "given")
	put(t, up, "given")
	b := place(t, nil, berm.Layout{Outputs: berm.HostVolume(outputs), Uploads: berm.HostVolume(uploads)})
	v, release := hold(t, b, "locks", driver.OutputsPath+"/given", driver.UploadsPath+"/given")
	defer release()
	v.of("lease").blocked(t, "EINVAL")
	for _, name := range []string{out, up} {
		began := time.Now()
		data, err := os.ReadFile(name)
		if err != nil || string(data) != "given" {
			t.Errorf("%s: %q %v", name, data, err)
		}
		if err := os.WriteFile(name, []byte("given"), 0o644); err != nil {
			t.Error(err)
		}
		if err := os.Truncate(name, 5); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > liveness {
			t.Errorf("%s: the host waited %v", name, took)
		}
	}
	// The control: without the filter leases are to be had on this file system.
	mine := filepath.Join(hostDir(t), "mine")
	put(t, mine, "")
	if lease := onHost(t, "locks", mine).of("lease for writing"); len(lease) != 1 || lease[0].Errno != "" {
		t.Logf("there are no leases on this file system (%v), so it is not they that were refused", lease)
	}
}
