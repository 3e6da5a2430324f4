package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"run","Package":"example.test/m/backend/x","Test":"TestSuite"}
{"Action":"run","Package":"example.test/m/backend/x","Test":"TestSuite/exec"}
{"Action":"pass","Package":"example.test/m/backend/x","Test":"TestSuite/exec","Elapsed":0.1}
{"Action":"output","Package":"example.test/m/backend/x","Test":"TestSuite/limits","Output":"    suite.go:12: no cgroups here\n"}
{"Action":"skip","Package":"example.test/m/backend/x","Test":"TestSuite/limits"}
{"Action":"pass","Package":"example.test/m/backend/x","Test":"TestSuite"}
{"Action":"pass","Package":"example.test/m/backend/x","Elapsed":0.2}
{"Action":"run","Package":"example.test/m","Test":"TestRoot"}
{"Action":"run","Package":"example.test/m","Test":"TestRoot/case"}
not an event
{"Action":"fail","Package":"example.test/m","Test":"TestRoot/case"}
{"Action":"fail","Package":"example.test/m","Test":"TestRoot"}
{"Action":"fail","Package":"example.test/m"}
{"Action":"run","Package":"example.test/m/dies","Test":"TestDies"}
{"Action":"fail","Package":"example.test/m/dies"}
{"Action":"build-output","ImportPath":"example.test/m/broken","Output":"x.go:1: no\n"}
{"Action":"fail","Package":"example.test/m/broken"}
`

func sample(t *testing.T) *results {
	t.Helper()
	r := newResults("example.test/m")
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTallyCountsLeavesAndBrokenPackages(t *testing.T) {
	t.Parallel()
	// Failed: the case and its parent, the test that never ended, the package
	// that does not compile.
	if got, want := sample(t).tally().String(), "1 passed, 4 failed, 1 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReportShowsFailuresAndReasons(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	report(&b, sample(t))
	for _, want := range []string{"FAIL . TestRoot/case", "FAIL dies TestDies", "x.go:1: no", "skip backend/x TestSuite/limits: no cgroups here"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
}

func TestListRoundTrip(t *testing.T) {
	t.Parallel()
	l := list{}.merge(sample(t))
	want := list{
		"backend/x TestSuite": runs, "backend/x TestSuite/exec": runs, "backend/x TestSuite/limits": skips,
		". TestRoot": runs, "dies TestDies": runs,
	}
	if l.String() != want.String() {
		t.Errorf("got\n%swant\n%s", l, want)
	}
	if d := l.differences(sample(t)); len(d) > 0 {
		t.Errorf("a fresh list differs: %q", d)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	l := list{}.merge(sample(t))
	l["backend/x TestSuite/limits"] = runs
	l["backend/x TestSuite/exec"] = skips
	l["backend/x TestGone"] = runs
	l["other TestElsewhere"] = runs
	delete(l, "dies TestDies")
	got := strings.Join(l.differences(sample(t)), "\n")
	want := strings.Join([]string{
		"backend/x TestSuite/exec runs and was skipped before",
		"backend/x TestSuite/limits is skipped and ran before",
		"dies TestDies is not listed",
		"backend/x TestGone is missing",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	whole := sample(t)
	whole.whole = true
	if !strings.Contains(strings.Join(l.differences(whole), "\n"), "other TestElsewhere is missing") {
		t.Error("a whole run does not miss a package that is gone")
	}
}

func TestHandWrittenLinesStay(t *testing.T) {
	t.Parallel()
	l := list{"backend/x TestSuite/limits": either, "backend/x TestGone": either}
	merged := l.merge(sample(t))
	if merged["backend/x TestSuite/limits"] != either {
		t.Error("an update replaced a line that was written by hand")
	}
	for _, d := range l.differences(sample(t)) {
		if strings.Contains(d, "limits") || strings.Contains(d, "Gone") {
			t.Errorf("what may be either way was held against the run: %s", d)
		}
	}
}

func TestReadListRefusesOtherWords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"good": "run    a TestB\neither a TestC # needs a compiler\n", "bad": "maybe a TestB\n", "short": "run\n"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := readList(file)
		if (err == nil) != (name == "good") {
			t.Errorf("%s: error %v", name, err)
		}
		if name == "good" && (l["a TestB"] != runs || l["a TestC"] != either) {
			t.Errorf("read %v", l)
		}
	}
}
