package toolchain_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/toolchain"
)

// tree makes files, and links where an entry has "->", below a new folder and
// gives it.
func tree(t *testing.T, entries ...string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name, target, link := strings.Cut(entry, "->")
		name, content, _ := strings.Cut(name, "=")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func python(dir, version string) []string {
	return []string{
		dir + "/bin/python3", dir + "/lib/python" + version + "/os.py", dir + "/include/python.h", dir + "/etc/pip.conf", dir + "/cache/x",
	}
}

func nodejs(dir string) []string {
	return []string{dir + "/bin/node", dir + "/include/node/node.h", dir + "/lib/node_modules/npm/package.json", dir + "/etc/npmrc"}
}

func rust(dir string) []string {
	return []string{dir + "/bin/rustc", dir + "/bin/cargo", dir + "/lib/rustlib/components", dir + "/etc/bash_completion.d/cargo"}
}

func java(dir string) []string {
	return []string{dir + "/bin/java", dir + "/lib/modules", dir + "/conf/net.properties", dir + "/release=JAVA_VERSION=\"21.0.2\"\n"}
}

func TestManagers(t *testing.T) {
	t.Parallel()
	pyenv := slices.Concat(python(".pyenv/versions/3.11.7", "3.11"), python(".pyenv/versions/3.9.18", "3.9"), python(".pyenv/versions/3.11.10", "3.11"),
		[]string{".pyenv/shims/python3", ".pyenv/libexec/pyenv", ".pyenv/version=3.9.18\n"})
	rustup := slices.Concat(rust(".rustup/toolchains/stable-x86_64-unknown-linux-gnu"), rust(".rustup/toolchains/1.80.0-x86_64-unknown-linux-gnu"),
		[]string{".cargo/bin/rustup", ".cargo/bin/cargo->rustup", ".cargo/credentials.toml", ".rustup/settings.toml=version = \"12\"\ndefault_toolchain = \"stable-x86_64-unknown-linux-gnu\"\n"})
	for name, c := range map[string]struct {
		files []string
		path  string
		env   map[string]string
		roots []string
		names []string
	}{
		"pyenv, global":            {pyenv, ".pyenv/shims", nil, []string{".pyenv/versions/3.9.18"}, []string{"python 3.9.18"}},
		"pyenv, variable":          {pyenv, ".pyenv/shims", map[string]string{"PYENV_VERSION": "3.11.7"}, []string{".pyenv/versions/3.11.7"}, []string{"python 3.11.7"}},
		"pyenv, local":             {append(pyenv, "project/.python-version=3.11 # newest\n"), ".pyenv/shims", nil, []string{".pyenv/versions/3.11.10"}, []string{"python 3.11.10"}},
		"pyenv, two":               {pyenv, ".pyenv/shims", map[string]string{"PYENV_VERSION": "3.11.7:3.9.18"}, []string{".pyenv/versions/3.11.7", ".pyenv/versions/3.9.18"}, nil},
		"pyenv, system":            {pyenv, ".pyenv/shims", map[string]string{"PYENV_VERSION": "system"}, nil, nil},
		"pyenv, a name that leads": {pyenv, ".pyenv/shims", map[string]string{"PYENV_VERSION": "../../.cargo"}, nil, nil},
		"rustup, default":          {rustup, ".cargo/bin", nil, []string{".rustup/toolchains/stable-x86_64-unknown-linux-gnu"}, []string{"rust stable-x86_64-unknown-linux-gnu"}},
		"rustup, file":             {append(rustup, "project/rust-toolchain.toml=[toolchain]\nchannel = \"1.80.0\" # pinned\n"), ".cargo/bin", nil, []string{".rustup/toolchains/1.80.0-x86_64-unknown-linux-gnu"}, nil},
		"rustup, old file":         {append(rustup, "project/rust-toolchain=1.80.0\n"), ".cargo/bin", nil, []string{".rustup/toolchains/1.80.0-x86_64-unknown-linux-gnu"}, nil},
		"nvm":                      {append(nodejs(".nvm/versions/node/v20.20.2"), ".nvm/.npmrc"), ".nvm/versions/node/v20.20.2/bin", nil, []string{".nvm/versions/node/v20.20.2"}, []string{"node 20.20.2"}},
		"volta": {append(nodejs(".volta/tools/image/node/20.20.2"), `.volta/tools/user/platform.json={"node":{"runtime":"20.20.2","npm":null}}`, ".volta/bin/node"),
			".volta/bin", nil, []string{".volta/tools/image/node/20.20.2"}, []string{"node 20.20.2"}},
		"conda":  {append(python("miniconda3/envs/work", "3.12"), "miniconda3/envs/work/conda-meta/history", "miniconda3/pkgs/x", ".condarc"), "miniconda3/envs/work/bin", nil, []string{"miniconda3/envs/work"}, []string{"conda work"}},
		"sdkman": {append(java(".sdkman/candidates/java/21.0.2-tem"), ".sdkman/candidates/java/current->21.0.2-tem"), ".sdkman/candidates/java/current/bin", nil, []string{".sdkman/candidates/java/21.0.2-tem"}, []string{"java 21.0.2"}},
		"asdf":   {append(nodejs(".asdf/installs/nodejs/18.19.0"), ".asdf/shims/node", "project/.tool-versions=python 3.1\nnodejs 18.19.0\n"), ".asdf/shims", nil, []string{".asdf/installs/nodejs/18.19.0"}, nil},
		"mise":   {append(nodejs(".local/share/mise/installs/node/22.1.0"), ".local/share/mise/shims/node", ".config/mise/config.toml=[tools]\nnode = \"22\"\n"), ".local/share/mise/shims", nil, []string{".local/share/mise/installs/node/22.1.0"}, nil},
		"go":     {[]string{"sdk/go1.26.0/VERSION=go1.26.0\ntime x\n", "sdk/go1.26.0/bin/go", "sdk/go1.26.0/pkg/tool/linux_amd64/compile", "sdk/go1.26.0/src/fmt/print.go"}, "sdk/go1.26.0/bin", nil, []string{"sdk/go1.26.0"}, []string{"go 1.26.0"}},
		"a virtual environment": {
			append(python("opt/py", "3.12"), "project/.venv/pyvenv.cfg=home = x\nversion = 3.12.1\n", "project/.venv/lib/python3.12/site-packages/x.py", "project/.venv/bin/python3->../../../opt/py/bin/python3"),
			"project/.venv/bin", nil, []string{"project/.venv", "opt/py"}, []string{"virtual environment 3.12.1", "python 3.12"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := tree(t, append(c.files, "project/main")...)
			host := toolchain.Host{
				Path: "/usr/bin:relative:" + filepath.Join(home, c.path) + ":" + filepath.Join(home, c.path) + ":/bin",
				Home: home, Dir: filepath.Join(home, "project"), Env: func(name string) string { return c.env[name] },
			}
			found, notes := toolchain.Find(host)
			if len(found) != len(c.roots) || len(notes) != 0 {
				t.Fatalf("found %+v, notes %q", found, notes)
			}
			for i, f := range found {
				if f.Root != filepath.Join(home, c.roots[i]) || c.names != nil && f.Name != c.names[i] {
					t.Errorf("found %q at %s", f.Name, f.Root)
				}
				checkShown(t, f)
			}
		})
	}
}

// checkShown: what is shown are folders of the version's own, without links,
// and nothing that may hold configuration.
func checkShown(t *testing.T, f toolchain.Toolchain) {
	t.Helper()
	if len(f.Path) == 0 {
		t.Errorf("%s has no programs", f.Name)
	}
	for _, dir := range append(f.Dirs, f.Path...) {
		real, err := filepath.EvalSymlinks(dir)
		name := filepath.Base(dir)
		if err != nil || real != dir || filepath.Dir(dir) != f.Root || name == "etc" || name == "cache" || strings.HasPrefix(name, ".") {
			t.Errorf("%s shows %s (%v)", f.Name, dir, err)
		}
	}
}

// TestRefused: folders that are more than one version's own, or none.
func TestRefused(t *testing.T) {
	t.Parallel()
	home := tree(t, append(python(".local", "3.11"), python("tools", "3.11")...)...)
	for name, c := range map[string]struct {
		root, home, dir, say string
	}{
		"the home directory":       {filepath.Join(home, "tools"), filepath.Join(home, "tools"), "", "holds the home"},
		"above the home directory": {filepath.Join(home, "tools"), filepath.Join(home, "tools", "bin"), "", "holds the home"},
		"the working directory":    {filepath.Join(home, "tools"), home, filepath.Join(home, "tools", "lib"), "working directory"},
		"the system":               {"/usr", home, "", "the system's own"},
		"nothing":                  {filepath.Join(home, "tools", "lib"), home, "", "no Python"},
		"missing":                  {filepath.Join(home, "none"), home, "", "no Python"},
		"relative":                 {"tools", home, "", "not absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := toolchain.At(toolchain.Host{Home: c.home, Dir: c.dir}, c.root)
			if err == nil || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want %q", err, c.say)
			}
		})
	}
	if found, err := toolchain.At(toolchain.Host{Home: home}, filepath.Join(home, "tools")); err != nil || len(found) != 1 {
		t.Errorf("a tarball: %v, %v", found, err)
	}
	// A library folder that is a link elsewhere is not followed.
	linked := tree(t, append(python("real", "3.11"), "v/bin/python3", "v/lib->../real/lib")...)
	found, err := toolchain.At(toolchain.Host{}, filepath.Join(linked, "v"))
	if err != nil || slices.Contains(found[0].Dirs, filepath.Join(linked, "v", "lib")) {
		t.Errorf("a linked library folder: %v, %v", found, err)
	}
}

