package archtest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goMod is what `go mod edit -json` prints, as far as it is looked at.
type goMod struct {
	Require []struct{ Path, Version string }
	Replace []json.RawMessage
	Exclude []json.RawMessage
}

func readGoMod(t *testing.T, folder string) goMod {
	t.Helper()
	var mod goMod
	if err := json.Unmarshal([]byte(command(t, nil, "go", "mod", "edit", "-json", filepath.Join(folder, "go.mod"))), &mod); err != nil {
		t.Fatal(err)
	}
	return mod
}

// TestGoMod: a replace holds only for us, not for those who depend on us.
func TestGoMod(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{".", "tools"} {
		if mod := readGoMod(t, folder); len(mod.Replace)+len(mod.Exclude) > 0 {
			t.Errorf("%s/go.mod has replace or exclude lines", folder)
		}
	}
}

// licenceMarks tells a licence by words that only it has.
var licenceMarks = map[string][]string{
	"Apache-2.0":   {"Apache License", "Version 2.0"},
	"MIT":          {"Permission is hereby granted, free of charge"},
	"BSD-3-Clause": {"Redistributions in binary form", "Neither the name"},
	"BSD-2-Clause": {"Redistributions in binary form"},
	"ISC":          {"Permission to use, copy, modify, and"},
}

// TestLicences: every module that our code imports is in testdata/licences.txt
// with a licence that may be linked, and its own file says the same.
func TestLicences(t *testing.T) {
	t.Parallel()
	listed := map[string]string{}
	for _, line := range lines(t, "testdata/licences.txt") {
		name, licence, _ := strings.Cut(line, " ")
		listed[name] = licence
	}
	used := map[string]bool{}
	for _, folder := range []string{".", "tools"} {
		for _, name := range directModules(t, folder) {
			used[name] = true
			licence, ok := listed[name]
			switch {
			case !ok:
				t.Errorf("%s: module %s is not in testdata/licences.txt", folder, name)
			case licenceMarks[licence] == nil:
				t.Errorf("module %s: licence %q is not one that may be linked", name, licence)
			default:
				checkLicence(t, folder, name, licence)
			}
		}
	}
	for name := range listed {
		if !used[name] {
			t.Errorf("testdata/licences.txt: nobody imports %s", name)
		}
	}
}

// directModules finds the modules behind the imports, so that it does not depend
// on the comments in go.mod.
func directModules(t *testing.T, folder string) []string {
	t.Helper()
	mod := readGoMod(t, folder)
	var out []string
	for _, f := range repository(t).files {
		if strings.HasPrefix(f.dir+"/", "tools/") != (folder == "tools") {
			continue
		}
		for _, name := range imports(f) {
			best := ""
			for _, r := range mod.Require {
				if (name == r.Path || strings.HasPrefix(name, r.Path+"/")) && len(r.Path) > len(best) {
					best = r.Path
				}
			}
			if best != "" {
				out = append(out, best)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkLicence reads the module's own licence, where the module is at hand.
func checkLicence(t *testing.T, folder, name, licence string) {
	t.Helper()
	dir := strings.TrimSpace(command(t, nil, "go", "-C", folder, "list", "-m", "-f", "{{.Dir}}", name))
	if dir == "" {
		// Not downloaded: nothing of it was built here.
		return
	}
	found, err := filepath.Glob(filepath.Join(dir, "LICENSE*"))
	if err != nil || len(found) == 0 {
		t.Errorf("module %s has no licence file in %s", name, dir)
		return
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	flat := strings.Join(strings.Fields(string(text)), " ")
	for _, mark := range licenceMarks[licence] {
		if !strings.Contains(flat, mark) {
			t.Errorf("module %s is listed as %s, but its licence lacks %q", name, licence, mark)
		}
	}
}

// TestAgentDependencies: what is in the agent is in reach of its payloads, so
// each new package shows in review.
func TestAgentDependencies(t *testing.T) {
	t.Parallel()
	var got []string
	for _, arch := range []string{"amd64", "arm64"} {
		out := command(t, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch},
			"go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/berm-agent")
		got = append(got, strings.Fields(out)...)
	}
	slices.Sort(got)
	compare(t, "agent-deps.txt", slices.Compact(got), "does the agent need it? UPDATE=1 adds it")
}
