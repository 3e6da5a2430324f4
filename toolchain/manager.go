package toolchain

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// roots are the versions' folders that a folder of PATH leads to: for a manager's
// shims the ones that it would choose, else the folder's own parent.
func (h Host) roots(dir string) []string {
	parent := filepath.Dir(dir)
	switch {
	case filepath.Base(dir) == "shims" && exists(parent, "versions") && exists(parent, "libexec", "pyenv"):
		return h.pyenv(parent)
	case filepath.Base(dir) == "shims" && exists(parent, "installs"):
		return h.installs(filepath.Join(parent, "installs"))
	case filepath.Base(dir) == "bin" && exists(parent, "tools", "image"):
		return volta(parent)
	case filepath.Base(dir) == "bin" && exists(dir, "rustup"):
		return h.rustup()
	case filepath.Base(dir) == "bin":
		return []string{parent}
	}
	return nil
}

// versionName keeps a name from a file from being a path to somewhere else.
var versionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.+@-]*$`)

// below joins a checked name to a folder, "" for a name that is none.
func below(dir, name string) string {
	if !versionName.MatchString(name) || strings.Contains(name, "..") {
		return ""
	}
	return filepath.Join(dir, name)
}

// upwards looks for one of several files in Dir and above, and reads it.
func (h Host) upwards(names ...string) (name, content string, ok bool) {
	if h.Dir == "" {
		return "", "", false
	}
	for dir := filepath.Clean(h.Dir); ; dir = filepath.Dir(dir) {
		for _, name := range names {
			if content, err := readHead(filepath.Join(dir, name)); err == nil {
				return name, content, true
			}
		}
		if dir == "/" || dir == "." {
			return "", "", false
		}
	}
}

// pyenv chooses as its own documentation says: PYENV_VERSION, the nearest
// .python-version, the global version file. "system" is no version of its own.
func (h Host) pyenv(root string) []string {
	chosen := strings.Split(h.env("PYENV_VERSION"), ":")
	if chosen[0] == "" {
		_, content, ok := h.upwards(".python-version")
		if !ok {
			content, _ = readHead(filepath.Join(root, "version"))
		}
		chosen = words(content)
	}
	var out []string
	for _, name := range chosen {
		dir := below(filepath.Join(root, "versions"), name)
		if dir != "" && !exists(dir) {
			dir = newest(filepath.Join(root, "versions"), name+".")
		}
		if dir != "" {
			out = append(out, dir)
		}
	}
	return out
}

// newest is the last of the folders whose names begin with prefix, by number.
func newest(dir, prefix string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || !versionName.MatchString(prefix) {
		return ""
	}
	best := ""
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && (best == "" || newer(e.Name(), best)) {
			best = e.Name()
		}
	}
	return below(dir, best)
}

// newer compares versions number by number.
func newer(a, b string) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] == b[i] {
			continue
		}
		x, y := digits(a[i:]), digits(b[i:])
		if x != y && x > 0 && y > 0 {
			return x > y
		}
		return a[i] > b[i]
	}
	return len(a) > len(b)
}

func digits(text string) int {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}

// rustup chooses by RUSTUP_TOOLCHAIN, the nearest toolchain file, the default.
func (h Host) rustup() []string {
	root := h.env("RUSTUP_HOME")
	if root == "" {
		root = filepath.Join(h.Home, ".rustup")
	}
	name := strings.TrimPrefix(h.env("RUSTUP_TOOLCHAIN"), "+")
	if name == "" {
		if file, content, ok := h.upwards("rust-toolchain.toml", "rust-toolchain"); ok {
			name = tomlValue(content, "channel")
			if name == "" && file == "rust-toolchain" {
				name = strings.TrimSpace(content)
			}
		}
	}
	if name == "" {
		content, err := readHead(filepath.Join(root, "settings.toml"))
		if err != nil {
			return nil
		}
		name = tomlValue(content, "default_toolchain")
	}
	dir := filepath.Join(root, "toolchains")
	if exact := below(dir, name); exact != "" && exists(exact) {
		return []string{exact}
	}
	// A channel alone is short for the one with this host's own triple.
	if full := newest(dir, name+"-"); full != "" {
		return []string{full}
	}
	return nil
}

// tomlValue reads `key = "value"`. It is enough for files that say one thing; a
// wrong guess finds no folder.
func tomlValue(content, key string) string {
	for line := range strings.Lines(content) {
		name, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(name) == key {
			value, _, _ = strings.Cut(value, "#")
			return strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return ""
}

// volta keeps one platform for a user.
func volta(root string) []string {
	var platform struct {
		Node struct {
			Runtime string `json:"runtime"`
		} `json:"node"`
	}
	content, err := readHead(filepath.Join(root, "tools", "user", "platform.json"))
	if err != nil || json.Unmarshal([]byte(content), &platform) != nil {
		return nil
	}
	dir := below(filepath.Join(root, "tools", "image", "node"), platform.Node.Runtime)
	if dir == "" {
		return nil
	}
	return []string{dir}
}

// installs serves asdf and mise, which lay out their folders alike: one for each
// tool, in it one for each version. Files name tool and version.
func (h Host) installs(dir string) []string {
	tools, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, tool := range tools {
		for _, version := range h.chosen(tool.Name()) {
			root := below(filepath.Join(dir, tool.Name()), version)
			if root != "" && !exists(root) {
				root = newest(filepath.Join(dir, tool.Name()), version+".")
			}
			if root != "" && exists(root) {
				out = append(out, root)
				break
			}
		}
	}
	return out
}

// chosen are the versions of a tool that its user wants, the best first.
func (h Host) chosen(tool string) []string {
	upper := strings.ToUpper(strings.ReplaceAll(tool, "-", "_"))
	for _, name := range []string{"ASDF_" + upper + "_VERSION", "MISE_" + upper + "_VERSION"} {
		if v := h.env(name); v != "" {
			return words(v)
		}
	}
	places := []Host{h, {Dir: h.Home}}
	for _, place := range places {
		if _, content, ok := place.upwards(".tool-versions"); ok {
			for line := range strings.Lines(content) {
				if fields := words(line); len(fields) > 1 && fields[0] == tool {
					return fields[1:]
				}
			}
		}
	}
	for _, place := range append(places, Host{Dir: filepath.Join(h.Home, ".config", "mise")}) {
		if _, content, ok := place.upwards("mise.toml", ".mise.toml", "config.toml"); ok {
			if v := tomlValue(content, tool); v != "" {
				return []string{v}
			}
		}
	}
	return nil
}

// words splits a text without comments.
func words(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		out = append(out, strings.Fields(line)...)
	}
	return slices.Clip(out)
}
