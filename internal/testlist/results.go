package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
)

// test is one test or subtest that ended.
type test struct {
	pkg, name string
	outcome   outcome
	output    []string
}

// event is a line of `go test -json` that matters here.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
	// ImportPath is set instead of Package for the output of the compiler.
	ImportPath string
}

// pkgResult is one package that ended.
type pkgResult struct {
	outcome outcome
	elapsed float64
	// output is what no test printed: build errors, panics, race reports.
	output []string
}

// results gathers events. It may be used by several goroutines.
type results struct {
	mu       sync.Mutex
	module   string
	tests    map[string]*test
	packages map[string]*pkgResult
	builds   map[string][]string
	// whole: the packages were not chosen by hand.
	whole bool
}

func newResults(module string) *results {
	return &results{
		module: module, tests: map[string]*test{}, packages: map[string]*pkgResult{}, builds: map[string][]string{},
	}
}

// read takes events until the end. Lines that are no events are output that a
// test program printed past the converter.
func (r *results) read(in io.Reader) error {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			e = event{Action: "build-output", ImportPath: "stray output", Output: scanner.Text() + "\n"}
		}
		r.add(e)
	}
	return scanner.Err()
}

func (r *results) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Action == "build-output" || e.Action == "build-fail" {
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return
	}
	pkg := r.folder(e.Package)
	if e.Test == "" {
		r.addPackage(pkg, e)
		return
	}
	key := pkg + " " + e.Test
	t := r.tests[key]
	if t == nil {
		// A test that never ends (its program died) stays failed.
		t = &test{pkg: pkg, name: e.Test, outcome: failed}
		r.tests[key] = t
	}
	switch outcome(e.Action) {
	case passed, failed, skipped:
		t.outcome = outcome(e.Action)
	default:
		if e.Output != "" {
			t.output = append(t.output, e.Output)
		}
	}
}

// any reports whether something was told at all.
func (r *results) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.packages)+len(r.builds) > 0
}

func (r *results) addPackage(pkg string, e event) {
	p := r.packages[pkg]
	if p == nil {
		p = &pkgResult{outcome: failed}
		r.packages[pkg] = p
	}
	switch outcome(e.Action) {
	case passed, failed, skipped:
		p.outcome, p.elapsed = outcome(e.Action), max(p.elapsed, e.Elapsed)
	default:
		if e.Output != "" {
			p.output = append(p.output, e.Output)
		}
	}
}

// folder shortens an import path of the module.
func (r *results) folder(pkg string) string {
	if pkg == r.module {
		return "."
	}
	return strings.TrimPrefix(pkg, r.module+"/")
}

func (r *results) tested(pkg string) bool { return r.packages[pkg] != nil }

// tally counts leaves, and a package that failed without a failed test.
type tally struct{ passed, failed, skipped int }

func (t tally) plus(o tally) tally {
	return tally{t.passed + o.passed, t.failed + o.failed, t.skipped + o.skipped}
}

// String is the plain closing line.
func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

func (r *results) tally() tally {
	var out tally
	broken := map[string]bool{}
	for _, t := range r.tests {
		if t.outcome == failed {
			broken[t.pkg] = true
		}
		if r.parent(t) && t.outcome != failed {
			continue
		}
		switch t.outcome {
		case passed:
			out.passed++
		case failed:
			out.failed++
		case skipped:
			out.skipped++
		}
	}
	for name, p := range r.packages {
		if p.outcome == failed && !broken[name] {
			out.failed++
		}
	}
	return out
}

// parent reports whether a test has subtests, which are counted instead.
func (r *results) parent(t *test) bool {
	for _, other := range r.tests {
		if other.pkg == t.pkg && strings.HasPrefix(other.name, t.name+"/") {
			return true
		}
	}
	return false
}

// report prints one line for each package, what failed with its output, and
// what was skipped with its reason.
func report(w io.Writer, r *results) {
	counts := map[string]*tally{}
	for _, t := range r.tests {
		if counts[t.pkg] == nil {
			counts[t.pkg] = &tally{}
		}
		switch t.outcome {
		case passed:
			counts[t.pkg].passed++
		case failed:
			counts[t.pkg].failed++
		case skipped:
			counts[t.pkg].skipped++
		}
	}
	for _, name := range sortedKeys(r.packages) {
		p := r.packages[name]
		if c := counts[name]; c != nil {
			fmt.Fprintf(w, "%-4s %-32s %6.1fs  %s\n", p.outcome, name, p.elapsed, c)
		}
		if p.outcome == failed {
			fmt.Fprintf(w, "FAIL %s\n%s", name, strings.Join(p.output, ""))
		}
	}
	for _, name := range sortedKeys(r.builds) {
		fmt.Fprint(w, strings.Join(r.builds[name], ""))
	}
	for _, key := range sortedKeys(r.tests) {
		switch t := r.tests[key]; t.outcome {
		case failed:
			fmt.Fprintf(w, "FAIL %s\n%s", key, strings.Join(t.output, ""))
		case skipped:
			fmt.Fprintf(w, "skip %s: %s\n", key, reason(t))
		case passed:
		}
	}
}

// reason finds what a skipped test said last.
func reason(t *test) string {
	last := ""
	for _, line := range slices.Backward(t.output) {
		line = strings.TrimSpace(line)
		if last == "" && !strings.HasPrefix(line, "---") {
			last = line
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, text, ok = strings.Cut(text, ": "); ok && !strings.HasPrefix(text, "WORK=") {
				return text
			}
		}
	}
	if last != "" && !strings.HasPrefix(last, "===") {
		// A script says it as its last command.
		return last
	}
	return "no reason given"
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
