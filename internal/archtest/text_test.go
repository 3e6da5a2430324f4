package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// tracked lists the files that are, or are about to be, in the repository. A
// copy without git's data has the files that can be seen.
func tracked(t *testing.T) []string {
	t.Helper()
	root := repository(t).root
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("no git data here: the files of the repository are not known")
	}
	out := command(t, nil, "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	return slices.DeleteFunc(strings.Split(out, "\x00"), func(name string) bool {
		info, err := os.Lstat(filepath.Join(root, name))
		return name == "" || err != nil || !info.Mode().IsRegular()
	})
}

// foreign lists texts that are true on one machine only. They are put together
// here, so that this file does not have them.
func foreign() map[string]*regexp.Regexp {
	hosts := []string{
		"proxy.golang" + ".org", "sum.golang" + ".org", "deb.debian" + ".org", "security.debian" + ".org", "archive.ubuntu" + ".com",
		"registry.npmjs" + ".org", "pypi" + ".org", "pythonhosted" + ".org", "crates" + ".io", "repo1.maven" + ".org",
		"repo.maven.apache" + ".org", "registry-1.docker" + ".io", "goproxy" + ".io", "goproxy" + ".cn",
	}
	for i, host := range hosts {
		hosts[i] = regexp.QuoteMeta(host)
	}
	return map[string]*regexp.Regexp{
		"a registry's host: clients know their registry from the machine": regexp.MustCompile(strings.Join(hosts, "|")),
		"a path of one machine":                 regexp.MustCompile(`(^|[^\w.-])/(work|root)/[\w.]|(^|[^\w.-])/home/[a-z]+/|/tmp/` + `brief`),
		"a work note: write it as an issue":     regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"a conflict mark":                       regexp.MustCompile(`(?m)^(<{7}|>{7}) `),
		"a carriage return at the end of lines": regexp.MustCompile(`\r\n`),
	}
}

// permitted are such texts that are meant, with the reason.
var permitted = map[string]string{
	"/home/person/": "a user of the bare root that scripts/fresh-inside runs in",
	"/root/b":       "the clone in that root",
	"/home/user/":   "the home inside a sandbox",
}

func TestTexts(t *testing.T) {
	t.Parallel()
	root := repository(t).root
	bans := foreign()
	for _, name := range tracked(t) {
		if strings.HasSuffix(name, "go.sum") || strings.Contains(name, "/testdata/fuzz/") || name == "LICENSE" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(data) {
			continue
		}
		for why, pattern := range bans {
			for _, hit := range pattern.FindAllString(string(data), -1) {
				if !allowed(hit) {
					t.Errorf("%s: %q is %s", name, hit, why)
				}
			}
		}
	}
}

func allowed(hit string) bool {
	for text := range permitted {
		if strings.Contains(hit, text) {
			return true
		}
	}
	return false
}

// TestReadmeLength: what does not fit belongs into docs/.
func TestReadmeLength(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(repository(t).root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "\n"); n >= 150 {
		t.Errorf("README.md has %d lines, not below 150", n)
	}
}

var (
	fragmentName  = regexp.MustCompile(`^\d{4}-[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	fragmentTitle = regexp.MustCompile(`^(added|changed|fixed|removed|security): [^\s].{2,70}[^.]$`)
)

// TestChanges holds every fragment in changes/ to the form in its README.
func TestChanges(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(repository(t).root, "changes")
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, entry := range entries {
		name := entry.Name()
		if name == "README.md" {
			continue
		}
		if !fragmentName.MatchString(name) {
			t.Errorf("changes/%s: the name is not NNNN-words.md", name)
			continue
		}
		if other, taken := seen[name[:4]]; taken {
			t.Errorf("changes/%s: number taken by %s", name, other)
		}
		seen[name[:4]] = name
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range fragmentFaults(string(data)) {
			t.Errorf("changes/%s: %s", name, fault)
		}
	}
}

func TestFragmentFaults(t *testing.T) {
	t.Parallel()
	good := "added: a thing that works\n\nWhat it does for whom.\n"
	if faults := fragmentFaults(good); len(faults) > 0 {
		t.Errorf("a good fragment: %q", faults)
	}
	for name, bad := range map[string]string{
		"unknown kind": "improved: a thing\n\nText.\n",
		"full stop":    "added: a thing.\n\nText.\n",
		"no text":      "added: a thing\n",
		"no gap":       "added: a thing\nText.\n",
		"empty":        "",
	} {
		if len(fragmentFaults(bad)) == 0 {
			t.Errorf("%s: no fault was found", name)
		}
	}
}

func fragmentFaults(text string) []string {
	var out []string
	lines := strings.Split(text, "\n")
	if !fragmentTitle.MatchString(lines[0]) {
		out = append(out, "the first line is not `kind: what changed`, at most 72 characters, without a full stop")
	}
	if len(lines) < 3 || lines[1] != "" || strings.TrimSpace(strings.Join(lines[2:], "")) == "" {
		out = append(out, "an empty line and a text for users come after the first line")
	}
	return out
}