func FuzzVersionFiles(f *testing.F) {
	for _, seed := range []string{
		"3.11.7", "3.11", "../x", "", "system", "3.11.7:3.9", "/etc", "a/../../b", "..", ".", "-rf", "3.11.7\n3.9.18", "# x", "\x00", "3.11.7/..",
		"pypy3.9-7.3.9", "3.12-dev", "miniconda3-latest", "3.11.7 3.9.18", "３.11", "node", "nodejs 18", "[tools]\nnode=\"1\"",
	} {
		f.Add(seed)
	}
	home := f.TempDir()
	for _, dir := range []string{".pyenv/shims", ".pyenv/libexec/pyenv", ".pyenv/versions/3.11.7/bin/python3", ".pyenv/versions/3.11.7/lib/python3.11/os.py", "outside/bin/python3", "outside/lib/python3.11/os.py"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	real, err := filepath.EvalSymlinks(home)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, chosen string) {
		found, _ := toolchain.Find(toolchain.Host{
			Path: filepath.Join(real, ".pyenv", "shims"), Home: real,
			Env: func(name string) string {
				if name == "PYENV_VERSION" {
					return chosen
				}
				return ""
			},
		})
		for _, toolchain := range found {
			if filepath.Dir(toolchain.Root) != filepath.Join(real, ".pyenv", "versions") {
				t.Fatalf("%q chose %s", chosen, toolchain.Root)
			}
		}
	})
}
