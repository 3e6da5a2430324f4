package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// silencer is `//nolint:name[,name] // why`. Without names or without a reason
// it has no effect, so that a silencer always tells what it hides.
var silencer = regexp.MustCompile(`^//nolint:([A-Za-z0-9_,]+) // \S`)

// quiet makes an analyzer pass over generated files, lines with a silencer, and
// what the project does not hold against anybody. It changes the analyzer in
// place, because others may require it by identity.
func quiet(a *analysis.Analyzer) {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		report := pass.Report
		pass.Report = func(d analysis.Diagnostic) {
			file := fileOf(pass, d.Pos)
			if file == nil || ast.IsGenerated(file) || silenced(pass, file, d.Pos, a.Name) {
				return
			}
			if inTest(pass, file) && sourceOnly(a.Name) {
				return
			}
			if a.Name == "errcheck" && harmless(file, d.Pos) {
				return
			}
			report(d)
		}
		return run(pass)
	}
}

func fileOf(pass *analysis.Pass, pos token.Pos) *ast.File {
	for _, f := range pass.Files {
		if f.FileStart <= pos && pos <= f.FileEnd {
			return f
		}
	}
	return nil
}

// silenced looks for a silencer on the line of pos.
func silenced(pass *analysis.Pass, file *ast.File, pos token.Pos, name string) bool {
	line := pass.Fset.Position(pos).Line
	for _, group := range file.Comments {
		for _, c := range group.List {
			if pass.Fset.Position(c.Pos()).Line != line {
				continue
			}
			found := silencer.FindStringSubmatch(c.Text)
			if found == nil {
				continue
			}
			for _, n := range strings.Split(found[1], ",") {
				if strings.EqualFold(n, name) {
					return true
				}
			}
		}
	}
	return false
}

// sourceOnly names what does not hold for tests: they look at the outcome, and
// their programs do on purpose what ours must not.
func sourceOnly(name string) bool {
	return name == "errcheck" || name == "bodyclose" || name == "forbid"
}

// inTest covers test files and the suites, whose packages are called
// something-test or lie below one.
func inTest(pass *analysis.Pass, file *ast.File) bool {
	if strings.HasSuffix(pass.Fset.Position(file.FileStart).Filename, "_test.go") {
		return true
	}
	for part := range strings.SplitSeq(pass.Pkg.Path(), "/") {
		if strings.HasSuffix(part, "test") {
			return true
		}
	}
	return strings.Contains(pass.Fset.Position(file.FileStart).Filename, "/drivertest/")
}

// harmless reports a `defer x.Close()`, which is the way out after a failure or
// the end of a reader (what was written is closed in the open, with its error),
// and a print to a writer: a terminal that is gone has nobody to be told.
func harmless(file *ast.File, pos token.Pos) bool {
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil || n.Pos() > pos || n.End() < pos {
			return false
		}
		switch s := n.(type) {
		case *ast.DeferStmt:
			found = found || method(s.Call) == "Close"
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok {
				found = found || strings.HasPrefix(method(call), "Fprint")
			}
		}
		return true
	})
	return found
}

func method(call *ast.CallExpr) string {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}
