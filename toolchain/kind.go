package toolchain

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// kind is one sort of toolchain: how its folder is recognised, and what of it is
// programs and libraries.
type kind struct {
	name string
	// version recognises a folder and gives its version, "" when it does not say.
	version func(root string) (string, bool)
	// dirs are patterns below the folder.
	dirs []string
}

// kinds, the most telling first. etc is in none of them: npm and pip keep
// credentials there.
func kinds() []kind {
	return []kind{
		{"virtual environment", venv, []string{"bin", "lib", "lib64", "include", "share"}},
		{"conda", conda, []string{"bin", "lib", "libexec", "include", "share", "ssl", "*-conda*-linux-gnu"}},
		{"rust", rust, []string{"bin", "lib", "libexec", "share"}},
		{"go", golang, []string{"bin", "lib", "pkg", "src", "misc", "api"}},
		{"java", java, []string{"bin", "lib", "conf", "include", "jmods", "jre", "legal"}},
		{"node", node, []string{"bin", "lib", "include", "share"}},
		{"python", python, []string{"bin", "lib", "lib64", "include", "share"}},
		{"ruby", ruby, []string{"bin", "lib", "include", "share"}},
	}
}

// venv: the file is what makes Python take a folder for one.
func venv(root string) (string, bool) {
	return field(filepath.Join(root, "pyvenv.cfg"), "version")
}

func conda(root string) (string, bool) {
	return filepath.Base(root), exists(root, "conda-meta", "history") && exists(root, "bin")
}

func rust(root string) (string, bool) {
	return filepath.Base(root), exists(root, "lib", "rustlib") && exists(root, "bin", "rustc")
}

func golang(root string) (string, bool) {
	data, err := readHead(filepath.Join(root, "VERSION"))
	version, _, _ := strings.Cut(data, "\n")
	return strings.TrimPrefix(version, "go"), err == nil && exists(root, "pkg", "tool") && exists(root, "bin", "go")
}

func java(root string) (string, bool) {
	if !exists(root, "bin", "java") || !exists(root, "lib") {
		return "", false
	}
	version, ok := field(filepath.Join(root, "release"), "JAVA_VERSION")
	return strings.Trim(version, `"`), ok
}

func node(root string) (string, bool) {
	if !exists(root, "bin", "node") || !exists(root, "include", "node") {
		return "", false
	}
	return strings.TrimPrefix(filepath.Base(root), "v"), true
}

var libraryName = regexp.MustCompile(`^python(3\.[0-9]+)$`)

func python(root string) (string, bool) {
	entries, err := os.ReadDir(filepath.Join(root, "lib"))
	if err != nil || !exists(root, "bin", "python3") {
		return "", false
	}
	for _, e := range entries {
		// A user's own packages are in a folder of that name without os.py.
		if m := libraryName.FindStringSubmatch(e.Name()); m != nil && exists(root, "lib", e.Name(), "os.py") {
			if base := filepath.Base(root); strings.HasPrefix(base, m[1]) {
				return base, true
			}
			return m[1], true
		}
	}
	return "", false
}

func ruby(root string) (string, bool) {
	return filepath.Base(root), exists(root, "bin", "ruby") && exists(root, "lib", "ruby")
}

func exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(parts...))
	return err == nil
}

// maxHead bounds what is read of a small text file, in bytes.
const maxHead = 64 << 10

// readHead reads the beginning of a regular file. Version files lie in folders
// that others may write, so nothing else is opened.
func readHead(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", os.ErrInvalid
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	buf := make([]byte, maxHead)
	n, err := file.Read(buf)
	if n == 0 && err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// field reads the value of `name = value` or `name=value`.
func field(path, name string) (string, bool) {
	data, err := readHead(path)
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(data) {
		key, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), true
		}
	}
	return "", true
}
