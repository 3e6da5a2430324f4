package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// ownMounts is how a process gets mounts of its own, where what the host mounts later
// does not arrive. bubblewrap only makes its mounts slaves of the host's: below a
// source or /usr such a mount would appear inside, writable. Without privileges it
// takes a user namespace around bubblewrap's own. The zero value stays among the
// caller's mounts.
type ownMounts struct {
	// tool is the path of util-linux's unshare, which goes first and becomes the
	// program; empty for none.
	tool string
	// fork has the Go runtime make the namespaces. It copies the caller's page
	// tables for that: 1 ms for a small caller, 100 ms for one of a gigabyte.
	fork bool
}

// waysApart are those worth a trial, best first. The last is not apart.
func waysApart() []ownMounts {
	ways := []ownMounts{{fork: true}, {}}
	tool, err := exec.LookPath("unshare")
	if err == nil {
		tool, err = filepath.Abs(tool)
	}
	if err != nil {
		return ways
	}
	return append([]ownMounts{{tool: tool}}, ways...)
}

// wrap makes a start one in namespaces of its own, in which the caller is itself,
// without privileges, or root.
func (o ownMounts) wrap(path string, argv []string, attr *os.ProcAttr, root bool) (string, []string) {
	uid, gid, who := os.Geteuid(), os.Getegid(), "--map-current-user"
	inside := [2]int{uid, gid}
	if root {
		inside, who = [2]int{0, 0}, "--map-root-user"
	}
	switch {
	case o.tool != "":
		options := []string{"unshare", "--user", who, "--mount", "--propagation", "private", "--", path}
		return o.tool, slices.Concat(options, argv[1:])
	case o.fork:
		attr.Sys.Cloneflags = syscall.CLONE_NEWUSER
		attr.Sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: inside[0], HostID: uid, Size: 1}}
		attr.Sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: inside[1], HostID: gid, Size: 1}}
		// With this flag the runtime makes all mounts private too.
		attr.Sys.Unshareflags = syscall.CLONE_NEWNS
	}
	return path, argv
}
