package cgroup

import (
	"bufio"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// hierarchy is one mounted cgroup file system.
type hierarchy struct {
	// root is the mount point.
	root string
	// v2 tells the unified hierarchy.
	v2 bool
	// controllers of a version 1 hierarchy.
	controllers []string
	// nsDelegate: the kernel lets nobody move processes across the boundary of a
	// cgroup namespace.
	nsDelegate bool
}

// parseMounts reads the cgroup hierarchies out of a mountinfo file. A hierarchy
// that is mounted more than once is taken where it is mounted first.
func parseMounts(r io.Reader) ([]hierarchy, error) {
	var found []hierarchy
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 64<<10), 1<<20)
	for scanner.Scan() {
		before, after, ok := strings.Cut(scanner.Text(), " - ")
		if !ok {
			continue
		}
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 6 || len(right) < 3 {
			continue
		}
		h := hierarchy{root: unescape(left[4])}
		options := strings.Split(right[2], ",")
		switch right[0] {
		case "cgroup2":
			h.v2 = true
			h.nsDelegate = slices.Contains(options, "nsdelegate")
		case "cgroup":
			for _, o := range options {
				if slices.Contains([]string{"memory", "pids", "cpu"}, o) {
					h.controllers = append(h.controllers, o)
				}
			}
			if len(h.controllers) == 0 {
				continue
			}
		default:
			continue
		}
		if !slices.ContainsFunc(found, func(o hierarchy) bool {
			return o.v2 == h.v2 && slices.Equal(o.controllers, h.controllers)
		}) {
			found = append(found, h)
		}
	}
	return found, scanner.Err()
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// parseOwn returns the path in the unified hierarchy out of a
// /proc/<pid>/cgroup file, "" when there is none.
func parseOwn(data string) string {
	for line := range strings.Lines(data) {
		if p, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "0::"); ok && path.IsAbs(p) {
			return path.Clean(p)
		}
	}
	return ""
}

// ancestors lists p and every directory above it, up to "/".
func ancestors(p string) []string {
	out := []string{p}
	for p != "/" && p != "." {
		p = path.Dir(p)
		out = append(out, p)
	}
	return out
}

// readTrimmed reads a small file of the kernel.
func readTrimmed(name string) (string, error) {
	data, err := os.ReadFile(name)
	return strings.TrimSpace(string(data)), err
}
