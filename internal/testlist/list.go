package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// state is what the list expects of a test.
type state string

const (
	runs  state = "run"
	skips state = "skip"
	// either is written by hand, for what depends on the machine.
	either state = "either"
)

// list maps "package TestName" to its state. A test whose package is a backend
// is listed with its subtests: they are the behaviours that it has.
type list map[string]state

func readList(file string) (list, error) {
	lines, err := readLines(file)
	if errors.Is(err, fs.ErrNotExist) {
		return list{}, err
	}
	if err != nil {
		return nil, err
	}
	out := list{}
	for _, line := range lines {
		word, name, ok := strings.Cut(line, " ")
		name, _, _ = strings.Cut(strings.TrimSpace(name), " #")
		if !ok || !slices.Contains([]state{runs, skips, either}, state(word)) {
			return nil, fmt.Errorf("%s: not a line of the list: %q", file, line)
		}
		out[name] = state(word)
	}
	return out, nil
}

// String gives the file's text: sorted, so that a difference can be read.
func (l list) String() string {
	var b strings.Builder
	b.WriteString("# Tests that run and that are skipped; `make test UPDATE=1` rewrites this file.\n")
	b.WriteString("# `either` is written by hand, for what depends on the machine.\n")
	for _, name := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&b, "%-6s %s\n", l[name], name)
	}
	return b.String()
}

// merge is the list after an update: what was tested replaces what was listed of
// the same packages, and hand-written lines stay.
func (l list) merge(r *results) list {
	out := list{}
	for name, s := range l {
		if pkg, _, _ := strings.Cut(name, " "); !r.tested(pkg) {
			out[name] = s
		}
	}
	for name, s := range seen(r) {
		out[name] = s
		if l[name] == either {
			out[name] = either
		}
	}
	return out
}

// differences tells what is not as listed, for the packages that were tested.
func (l list) differences(r *results) []string {
	var out []string
	found := seen(r)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		switch want, listed := l[name]; {
		case !listed:
			out = append(out, name+" is not listed")
		case want == either || want == found[name]:
		case found[name] == skips:
			out = append(out, name+" is skipped and ran before")
		default:
			out = append(out, name+" runs and was skipped before")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		pkg, _, _ := strings.Cut(name, " ")
		if _, ok := found[name]; !ok && l[name] != either && (r.tested(pkg) || r.whole) {
			out = append(out, name+" is missing")
		}
	}
	return out
}

// seen gives what happened in the form of a list. A failed test ran.
func seen(r *results) list {
	out := list{}
	for _, t := range r.tests {
		if !listed(t) {
			continue
		}
		out[t.pkg+" "+t.name] = runs
		if t.outcome == skipped {
			out[t.pkg+" "+t.name] = skips
		}
	}
	return out
}

// listed leaves out subtests, except the behaviours of a backend, and cases of
// those.
func listed(t *test) bool {
	depth := strings.Count(t.name, "/")
	if strings.HasPrefix(t.pkg, "backend/") {
		return depth <= 2
	}
	return depth == 0
}
