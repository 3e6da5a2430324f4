//go:build linux

package attack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
)

// process-tier 1.7 weak 8 and section 2 "srt 294; cx 17625": two sandboxes of one
// caller share nothing, by all names that processes find each other by.
func TestTwoSandboxesShareNothing(t *testing.T) {
	t.Parallel()
	prepare(t)
	one, other := place(t, nil, berm.Layout{}), place(t, nil, berm.Layout{})
	offered, stop := hold(t, one, "offer")
	defer stop()
	offered.succeeded(t)
	// The control: in the same sandbox all of it is found.
	attack(t, one, "find").succeeded(t)
	attack(t, other, "find").blocked(t, "ENOENT", "ECONNREFUSED", "ESRCH")
	// The second can have the same names.
	again, stop2 := hold(t, other, "offer")
	defer stop2()
	again.succeeded(t)
}

// process-tier 1.7 weak 14, section 2 "srt 294": each sandbox has a /tmp of its own
// that works, for everything that is told to use one.
func TestEachSandboxHasATemporaryFolder(t *testing.T) {
	t.Parallel()
	b := shared(t)
	got := sh(t, b, `set -e
test "$TMPDIR" = /tmp; stat -c %a /tmp; f=$(mktemp); echo x > $f; d=$(mktemp -d); touch $d/y; mkfifo $d/jobserver; (echo token > $d/jobserver) & read -r token < $d/jobserver; echo $token
case $f in /tmp/*) echo there;; esac; rm -r $f $d`)
	if got != "1777\ntoken\nthere\n" {
		t.Errorf("%q", got)
	}
	// A folder for temporary files of the host's is not the sandbox's.
	if dir := os.Getenv("TMPDIR"); dir != "" && dir != "/tmp" {
		if _, err := b.Files().Stat(bounded(t), dir); err == nil {
			t.Errorf("%s of the host is inside", dir)
		}
	}
}

// process-tier 1.7 weak 3 to 5 and section 2 "cx 7071, 19786", "cc 25603", "srt 221":
// srt forbids writes to names such as .git/hooks, finds them by a search, and makes
// what is missing. In berm a mount is writable as a whole or not at all: nothing is
// searched for, at any depth, nothing is made, and git works, also in repositories
// in repositories, in worktrees and in ignored folders.
func TestRepositoriesNeedNoStubs(t *testing.T) {
	t.Parallel()
	prepare(t)
	if _, err := exec.LookPath("git"); err != nil || !strings.HasPrefix(mustPath(t, "git"), "/usr/") {
		t.Skip("git is not installed below /usr, which is what a sandbox sees")
	}
	dir := hostDir(t)
	b := place(t, nil, berm.Layout{Workdir: dir})
	git := `git -c user.name=n -c user.email=e@example.com -c init.defaultBranch=main `
	sh(t, b, `set -e
`+git+`init -q . && echo ignored > .gitignore && echo x > file && git add . && `+git+`commit -qm one
git worktree add -q tree && (cd tree && echo y > file && git add . && `+git+`commit -qm two)
mkdir -p ignored/deep/er && cd ignored/deep/er && `+git+`init -q . && echo z > f && git add . && `+git+`commit -qm three`)
	before := listing(t, dir)
	for _, line := range before {
		for _, stub := range []string{".gitconfig", ".gitmodules", ".bashrc", ".profile", ".mcp.json", ".vscode", ".idea", ".ripgreprc", "commondir.lock"} {
			if strings.Contains(line, "/"+stub+"\"") {
				t.Errorf("nobody asked for %s", line)
			}
		}
	}
	// Another sandbox, with the repository read-only, changes nothing and still works.
	ro := place(t, nil, berm.Layout{Uploads: berm.HostVolume(dir)})
	got := sh(t, ro, `cd "$1" && git -c safe.directory='*' log --format=%s && git -c safe.directory='*' -C ignored/deep/er log --format=%s && for n in .git/config .git/hooks/x .bashrc tree/.git; do (echo x >> $n) 2>/dev/null && echo wrote $n; done; true`,
		driver.UploadsPath)
	if got != "one\nthree\n" {
		t.Errorf("%q", got)
	}
	same(t, "by a sandbox that reads", before, listing(t, dir))
}

// mustPath is where a program really is.
func mustPath(t *testing.T, name string) string {
	t.Helper()
	found, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	real, err := filepath.EvalSymlinks(found)
	if err != nil {
		return ""
	}
	return real
}
