package archtest_test

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const module = "github.com/berm-dev/berm"

// goFile is one parsed source file.
type goFile struct {
	// path is relative to the root, with slashes; dir is its folder, "." for the
	// root.
	path, dir string
	test      bool
	lines     int
	syntax    *ast.File
}

// tree is the repository as the rules see it: without generated code and
// without testdata.
type tree struct {
	root  string
	fset  *token.FileSet
	files []goFile
}

var load = sync.OnceValues(func() (*tree, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	tr := &tree{root: root, fset: token.NewFileSet()}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := relative(root, name)
		if entry.IsDir() {
			if rel != "." && outside(rel) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		return tr.add(name, rel)
	})
	return tr, err
})

func (tr *tree) add(name, rel string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	syntax, err := parser.ParseFile(tr.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	tr.files = append(tr.files, goFile{
		path: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
		lines: bytes.Count(text, []byte("\n")), syntax: syntax,
	})
	return nil
}

// outside says which folders hold no code of the house.
func outside(rel string) bool {
	base := path.Base(rel)
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "bin" || rel == "internal/gen"
}

func relative(root, name string) string {
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return name
	}
	return filepath.ToSlash(rel)
}

func repository(t *testing.T) *tree {
	t.Helper()
	tr, err := load()
	if err != nil {
		t.Fatalf("read the repository: %v", err)
	}
	return tr
}

// sources are the files that are no tests.
func (tr *tree) sources() []goFile {
	return slices.DeleteFunc(slices.Clone(tr.files), func(f goFile) bool { return f.test })
}

// folders lists the folders with source files, sorted.
func (tr *tree) folders() []string {
	var out []string
	for _, f := range tr.sources() {
		out = append(out, f.dir)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// line tells where a node is, for messages.
func (tr *tree) line(n ast.Node) string {
	pos := tr.fset.Position(n.Pos())
	return pos.Filename + ":" + strconv.Itoa(pos.Line)
}

// span counts a node's lines.
func (tr *tree) span(n ast.Node) int {
	return tr.fset.Position(n.End()).Line - tr.fset.Position(n.Pos()).Line + 1
}

// imports lists the paths that a file imports.
func imports(f goFile) []string {
	var out []string
	for _, spec := range f.syntax.Imports {
		if name, err := strconv.Unquote(spec.Path.Value); err == nil {
			out = append(out, name)
		}
	}
	return out
}

// command runs a program in the repository's root and gives its output.
func command(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = repository(t).root
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		detail := ""
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			detail = string(exit.Stderr)
		}
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, detail)
	}
	return string(out)
}

// compare holds a list against a committed file, one entry a line. With UPDATE=1
// it writes the file.
func compare(t *testing.T, name string, got []string, hint string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := lines(t, file)
	for _, entry := range got {
		if !slices.Contains(want, entry) {
			t.Errorf("%s: %q is new: %s", name, entry, hint)
		}
	}
	for _, entry := range want {
		if !slices.Contains(got, entry) {
			t.Errorf("%s: %q is gone; UPDATE=1 rewrites the file", name, entry)
		}
	}
}

// lines reads a file's lines without empty ones and comments.
func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}
