package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// plant writes a file of a make-believe /etc.
func plant(t *testing.T, root, name, text string, mode os.FileMode) {
	t.Helper()
	full := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestKitHasWhatIsNeededAndNothingSecret(t *testing.T) {
	t.Parallel()
	etc, outside := t.TempDir(), t.TempDir()
	const marker = "MARKER-SECRET"
	for _, name := range []string{
		"shadow", "machine-id", "ssh/sshd_config", "npmrc", "pip.conf", "gitconfig", "environment", "sudoers",
		"ssl/private/x.pem", "ssl/certs/server.key", "pki/tls/private/y", "krb5.keytab",
	} {
		plant(t, etc, name, marker, 0o644)
	}
	plant(t, etc, "ssl/unreadable.pem", marker, 0o600)
	plant(t, outside, "secret", marker, 0o600)
	plant(t, outside, "fine", "fine", 0o644)
	plant(t, etc, "ssl/certs/ca-certificates.crt", "certs", 0o644)
	plant(t, etc, "ld.so.cache", "cache", 0o644)
	plant(t, etc, "java-17-openjdk/security/x", "java", 0o644)
	plant(t, etc, "passwd", "root:x:0:0::/root:/bin/sh\nadmin:x:1:1:"+marker+"::\n", 0o644)
	for link, target := range map[string]string{
		"alternatives/awk": "/usr/bin/mawk", "profile": filepath.Join(outside, "fine"),
		"inputrc": filepath.Join(outside, "secret"), "services": "/nowhere", "fonts": outside, "localtime": "../usr/share/zoneinfo/UTC",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(etc, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(etc, link)); err != nil {
			t.Fatal(err)
		}
	}
	parent := t.TempDir()
	k, err := makeKit("/nowhere", parent, etc)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/ssl/certs/ca-certificates.crt": "certs", "etc/ld.so.cache": "cache", "etc/java-17-openjdk/security/x": "java",
		"etc/profile": "fine", "empty": "",
	} {
		if data, err := os.ReadFile(k.path(name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if target, err := os.Readlink(k.path("etc/alternatives/awk")); err != nil || target != "/usr/bin/mawk" {
		t.Errorf("alternatives: %q, %v", target, err)
	}
	passwd, _ := os.ReadFile(k.path("etc/passwd"))
	if !strings.Contains(string(passwd), "user:x:1000:1000:user:/home/user:") {
		t.Errorf("passwd: %s", passwd)
	}
	err = filepath.WalkDir(k.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() {
			if data, _ := os.ReadFile(path); strings.Contains(string(data), marker) {
				t.Errorf("%s holds a secret", path)
			}
		}
		if info, err := d.Info(); err == nil && d.Type()&os.ModeSymlink == 0 && info.Mode().Perm()&0o004 == 0 {
			t.Errorf("%s cannot be read by another uid: %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, prefix, _ := kitPlace("/nowhere", parent)
	sweepKits(parent, prefix)
	if _, err := os.Stat(k.dir); err != nil {
		t.Errorf("the sweep took a kit in use: %v", err)
	}
	if err := k.close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(parent); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestKitsOfTheDeadAreSwept(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	_, prefix, _ := kitPlace("/nowhere", parent)
	dead := filepath.Join(parent, prefix+"dead")
	if err := os.MkdirAll(filepath.Join(dead, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	sweepKits(parent, prefix)
	if _, err := os.Stat(dead); err == nil {
		t.Error("it is still there")
	}
}

// fullMarker makes the test program play a caller whose shared memory is full.
const fullMarker = "BERM_TEST_FULL"

// TestFullSharedMemoryStopsNobody: any user can fill it.
func TestFullSharedMemoryStopsNobody(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small one")
	}
	for _, options := range []string{"mode=1777,size=64k", "mode=1777,nr_inodes=50", "mode=1777,nr_inodes=1"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCallerWithFullSharedMemory$")
		cmd.Env = append(os.Environ(), fullMarker+"="+options)
		// With this flag the runtime makes all mounts private too.
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", options, err, out)
		}
	}
}

// TestCallerWithFullSharedMemory is not a test: it is the caller of
// TestFullSharedMemoryStopsNobody.
func TestCallerWithFullSharedMemory(t *testing.T) {
	options := os.Getenv(fullMarker)
	if options == "" {
		t.Skip("it is started by another test")
	}
	if err := unix.Mount("none", sharedMemory, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	d, state := opened(t)
	if !strings.HasPrefix(d.kit.dir, state) {
		t.Errorf("the kit is in %s", d.kit.dir)
	}
	if out, _ := run(t, created(t, d, plainSpec(d)), "head -n 1 /etc/passwd"); !strings.HasPrefix(out, "root:") {
		t.Errorf("inside: %q", out)
	}
	if left, _ := os.ReadDir(sharedMemory); len(left) > 0 {
		t.Errorf("left in %s: %v", sharedMemory, left)
	}
}
