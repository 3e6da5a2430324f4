//go:build linux

package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// PlanFD is the descriptor on which the agent's launch mode reads its plan: the
// standard input, because 3 is the control socket of the agent that Program
// starts in the end.
const PlanFD = 0

// MaxBytes bounds an encoded plan, maxStatus what is read of a failure.
const (
	MaxBytes  = 1 << 20
	maxStatus = 64 << 10
)

// maxMounts bounds the number of mounts of one plan.
const maxMounts = 256

// Plan is all that the launcher does. The driver makes it; nothing in it comes
// from a sandbox.
type Plan struct {
	// Parent is the driver's process id. The launcher ends when it is not the
	// child of that process any more.
	Parent int `json:"parent"`
	// UID and GID are what the launcher becomes for good; neither is 0.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Staging is an existing directory, absolute, clean and without symbolic links. In
	// the launcher's own mount namespace a small file system is mounted there, or
	// over the first of its parents that others may not search; the mounts appear
	// below it (Path). On the host nothing is seen of this.
	Staging string  `json:"staging"`
	Mounts  []Mount `json:"mounts,omitempty"`
	// Program is the absolute path of the program to become, Args its arguments
	// from argv[0] on. Its environment is empty.
	Program string   `json:"program"`
	Args    []string `json:"args"`
	// Keep lists the descriptors that Program inherits. Of 0, 1 and 2 those that are not
	// listed are /dev/null.
	Keep []int `json:"keep,omitempty"`
	// Status is the descriptor for a failure, read with ReadStatus. It is closed
	// when Program starts. It is not among Keep.
	Status int `json:"status"`
}

// Mount is a host directory to be shown to the sandbox.
type Mount struct {
	// Name is the directory's name below Staging: one or more of [A-Za-z0-9_-],
	// unique in the plan.
	Name string `json:"name"`
	// Source is an absolute, clean path. No component of it may be a symbolic link.
	Source string `json:"source"`
	// Identity is what the driver saw at Source; the launcher refuses anything
	// else. Nil compares nothing.
	Identity *Identity `json:"identity,omitempty"`
	// Unmapped: the owners of files are shown as they are on the host, or as nobody.
	// It spares the user namespace of a map, and is refused with Writable.
	Unmapped bool `json:"unmapped,omitempty"`
	// Writable: without it the mount is read-only. A writable mount whose files
	// cannot be made to belong to the source's owner is refused.
	Writable bool `json:"writable,omitempty"`
}

// Identity says which directory a path led to.
type Identity struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Path gives the absolute path of a staged mount, as Program sees it.
func (p Plan) Path(name string) string { return filepath.Join(p.Staging, name) }

// Encode gives the plan as the launcher reads it. It fails, with
// errdefs.Invalid and every reason, on a plan that the launcher would refuse.
func (p Plan) Encode() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	out, err := json.Marshal(p)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Internal, "encode launch plan", err)
	}
	if len(out) > MaxBytes {
		return nil, errdefs.New(errdefs.Invalid, "encode launch plan",
			fmt.Sprintf("the plan has %d bytes, more than %d", len(out), MaxBytes))
	}
	return out, nil
}

// decode reads a plan to the end of the input. Status is set, when it could be
// read, even if the rest of the plan is refused.
func decode(in io.Reader) (Plan, error) {
	data, err := io.ReadAll(io.LimitReader(in, MaxBytes+1))
	if err != nil {
		return Plan{}, errdefs.Wrap(errdefs.Internal, "read launch plan", err)
	}
	if len(data) > MaxBytes {
		return Plan{}, errdefs.New(errdefs.Invalid, "read launch plan", "the plan is too long")
	}
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return p, errdefs.Wrap(errdefs.Invalid, "read launch plan", err)
	}
	return p, p.check()
}

// check gives every fault of the plan in one error.
func (p Plan) check() error {
	var reasons []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			reasons = append(reasons, fmt.Sprintf(format, args...))
		}
	}
	fault(p.Parent <= 0, "the parent's process id is %d", p.Parent)
	fault(p.UID == 0 || p.UID == ^uint32(0), "uid %d cannot be leased", p.UID)
	fault(p.GID == 0 || p.GID == ^uint32(0), "gid %d cannot be leased", p.GID)
	fault(!clean(p.Staging), "staging directory %q is not an absolute, clean path", p.Staging)
	fault(!clean(p.Program), "program %q is not an absolute, clean path", p.Program)
	fault(len(p.Args) == 0, "the program has no argv[0]")
	fault(slices.ContainsFunc(p.Args, hasNUL), "an argument has a zero byte")
	fault(p.Status < 3, "the status descriptor is %d", p.Status)
	fault(slices.Contains(p.Keep, p.Status), "the status descriptor would be inherited")
	for _, fd := range p.Keep {
		fault(fd < 0, "descriptor %d", fd)
	}
	fault(len(p.Mounts) > maxMounts, "%d mounts, more than %d", len(p.Mounts), maxMounts)
	names := map[string]bool{}
	for _, m := range p.Mounts {
		fault(!validName(m.Name), "mount name %q", m.Name)
		fault(names[m.Name], "mount name %q is there twice", m.Name)
		fault(!clean(m.Source), "mount %s: source %q is not an absolute, clean path", m.Name, m.Source)
		// JSON would make another path of it, which may exist too.
		fault(!utf8.ValidString(m.Source), "mount %s: source %q is not UTF-8", m.Name, m.Source)
		fault(m.Unmapped && m.Writable, "mount %s is writable and unmapped", m.Name)
		names[m.Name] = true
	}
	if len(reasons) > 0 && !defence.LaunchPlan.Off() {
		return errdefs.New(errdefs.Invalid, "launch plan", reasons...)
	}
	return nil
}

func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }

// clean accepts an absolute path in its shortest form.
func clean(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !hasNUL(path)
}

// validName accepts a plain directory name.
func validName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// ReadStatus reads the other end of the status descriptor until its end. Nil
// says that the launcher either became Program or died without a word: its exit
// tells which. Otherwise the error is the launcher's *errdefs.Error.
func ReadStatus(in io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(in, maxStatus+1))
	if err != nil {
		return errdefs.Wrap(errdefs.Internal, "read launch status", err)
	}
	if len(data) == 0 {
		return nil
	}
	var e errdefs.Encoded
	if err := json.Unmarshal(data, &e); err != nil || e.Name == "" {
		return errdefs.New(errdefs.Internal, "launch", "the launcher's status cannot be read")
	}
	out := &errdefs.Error{Kind: errdefs.Kind(e.Name), Op: "launch", Reasons: e.Reasons}
	switch {
	case e.Cause != "":
		out.Err = errors.New(e.Cause)
	case len(e.Reasons) == 0:
		out.Err = errors.New(e.Message)
	}
	return out
}
