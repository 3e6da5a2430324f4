package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// planner makes programs out of requests. It does not change.
type planner struct {
	home string
	dir  string
	env  map[string]string
	// session has what lies between env and a request's own.
	session *session
}

func newPlanner(config boot.Config, sess *session) planner {
	shell := "/bin/sh"
	if info, err := os.Stat("/bin/bash"); err == nil && info.Mode().IsRegular() {
		shell = "/bin/bash"
	}
	temp := config.TempDir
	if temp == "" {
		temp = "/tmp"
	}
	return planner{home: config.Home, dir: config.Dir, session: sess, env: map[string]string{
		"PATH": config.Path, "HOME": config.Home, "USER": config.User, "LOGNAME": config.User,
		"SHELL": shell, "LANG": "C.UTF-8", "TMPDIR": temp,
	}}
}

// plan checks the request and finds its program. The error is a *connect.Error
// for a request that is wrong, else a *startError.
func (p planner) plan(config *agentv1.ProcessConfig, terminal bool) (program, error) {
	if err := checkConfig(config); err != nil {
		return program{}, err
	}
	out := program{dir: p.directory(config.GetCwd()), args: append([]string{config.GetCmd()}, config.GetArgs()...)}
	var search string
	out.env, search = p.environment(p.session.environment(config.GetEnvs()), terminal)
	var err error
	out.path, err = lookUp(config.GetCmd(), search, out.dir)
	if err != nil {
		// A missing directory is the more useful news.
		if known := checkDirectory(out.dir); known != nil {
			return program{}, known
		}
		return program{}, err
	}
	return out, nil
}

// checkConfig refuses what execve could not take or would take wrongly.
func checkConfig(config *agentv1.ProcessConfig) error {
	if config.GetCmd() == "" {
		return connect.NewError(connect.CodeInvalidArgument, "the command is empty")
	}
	texts := append([]string{config.GetCmd(), config.GetCwd()}, config.GetArgs()...)
	for key, value := range config.GetEnvs() {
		if !isName(key) {
			return connect.Errorf(connect.CodeInvalidArgument, "environment key %q is not a name", key)
		}
		texts = append(texts, value)
	}
	if slices.ContainsFunc(texts, func(text string) bool { return strings.ContainsRune(text, 0) }) && !defence.CommandWithoutNUL.Off() {
		return connect.NewError(connect.CodeInvalidArgument, "the command, its directory or its environment has a NUL byte")
	}
	return nil
}

// isName is true for what POSIX calls a name.
func isName(key string) bool {
	for i, c := range []byte(key) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return key != ""
}

// directory resolves a working directory: empty is the session's or else the
// default one, `~` and
// relative ones are the home's.
func (p planner) directory(cwd string) string {
	switch {
	case cwd == "":
		if cwd = p.session.workdir(); cwd == "" {
			return p.dir
		}
		return p.directory(cwd)
	case cwd == "~" || strings.HasPrefix(cwd, "~/"):
		return filepath.Join(p.home, cwd[1:])
	case !filepath.IsAbs(cwd):
		return filepath.Join(p.home, cwd)
	}
	return cwd
}

// environment gives the sorted environment and the PATH in it.
func (p planner) environment(extra map[string]string, terminal bool) (env []string, search string) {
	env = make([]string, 0, len(p.env)+len(extra)+1)
	if defence.CommandEnvironment.Off() {
		env = os.Environ()
	}
	if _, given := extra["TERM"]; terminal && !given {
		env = append(env, "TERM=xterm-256color")
	}
	for key, value := range p.session.around.under(extra) {
		env = append(env, key+"="+value)
	}
	for key, value := range p.env {
		if _, replaced := extra[key]; !replaced {
			env = append(env, key+"="+value)
		}
	}
	for key, value := range extra {
		env = append(env, key+"="+value)
	}
	slices.Sort(env)
	search, replaced := extra["PATH"]
	if !replaced {
		search = p.env["PATH"]
	}
	return env, search
}

// lookUp finds a program as execvp does. A name with a slash is left to the
// kernel, which resolves it from the working directory.
func lookUp(name, search, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var refused error
	for _, entry := range filepath.SplitList(search) {
		if entry == "" {
			entry = "."
		}
		candidate := filepath.Join(resolveFrom(dir, entry), name)
		err := executable(candidate)
		if err == nil {
			return candidate, nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && refused == nil {
			refused = err
		}
	}
	if refused != nil {
		return "", &startError{reason: notExecutable, text: fmt.Sprintf("%q cannot be executed: %v", name, refused), err: refused}
	}
	return "", &startError{reason: notFound, text: fmt.Sprintf("%q: no such program in PATH", name), err: unix.ENOENT}
}

// executable says why a file cannot be run.
func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		// A directory of PATH that cannot be searched holds no program, as for a
		// shell.
		return unix.ENOENT
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EISDIR
	}
	return unix.Access(path, unix.X_OK)
}

// resolveFrom makes path absolute from dir.
func resolveFrom(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
