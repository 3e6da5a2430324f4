// Package toolchain finds compilers and interpreters that a caller has outside
// the system's paths: by pyenv, conda, venv, nvm, volta, rustup, SDKMAN, asdf or
// mise, or unpacked from a tarball. A sandbox that shows the system's paths alone
// has none of them, and a first command of many developers fails in it.
//
// Of each it names only the folders with programs and libraries of the one
// version in use. What lies beside them never goes in: configuration, caches,
// other versions, and the files in which package managers keep credentials. It
// runs nothing and changes nothing.
package toolchain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Toolchain is one version of one tool.
type Toolchain struct {
	// Name is for people: "python 3.11.7".
	Name string `json:"name"`
	// Root is the version's own folder, absolute and without links.
	Root string `json:"root"`
	// Dirs are the folders of Root to show, absolute, each at its own path; none
	// where every sandbox shows them.
	Dirs []string `json:"dirs,omitempty"`
	// Path has the folders with programs, to go before the system's.
	Path []string `json:"path"`
}

// Host is what the search looks at.
type Host struct {
	// Path is the caller's PATH.
	Path string
	// Home is the caller's home directory, empty for none.
	Home string
	// Dir is where files that choose a version are looked for, upwards; empty for
	// nowhere.
	Dir string
	// Env gives an environment variable, "" for none; nil gives none.
	Env func(string) string
}

// ThisHost is the calling process's own view. dir is as Host's.
func ThisHost(dir string) Host {
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	return Host{Path: os.Getenv("PATH"), Home: home, Dir: dir, Env: os.Getenv}
}

func (h Host) env(name string) string {
	if h.Env == nil {
		return ""
	}
	return h.Env(name)
}

// shown is what every sandbox sees: a toolchain below it needs no mount.
const shown = "/usr"

// standard are the folders of PATH in every sandbox.
var standard = [...]string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// Find resolves the caller's PATH, in its order. Notes say what was seen and
// left out, one sentence each.
func Find(h Host) (found []Toolchain, notes []string) {
	for _, dir := range filepath.SplitList(h.Path) {
		dir = filepath.Clean(dir)
		if !filepath.IsAbs(dir) || slices.Contains(standard[:], dir) {
			continue // a relative one would mean another folder inside
		}
		for _, root := range h.roots(dir) {
			t, err := h.at(root)
			switch {
			case errors.Is(err, errUnknown):
			case err != nil:
				notes = append(notes, fmt.Sprintf("%s is left out: %v", root, err))
			case !slices.ContainsFunc(found, func(o Toolchain) bool { return o.Root == t.Root }):
				found = append(found, t)
				found = append(found, h.base(t, found)...)
			}
		}
	}
	return found, notes
}

// At describes the toolchain whose version's folder is root. Errors say that it
// is none, or why it may not be shown.
func At(h Host, root string) ([]Toolchain, error) {
	if !filepath.IsAbs(root) {
		return nil, fmt.Errorf("toolchain %q: the path is not absolute", root)
	}
	t, err := h.at(root)
	if err != nil {
		return nil, fmt.Errorf("toolchain %q: %w", root, err)
	}
	return append([]Toolchain{t}, h.base(t, []Toolchain{t})...), nil
}

var errUnknown = errors.New("no Python, Node.js, Rust, Go, Java, Ruby or virtual environment is there")

// at recognises what is at root.
func (h Host) at(root string) (Toolchain, error) {
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return Toolchain{}, errUnknown
	}
	if reason := h.tooWide(real); reason != "" {
		return Toolchain{}, errors.New(reason)
	}
	for _, k := range kinds() {
		version, ok := k.version(real)
		if !ok {
			continue
		}
		t := Toolchain{Name: strings.TrimSpace(k.name + " " + version), Root: real}
		for _, name := range k.dirs {
			t.add(name)
		}
		if len(t.Path) == 0 {
			return Toolchain{}, errUnknown
		}
		return t, nil
	}
	return Toolchain{}, errUnknown
}

// add adds a folder of the root, given as a pattern, where it is a real folder
// there.
func (t *Toolchain) add(pattern string) {
	matches, err := filepath.Glob(filepath.Join(t.Root, pattern))
	if err != nil {
		return // the patterns are ours
	}
	for _, dir := range matches {
		// A link would show something else, at a name that is no folder's own.
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if !within(dir, shown) {
			t.Dirs = append(t.Dirs, dir)
		}
		if pattern == "bin" {
			t.Path = append(t.Path, dir)
		}
	}
}

// tooWide says why a folder is no version's own.
func (h Host) tooWide(root string) string {
	if root == "/" || root == shown {
		return "it is the system's own"
	}
	for _, narrow := range []string{h.Home, h.Dir} {
		if real, err := filepath.EvalSymlinks(narrow); narrow != "" && err == nil && within(real, root) {
			return "it holds the home or the working directory"
		}
	}
	return ""
}

// base is what a virtual environment is an environment of.
func (h Host) base(t Toolchain, known []Toolchain) []Toolchain {
	program, err := filepath.EvalSymlinks(filepath.Join(t.Root, "bin", "python3"))
	if err != nil || within(program, t.Root) {
		return nil
	}
	b, err := h.at(filepath.Dir(filepath.Dir(program)))
	if err != nil || slices.ContainsFunc(known, func(o Toolchain) bool { return o.Root == b.Root }) {
		return nil
	}
	return []Toolchain{b}
}

// within reports whether p is dir or below it. Both are clean and absolute.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
