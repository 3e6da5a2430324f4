package archtest_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNoInit: importing a package does nothing.
func TestNoInit(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	for _, f := range tr.files {
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
				t.Errorf("%s: an init function: what it does belongs into a constructor", tr.line(d))
			}
		}
	}
}

// TestNoPanic: a library does not end its host program.
func TestNoPanic(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	for _, f := range tr.sources() {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "panic" && !aborts(call) || id.Name == "print" || id.Name == "println") {
					t.Errorf("%s: %s: return an error", tr.line(n), id.Name)
				}
			}
			return true
		})
	}
}

// aborts reports panic(http.ErrAbortHandler), which is how a handler breaks off a
// response; net/http catches it.
func aborts(call *ast.CallExpr) bool {
	return len(call.Args) == 1 && selector(call.Args[0]) == "http.ErrAbortHandler"
}

// rooms that have no meaning.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "pkg", "shared", "base", "core", "lib", "models"}

func TestFolderNames(t *testing.T) {
	t.Parallel()
	for _, dir := range repository(t).folders() {
		for part := range strings.SplitSeq(dir, "/") {
			if slices.Contains(emptyNames, part) {
				t.Errorf("folder %s: %q says nothing about what is in it", dir, part)
			}
			if part != "." && strings.ContainsAny(part, "_ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
				t.Errorf("folder %s: package names are lower case without underscores", dir)
			}
		}
	}
}

// makers are the calls whose result nobody can change.
var makers = []string{
	"errors.New", "errdefs.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer",
	"netip.MustParseAddr", "netip.MustParsePrefix", "netip.AddrFrom4", "protoreflect.FullName",
}

// stateful lists the package-level variables that are no constants in disguise,
// "folder.Name", with the reason.
var stateful = map[string]string{
	"cmd/berm/version":                     "the linker sets it (-X), which takes a variable",
	"internal/agent/execmode/first/status": "starts a marked command before heavy packages are initialised",
	"internal/defence/off":                 "the linker sets it (-X), in builds with the tag berm_mutants only",
	"internal/agent/execmode/first/ran":    "starts a marked command before heavy packages are initialised",
}

// TestPackageVariables: no package has state. Errors, expressions, embedded
// files, guards, and tables that nobody writes to are constants in disguise.
func TestPackageVariables(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	written := writes(tr)
	for _, f := range tr.sources() {
		if strings.HasPrefix(f.dir, "tools/") {
			continue
		}
		for _, decl := range f.syntax.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				for _, name := range variables(d, spec.(*ast.ValueSpec)) {
					full := path.Join(f.dir, name.ident.Name)
					if _, excused := stateful[full]; excused {
						continue
					}
					if name.fault == "" && written[f.dir][name.ident.Name] {
						name.fault = "is written to"
					}
					if name.fault != "" {
						t.Errorf("%s: variable %s %s", tr.line(name.ident), name.ident.Name, name.fault)
					}
				}
			}
		}
	}
}

type variable struct {
	ident *ast.Ident
	fault string
}

// variables judges the names of one declaration by their values.
func variables(d *ast.GenDecl, s *ast.ValueSpec) []variable {
	var out []variable
	for i, id := range s.Names {
		if id.Name == "_" || embedded(d.Doc) || embedded(s.Doc) {
			continue
		}
		v := variable{ident: id}
		switch {
		case i >= len(s.Values):
			v.fault = "has no value: it is state"
		default:
			v.fault = valueFault(s.Values[i])
		}
		out = append(out, v)
	}
	return out
}

func embedded(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// valueFault says why a value is not fixed, "" when it is.
func valueFault(value ast.Expr) string {
	switch v := value.(type) {
	case *ast.CompositeLit:
		if name := selector(v.Type); strings.HasPrefix(name, "sync.") || strings.HasPrefix(name, "atomic.") {
			return "is a lock or a counter: it is state"
		}
		return ""
	case *ast.CallExpr:
		name := selector(v.Fun)
		if id, ok := v.Fun.(*ast.Ident); ok && ast.IsExported(id.Name) && len(v.Args) == 1 {
			// A conversion to a named type: a sentinel.
			return ""
		}
		if slices.Contains(makers, name) {
			return ""
		}
		return fmt.Sprintf("comes from a call of %q", name)
	case *ast.BasicLit, *ast.BinaryExpr, *ast.Ident:
		return "is a constant or a copy: write const"
	case *ast.FuncLit:
		return "is a function that can be replaced: write func, or pass it"
	}
	return fmt.Sprintf("has a value (%T) that is not known to be fixed", value)
}

func selector(expr ast.Expr) string {
	if s, ok := expr.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	if id, ok := expr.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// writes lists, by folder, the names that are assigned to, incremented, handed
// out by address, cleared or deleted from.
func writes(tr *tree) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	for _, f := range tr.sources() {
		if out[f.dir] == nil {
			out[f.dir] = map[string]bool{}
		}
		mark := func(e ast.Expr) {
			if id := root(e); id != nil {
				out[f.dir][id.Name] = true
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch s := n.(type) {
			case *ast.AssignStmt:
				if s.Tok != token.DEFINE {
					for _, e := range s.Lhs {
						mark(e)
					}
				}
			case *ast.IncDecStmt:
				mark(s.X)
			case *ast.CallExpr:
				if id, ok := s.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") {
					mark(s.Args[0])
				}
			}
			return true
		})
	}
	return out
}

// root finds the variable below indexes, fields and pointers.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// TestNoGeneratedTypesInTheAPI: what others compile against is ours.
func TestNoGeneratedTypesInTheAPI(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	for _, f := range tr.sources() {
		if strings.HasPrefix(f.dir, "internal/") || strings.HasPrefix(f.dir, "cmd/") || strings.HasPrefix(f.dir, "tools/") {
			continue
		}
		names := generated(f)
		for _, decl := range f.syntax.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Name.IsExported() && receiverExported(d) && uses(d.Type, names) {
				t.Errorf("%s: %s has a generated type in its signature", tr.line(d), d.Name.Name)
			}
		}
	}
}

// generated lists the names under which a file imports generated packages.
func generated(f goFile) []string {
	var out []string
	for _, spec := range f.syntax.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(name, module+"/internal/gen/") {
			continue
		}
		if spec.Name != nil {
			out = append(out, spec.Name.Name)
			continue
		}
		out = append(out, path.Base(name))
	}
	return out
}

func uses(n ast.Node, names []string) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && slices.Contains(names, x.Name) {
				found = true
			}
		}
		return true
	})
	return found
}
