package berm

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/toolchain"
)

// Toolchains says which compilers and interpreters from outside the system's
// paths a sandbox sees, read-only and on its PATH. The zero value is none.
type Toolchains struct {
	// Auto takes those that the PATH of this process leads to. One that collides
	// with the layout is left out; Provider.Notes says so.
	Auto bool
	// Roots are versions' own folders, absolute. One that is no toolchain, or
	// collides with the layout, is refused.
	Roots []string
}

// toolset is what was found.
type toolset struct {
	asked, found []toolchain.Toolchain
	notes        []string
}

// findTools looks at the host. Faults are those of Roots.
func findTools(t Toolchains, workdir string) (set toolset, faults []string) {
	host := toolchain.ThisHost(workdir)
	for _, root := range t.Roots {
		found, err := toolchain.At(host, root)
		if err != nil {
			faults = append(faults, err.Error())
			continue
		}
		set.asked = append(set.asked, found...)
	}
	if t.Auto {
		set.found, set.notes = toolchain.Find(host)
	}
	return set, faults
}

// mount adds the tools to the mounts of a layout, as far as the backend shows
// host directories at paths of a sandbox's own, and gives the folders that go
// before its PATH.
func (set toolset) mount(mounts []driver.Mount, caps Capabilities) (all []driver.Mount, path, notes, faults []string) {
	if !caps.ContainedPaths {
		return mounts, nil, nil, nil // the host's own PATH holds there
	}
	all, notes = mounts, set.notes
	for i, t := range append(set.asked[:len(set.asked):len(set.asked)], set.found...) {
		reason := collision(t, all)
		if reason == "" && len(t.Dirs) > 0 && !caps.HostDirs {
			reason = fmt.Sprintf("backend %s cannot mount a host directory", caps.Backend)
		}
		switch {
		case reason == "":
			for _, dir := range t.Dirs {
				all = append(all, driver.Mount{Name: "toolchain " + t.Name + " " + filepath.Base(dir), Source: dir, Dest: dir})
			}
			path = append(path, t.Path...)
		case i < len(set.asked):
			faults = append(faults, fmt.Sprintf("toolchain %q: %s", t.Root, reason))
		default:
			notes = append(notes, fmt.Sprintf("the toolchain %s at %s is left out: %s", t.Name, t.Root, reason))
			path = append(path, moved(t.Path, mounts)...)
		}
	}
	return all, path, notes, faults
}

// collision says what a toolchain's folders and the mounts so far cannot share.
func collision(t toolchain.Toolchain, mounts []driver.Mount) string {
	for _, dir := range t.Dirs {
		for _, m := range mounts {
			switch {
			case inside(dir, m.Dest) || inside(m.Dest, dir):
				return fmt.Sprintf("%s and %s (%s) are nested", dir, m.Dest, m.Name)
			case m.Writable && m.Source != "" && (inside(dir, m.Source) || inside(m.Source, dir)):
				return fmt.Sprintf("%s is shared with %s, which is writable", dir, m.Name)
			}
		}
	}
	return ""
}

// moved gives folders where a mount of the layout shows them already: a virtual
// environment in the working directory.
func moved(path []string, mounts []driver.Mount) []string {
	var out []string
	for _, dir := range path {
		for _, m := range mounts {
			if m.Source != "" && inside(dir, m.Source) {
				out = append(out, m.Dest+strings.TrimPrefix(dir, m.Source))
			}
		}
	}
	return out
}

// inside reports whether p is dir or below it. Both are clean and absolute.
func inside(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
