package archtest_test

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestPackageComments: every folder with code says what it is for.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	documented := map[string]bool{}
	for _, f := range tr.sources() {
		if f.syntax.Doc != nil && len(strings.Fields(f.syntax.Doc.Text())) > 5 {
			documented[f.dir] = true
		}
	}
	for _, dir := range tr.folders() {
		if !documented[dir] {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

// TestExportedComments: every exported declaration and interface method says
// what it does. A group's comment covers its members.
func TestExportedComments(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	for _, f := range tr.sources() {
		if f.syntax.Name.Name == "main" {
			continue
		}
		for _, decl := range f.syntax.Decls {
			for _, node := range undocumented(decl) {
				t.Errorf("%s: an exported declaration without a comment", tr.line(node))
			}
		}
	}
}

func undocumented(decl ast.Decl) []ast.Node {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && receiverExported(d) && d.Doc == nil && !understood(d) {
			return []ast.Node{d}
		}
	case *ast.GenDecl:
		var out []ast.Node
		for _, spec := range d.Specs {
			out = append(out, undocumentedSpec(d, spec)...)
		}
		return out
	}
	return nil
}

// understood lists methods whose meaning a standard interface gives.
func understood(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "String", "Unwrap", "Len", "Less", "Swap", "Network"}, d.Name.Name)
}

func undocumentedSpec(d *ast.GenDecl, spec ast.Spec) []ast.Node {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		if d.Doc == nil && s.Doc == nil && s.Comment == nil && slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
			return []ast.Node{s}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return nil
		}
		var out []ast.Node
		if d.Doc == nil && s.Doc == nil {
			out = append(out, s)
		}
		if i, ok := s.Type.(*ast.InterfaceType); ok {
			for _, method := range i.Methods.List {
				if len(method.Names) > 0 && method.Names[0].IsExported() && method.Doc == nil && len(i.Methods.List) > 1 {
					out = append(out, method)
				}
			}
		}
		return out
	}
	return nil
}

// receiverExported reports whether a function is no method, or one of an
// exported type.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	expr := d.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.IsExported()
		default:
			return true
		}
	}
}
