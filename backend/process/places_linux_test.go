package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestKitPlaceIsTrusted: a directory whose entries others can rename is no place
// for what every sandbox takes for its /etc.
func TestKitPlaceIsTrusted(t *testing.T) {
	t.Parallel()
	if place, _, public := kitPlace(sharedMemory, "/own"); place != sharedMemory || !public {
		t.Skipf("this host has no usual %s", sharedMemory)
	}
	dir, err := os.MkdirTemp(sharedMemory, "berm-test-place-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if place, _, _ := kitPlace(dir, "/own"); place != "/own" {
		t.Errorf("%s is used", place)
	}
}

func TestLeasesWantAPrivatePlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	loose, link := filepath.Join(dir, "loose"), filepath.Join(dir, "link")
	for _, err := range []error{os.Mkdir(loose, 0o700), os.Chmod(loose, 0o777), os.Symlink(dir, link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, place := range []string{loose, link} {
		if err := leasesPlace(place); err == nil {
			t.Errorf("%s is used", place)
		}
	}
	if err := leasesPlace(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
}

func TestAUIDWithAProcessIsNotLeased(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a process of another uid needs root")
	}
	// A range that no other test and no default uses.
	const base = 1_899_200_000
	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: base, Gid: base}}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	}()
	l, err := newLeases(t.TempDir(), base, 2)
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.take(t.Context())
	if err != nil || got.uid != base+1 {
		t.Errorf("leased %v, %v", got, err)
	}
}
