package main

import (
	"slices"

	"codeberg.org/polyfloyd/go-errorlint/errorlint"
	"github.com/gostaticanalysis/nilerr"
	"github.com/kisielk/errcheck/errcheck"
	"github.com/timakin/bodyclose/passes/bodyclose"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/deepequalerrors"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/reflectvaluecompare"
	"golang.org/x/tools/go/analysis/passes/sortslice"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"

	"github.com/berm-dev/berm/tools/lint/forbid"
)

// chosen lists what runs beside the go command's own vet (which has copylocks,
// lostcancel, printf, waitgroup and others). A check enters with a reason; a
// check that is switched off is not listed.
func chosen() []*analysis.Analyzer {
	checks := []*analysis.Analyzer{
		// An error that nobody looked at is a promise that nobody kept.
		errcheck.Analyzer,
		// Errors are wrapped once: == and type assertions miss the cause.
		errorlint.NewAnalyzer(errorlint.WithComparison(true), errorlint.WithAsserts(true)),
		// `return nil` under `if err != nil` turns a failure into a success.
		nilerr.Analyzer,
		// A response body left open is a stream and a descriptor per call.
		bodyclose.Analyzer,
		// A dereference on a path where the value is nil.
		nilness.Analyzer,
		// A write to a copy that is never read: the change was lost.
		unusedwrite.Analyzer,
		// reflect.DeepEqual on errors compares private fields.
		deepequalerrors.Analyzer,
		// == on reflect.Value compares the box, not the value.
		reflectvaluecompare.Analyzer,
		// sort.Slice on something that is no slice panics at run time.
		sortslice.Analyzer,
		// Dangerous calls by name, each with its reason.
		forbid.Analyzer,
	}
	// SA: every staticcheck bug finder. They have next to no false alarms.
	checks = append(checks, pick(staticcheck.Analyzers)...)
	// S: the simplifications that remove a mistake's hiding place.
	checks = append(checks, pick(simple.Analyzers,
		"S1000", // select with a single case
		"S1001", // copy in a loop
		"S1002", // comparison with a boolean constant
		"S1005", // needless blank identifier
		"S1008", // if that returns booleans
		"S1009", // needless nil check before len
		"S1021", // declaration and assignment apart
		"S1023", // needless break or return
		"S1028", // errors.New(fmt.Sprintf())
		"S1030", // bytes.Buffer conversions
		"S1038", // needlessly complex print
	)...)
	// ST: the style rules that a reader trips over.
	return append(checks, pick(stylecheck.Analyzers,
		"ST1005", // error text: no capital, no full stop, because it is wrapped
		"ST1006", // receiver called self or this
		"ST1008", // the error is the last result
		"ST1011", // a duration named after a unit
		"ST1016", // one name for a type's receiver
		"ST1017", // constants on the left
		"ST1019", // the same package imported twice
		"ST1023", // needless type in a declaration
	)...)
}

// pick takes the named analyzers, or all of them.
func pick(all []*lint.Analyzer, names ...string) []*analysis.Analyzer {
	var out []*analysis.Analyzer
	for _, a := range all {
		if len(names) == 0 || slices.Contains(names, a.Analyzer.Name) {
			out = append(out, a.Analyzer)
		}
	}
	return out
}
