package drivertest

import (
	"path"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func workdirGroup() group {
	return group{name: "workdir", behaviours: []behaviour{
		{"default", workdirDefault},
		{"given", workdirGiven},
		{"missing", workdirMissing},
	}}
}

func workdirDefault(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	if got := sh(t, sb, "pwd -P"); got != sb.WorkDir()+"\n" {
		t.Errorf("pwd is %q, WorkDir %q", got, sb.WorkDir())
	}
	if s.declared(t).ContainedPaths && sb.WorkDir() != driver.OutputsPath {
		t.Errorf("WorkDir is %q, want %q", sb.WorkDir(), driver.OutputsPath)
	}
	sh(t, sb, ": > here && rm here")
}

// workdirGiven: an absolute directory, and one below the default; names with
// characters that mean something to a shell are only names.
func workdirGiven(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, name := range []string{"sub", "a b", "; touch ran", "$(touch ran)", "-n", "ü"} {
		if err := sb.Files().Mkdir(bounded(t), path.Join(sb.WorkDir(), name), 0o755); err != nil {
			t.Fatal(err)
		}
		want := path.Join(sb.WorkDir(), name)
		for _, dir := range []string{want, "./" + name} {
			res := exited(t, sb, 0, berm.Command{Args: []string{"pwd", "-P"}, Dir: dir})
			if got := strings.TrimSuffix(string(res.Stdout), "\n"); got != want {
				t.Errorf("Dir %q: pwd is %q", dir, got)
			}
		}
	}
	if exists(t, sb, "ran") {
		t.Error("a directory's name was executed")
	}
}

// workdirMissing: without its directory nothing of the command runs.
func workdirMissing(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	file := path.Join(sb.WorkDir(), "file")
	if err := sb.Files().WriteFile(bounded(t), file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	marker := path.Join(sb.WorkDir(), "ran")
	for _, dir := range []string{"/berm/no/such/dir", "missing", file} {
		command := shell(`touch "$1"; touch "$1" & touch "$1"`, marker)
		command.Dir = dir
		res, err := sb.Exec(bounded(t), command)
		wantKind(t, err, errdefs.NotStarted)
		noExit(t, res)
	}
	if exists(t, sb, marker) {
		t.Error("a command ran without its directory")
	}
}
