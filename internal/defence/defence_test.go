package defence_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berm-dev/berm/internal/defence"
)

const root = "../.."

// switches lists, by the name of its constant, the files in which a defence is
// asked for, and the constants' values.
func switches(t *testing.T) (files map[string][]string, values map[string]string) {
	t.Helper()
	files, values = map[string][]string{}, map[string]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(root, name)
		switch {
		case err != nil || relErr != nil:
			return err
		case entry.IsDir() && (rel == "tools" || rel == "bin" || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && rel != "."):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "defence" && !slices.Contains(files[n.Sel.Name], rel) {
					files[n.Sel.Name] = append(files[n.Sel.Name], rel)
				}
			case *ast.ValueSpec:
				if kind, ok := n.Type.(*ast.Ident); ok && kind.Name == "Defence" && rel == "internal/defence/names.go" {
					literal, _ := n.Values[0].(*ast.BasicLit)
					values[n.Names[0].Name], err = strconv.Unquote(literal.Value)
				}
			}
			return err == nil
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, values
}

// TestEveryDefenceIsInTheTable: there is one row for each name, with everything in
// it, and the switch is where the row says.
func TestEveryDefenceIsInTheTable(t *testing.T) {
	t.Parallel()
	files, values := switches(t)
	rows := map[defence.Defence]defence.Entry{}
	wellFormed := regexp.MustCompile(`^[a-z]+:[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, e := range defence.Table() {
		if _, twice := rows[e.Name]; twice {
			t.Errorf("%s has two rows", e.Name)
		}
		rows[e.Name] = e
		if !wellFormed.MatchString(string(e.Name)) || e.Keeps == "" || len(e.Proofs) == 0 {
			t.Errorf("the row of %s is not whole: %+v", e.Name, e)
		}
	}
	for constant, value := range values {
		e, ok := rows[defence.Defence(value)]
		switch {
		case !ok:
			t.Errorf("%s has no row", constant)
		case !slices.Contains(files[constant], e.Where):
			t.Errorf("the switch of %s is in %v, not in %s", constant, files[constant], e.Where)
		}
		delete(rows, defence.Defence(value))
	}
	for name := range rows {
		t.Errorf("the row of %s is of no constant", name)
	}
}

// TestProofsExist: the table names tests that are there.
func TestProofsExist(t *testing.T) {
	t.Parallel()
	sources := map[string]string{}
	for _, e := range defence.Table() {
		for _, p := range e.Proofs {
			if _, known := sources[p.Package]; !known {
				found, err := filepath.Glob(filepath.Join(root, p.Package, "*_test.go"))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range found {
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					sources[p.Package] += string(text)
				}
			}
			for one := range strings.SplitSeq(p.Run, "|") {
				name, _, _ := strings.Cut(one, "/")
				if !strings.Contains(sources[p.Package], "func "+name+"(") {
					t.Errorf("%s: %s has no %s", e.Name, p.Package, name)
				}
			}
		}
	}
}

// TestReleaseHasNoSwitch: what is built as the Makefile does has none of the names
// in it, and so no switch; a build for mutants, the control, has.
func TestReleaseHasNoSwitch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, pkg := range []string{"berm-agent", "berm"} {
		release := build(t, dir, pkg, "-trimpath", "-ldflags", "-s -w")
		for _, e := range defence.Table() {
			if bytes.Contains(release, []byte(e.Name)) {
				t.Errorf("%s has %q in it", pkg, e.Name)
			}
		}
		if bytes.Contains(release, []byte("internal/defence.off")) {
			t.Errorf("%s has the switch's variable", pkg)
		}
	}
	mutant := build(t, dir, "berm-agent", "-tags", "berm_mutants")
	if name := defence.AgentNotDumpable; !bytes.Contains(mutant, []byte(name)) {
		t.Errorf("the control: a build with switches does not have %q either", name)
	}
}

func build(t *testing.T, dir, pkg string, args ...string) []byte {
	t.Helper()
	out := filepath.Join(dir, pkg)
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"build", "-o", out}, args...), "./cmd/"+pkg)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, text)
	}
	program, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// TestNothingIsOff: not in this build.
func TestNothingIsOff(t *testing.T) {
	t.Parallel()
	for _, e := range defence.Table() {
		if e.Name.Off() {
			t.Errorf("%s is off", e.Name)
		}
	}
}
