// Command lint is the project's chosen set of analyzers in one program, run by
// `go vet -vettool`, so that the go command caches its results by package. It
// is a module of its own: what it needs stays out of the library's module graph.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	checks := chosen()
	for _, a := range checks {
		quiet(a)
	}
	unitchecker.Main(checks...)
}
