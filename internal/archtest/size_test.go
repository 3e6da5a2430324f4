package archtest_test

import (
	"go/ast"
	"testing"
)

// The ceilings. Half of the code should be far below them.
const (
	maxFileLines     = 500
	maxFunctionLines = 60
)

// larger names what may be larger, "file" or "file:Function", with the reason.
var larger = map[string]string{}

func TestFileSizes(t *testing.T) {
	t.Parallel()
	for _, f := range repository(t).files {
		if _, excused := larger[f.path]; f.lines > maxFileLines && !excused {
			t.Errorf("%s has %d lines, more than %d", f.path, f.lines, maxFileLines)
		}
	}
}

func TestFunctionSizes(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	for _, f := range tr.sources() {
		for _, decl := range f.syntax.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			// The comment above does not count.
			size := tr.fset.Position(d.End()).Line - tr.fset.Position(d.Type.Pos()).Line + 1
			if _, excused := larger[f.path+":"+d.Name.Name]; size > maxFunctionLines && !excused {
				t.Errorf("%s: %s has %d lines, more than %d", tr.line(d), d.Name.Name, size, maxFunctionLines)
			}
		}
	}
}

// TestExcusesAreUsed: an excuse goes with its cause, and has a reason.
func TestExcusesAreUsed(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	known := map[string]bool{}
	for _, f := range tr.files {
		known[f.path] = f.lines > maxFileLines
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok {
				known[f.path+":"+d.Name.Name] = tr.span(d) > maxFunctionLines
			}
		}
	}
	for name, why := range larger {
		if !known[name] || why == "" {
			t.Errorf("excuse %q is not needed or has no reason", name)
		}
	}
}
