package agent_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berm-dev/berm/internal/agent"
	"github.com/berm-dev/berm/internal/boot"
)

// TestAFullFileSystemIsToldOnce: who fills it is told, whoever finds it full is
// not, and nobody is who succeeds.
func TestAFullFileSystemIsToldOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The agent's own mount namespace, and with it the mount, ends with the agent.
	prefix := []string{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", `
		mount -t tmpfs -o "size=256k,nr_inodes=$1" tmpfs "$2" && shift 2 && exec "$@"`, "sh"}
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("this user can make no mount namespace: %v %s", err, out)
	}
	for name, c := range map[string]struct{ inodes, fill, clear string }{
		"bytes": {"100", `cat /dev/zero >fill 2>/dev/null`, `rm fill`},
		// The directory itself has one.
		"files": {"9", `for i in 1 2 3 4 5 6 7 8; do : >f$i; done`, `rm f?`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := bootFor(dir)
			config.SizedPaths = []string{dir}
			in := openOwn(t, config, append(prefix, c.inodes, dir))
			told := func(want bool, script string) {
				t.Helper()
				if end := in.mustRun(t, shell(script)).end; end.GetDiskLimit() != want || end.GetProcessLimit() {
					t.Errorf("%s: %v, want %v", script, end, want)
				}
			}
			told(false, `exit 1`)
			told(false, c.fill+`; exit 0`)
			told(false, `exit 1`)
			told(false, c.clear+`; exit 1`)
			told(true, c.fill+`; exit 1`)
			told(false, c.clear)
			told(true, c.fill+`; kill -9 $$`)
			told(false, c.clear)
			told(true, c.fill+`; sleep 1; `+c.clear+`; exit 1`)
		})
	}
}

func TestASizedPathThatIsNotThereIsAFault(t *testing.T) {
	t.Parallel()
	config := bootFor(t.TempDir())
	config.SizedPaths = []string{config.Dir, filepath.Join(config.Dir, "missing")}
	if a, err := agent.New(agent.Config{Boot: boot.Config(config)}); err == nil {
		a.Close()
		t.Error("it is accepted")
	}
}
