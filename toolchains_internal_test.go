package berm

import (
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/toolchain"
)

func TestToolchainMounts(t *testing.T) {
	t.Parallel()
	python := toolchain.Toolchain{Name: "python 3.11.7", Root: "/h/py", Dirs: []string{"/h/py/bin", "/h/py/lib"}, Path: []string{"/h/py/bin"}}
	shown := toolchain.Toolchain{Name: "go 1.26", Root: "/usr/local/go", Path: []string{"/usr/local/go/bin"}}
	contained := Capabilities{Backend: "stub", ContainedPaths: true, HostDirs: true}
	work := func(source string) []driver.Mount {
		return []driver.Mount{{Name: "workdir", Source: source, Dest: "/workspace", Writable: true}}
	}
	for name, c := range map[string]struct {
		mounts []driver.Mount
		caps   Capabilities
		path   []string
		added  int
		reason string
	}{
		"beside the layout":                {work("/h/project"), contained, []string{"/usr/local/go/bin", "/h/py/bin"}, 2, ""},
		"in the working directory":         {work("/h/py"), contained, []string{"/usr/local/go/bin", "/workspace/bin"}, 0, "writable"},
		"above the working directory":      {work("/h/py/lib/x"), contained, []string{"/usr/local/go/bin"}, 0, "writable"},
		"shown by a read-only bind":        {[]driver.Mount{{Name: "readOnly /h", Source: "/h", Dest: "/h"}}, contained, []string{"/usr/local/go/bin", "/h/py/bin"}, 0, "nested"},
		"at a mount's place":               {[]driver.Mount{{Name: "outputs", Dest: "/h/py/lib", Writable: true}}, contained, []string{"/usr/local/go/bin"}, 0, "nested"},
		"a backend that mounts no folders": {nil, Capabilities{Backend: "stub", ContainedPaths: true}, []string{"/usr/local/go/bin"}, 0, "cannot mount"},
		"a backend on the host's paths":    {nil, Capabilities{Backend: "stub"}, nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, asked := range []bool{false, true} {
				set := toolset{found: []toolchain.Toolchain{shown, python}}
				if asked {
					set = toolset{asked: set.found}
				}
				all, path, notes, faults := set.mount(c.mounts, c.caps)
				if len(all) != len(c.mounts)+c.added {
					t.Errorf("mounts %v", all)
				}
				said, other := notes, faults
				if asked {
					said, other = faults, notes
				} else if !slices.Equal(path, c.path) {
					t.Errorf("path %q, want %q", path, c.path)
				}
				if len(other) > 0 || (c.reason != "") != (len(said) == 1) || !strings.Contains(strings.Join(said, ""), c.reason) {
					t.Errorf("asked %t: notes %q, faults %q", asked, notes, faults)
				}
				for _, m := range all[len(c.mounts):] {
					if m.Writable || m.Source != m.Dest {
						t.Errorf("mount %+v", m)
					}
				}
			}
		})
	}
}
