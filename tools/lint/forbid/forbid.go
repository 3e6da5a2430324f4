// Package forbid reports calls and variables that are dangerous in this
// project, by name, with the reason.
package forbid

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// Analyzer reports every use of a forbidden name. Tests are excepted, and
// programs (package main) where the rule says so.
var Analyzer = &analysis.Analyzer{
	Name: "forbid",
	Doc:  "report calls that this project does not make, with the reason",
	Run:  run,
}

// rule is one ban.
type rule struct {
	why string
	// inMain allows it in package main.
	inMain bool
	// in are packages that are a program of their own, by the end of their path.
	in []string
}

// names are full names as go/types gives them.
func names() map[string]rule {
	output := rule{why: "a library writes to nobody's terminal; take a writer", inMain: true}
	logger := rule{why: "the global logger belongs to the host program", inMain: true}
	client := rule{why: "the default client follows redirects, proxies and has no deadline; build one"}
	context := rule{why: "cannot be cancelled; use the variant with a context"}
	exit := rule{why: "only main ends the process", inMain: true}
	environment := rule{why: "the environment is the host program's; pass values", inMain: true}
	umask := rule{
		why: "the umask is the host program's", inMain: true,
		in: []string{"/internal/agent", "/backend/process/launch"},
	}
	return map[string]rule{
		"fmt.Print": output, "fmt.Printf": output, "fmt.Println": output,
		"log.Print": logger, "log.Printf": logger, "log.Println": logger,
		"log.Fatal": logger, "log.Fatalf": logger, "log.Panic": logger, "log.Panicf": logger,
		"log/slog.Default": logger, "log/slog.Info": logger, "log/slog.Warn": logger,
		"log/slog.Error": logger, "log/slog.Debug": logger,
		"net/http.DefaultClient": client, "net/http.DefaultTransport": client,
		"net/http.Get": client, "net/http.Post": client, "net/http.Head": client, "net/http.PostForm": client,
		"net/http.DefaultServeMux": {why: "a global that any import can add routes to; make a mux"},
		"net/http.Handle":          {why: "registers on the global mux; make a mux"},
		"net/http.HandleFunc":      {why: "registers on the global mux; make a mux"},
		"net/http.NewRequest":      context,
		"net.Dial":                 context,
		"net.DialTimeout":          context,
		"os/exec.Command":          context,
		"os.Exit":                  exit,
		"os.Setenv":                environment,
		"os.Unsetenv":              environment,
		"os.Clearenv":              environment,
		"os.Chdir":                 {why: "the working directory is the host program's; use absolute paths or os.Root", inMain: true},
		"syscall.Umask":            umask, "golang.org/x/sys/unix.Umask": umask,
		"os/signal.Ignore":       {why: "children inherit ignored signals; Notify and drain"},
		"time.Tick":              {why: "cannot be stopped; NewTicker"},
		"context." + "TO" + "DO": {why: "says that the context was not thought about"},
		"math/rand.Int":          {why: "names and keys come from crypto/rand"},
		"math/rand.Intn":         {why: "names and keys come from crypto/rand"},
		"math/rand.Read":         {why: "names and keys come from crypto/rand"},
		"os.IsNotExist":          {why: "does not see wrapped errors; errors.Is(err, fs.ErrNotExist)"},
		"os.IsExist":             {why: "does not see wrapped errors; errors.Is(err, fs.ErrExist)"},
		"os.IsPermission":        {why: "does not see wrapped errors; errors.Is(err, fs.ErrPermission)"},
		"os.IsTimeout":           {why: "does not see wrapped errors; errors.Is(err, os.ErrDeadlineExceeded)"},
	}
}

func run(pass *analysis.Pass) (any, error) {
	banned := names()
	inMain := pass.Pkg.Name() == "main"
	for _, file := range pass.Files {
		if strings.HasSuffix(pass.Fset.Position(file.FileStart).Filename, "_test.go") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			r, found := banned[fullName(pass.TypesInfo.Uses[id])]
			if found && (!r.inMain || !inMain) && !r.allows(pass.Pkg.Path()) {
				pass.Reportf(id.Pos(), "%s: %s", fullName(pass.TypesInfo.Uses[id]), r.why)
			}
			return true
		})
		shells(pass, file)
	}
	return nil, nil
}

func (r rule) allows(pkg string) bool {
	return slices.ContainsFunc(r.in, func(end string) bool { return strings.HasSuffix(pkg, end) })
}

// fullName names package-level functions and variables; "" for the rest.
func fullName(obj types.Object) string {
	if obj == nil || obj.Pkg() == nil || obj.Parent() != obj.Pkg().Scope() {
		return ""
	}
	return obj.Pkg().Path() + "." + obj.Name()
}

// shells reports a shell that is given a text that was put together.
func shells(pass *analysis.Pass, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		callee := typeutil.StaticCallee(pass.TypesInfo, call)
		if callee == nil || callee.FullName() != "os/exec.CommandContext" {
			return true
		}
		for _, arg := range call.Args[1:] {
			value := pass.TypesInfo.Types[arg].Value
			if value == nil {
				continue
			}
			if s := strings.Trim(value.ExactString(), `"`); s == "-c" || s == "-lc" {
				pass.Reportf(call.Pos(), "a shell string: pass an argument list, what is joined into a shell's text is run")
			}
		}
		return true
	})
}
