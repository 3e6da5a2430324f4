//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// lastCapability is the highest number that the kernel's interface has room for.
const lastCapability = 63

// drop gives up, on the calling thread and for good, everything that root has.
// The calls are raw: those of package syscall would change every thread, which
// the exec that follows ends anyway.
func (p Plan) drop() error {
	if err := dropBounding(); err != nil {
		return err
	}
	uid, gid := uintptr(p.UID), uintptr(p.GID)
	for _, c := range []struct {
		name string
		call uintptr
		args [3]uintptr
		off  bool
	}{
		{"setgroups", unix.SYS_SETGROUPS, [3]uintptr{}, defence.LaunchGroups.Off()},
		{"setresgid", unix.SYS_SETRESGID, [3]uintptr{gid, gid, gid}, defence.LaunchGID.Off()},
		{"setresuid", unix.SYS_SETRESUID, [3]uintptr{uid, uid, uid}, defence.LeasedUID.Off()},
	} {
		if c.off {
			continue
		}
		if _, _, errno := unix.RawSyscall(c.call, c.args[0], c.args[1], c.args[2]); errno != 0 {
			return fmt.Errorf("%s: %w", c.name, errno)
		}
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	if !defence.LaunchNoNewPrivileges.Off() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", err)
		}
	}
	if err := p.sameParent(); err != nil {
		return err
	}
	if !defence.LaunchDirectory.Off() {
		if err := unix.Chdir("/"); err != nil {
			return fmt.Errorf("change to the root directory: %w", err)
		}
	}
	return freshKeyring()
}

// dropBounding empties the bounding set while that is still permitted.
func dropBounding() error {
	if defence.LaunchBoundingSet.Off() {
		return nil
	}
	for capability := range uintptr(lastCapability + 1) {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && capability > 0 {
			return nil // the kernel has no more
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	return nil
}

// dropCapabilities empties the sets that a uid change leaves, and looks whether
// they are empty.
func dropCapabilities() error {
	if defence.LaunchCapabilities.Off() {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("clear capabilities: %w", err)
	}
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, d := range data {
		if d.Effective|d.Permitted|d.Inheritable != 0 {
			return fmt.Errorf("capabilities are left: %+v", data)
		}
	}
	return nil
}

// sameParent refuses to go on for a driver that has ended meanwhile. There is no
// parent death signal: bubblewrap that dies between making its child and letting
// it go would leave that child waiting for ever. It asks for the signal itself
// when it is past that.
func (p Plan) sameParent() error {
	if parent := unix.Getppid(); parent != p.Parent && !defence.LaunchParent.Off() {
		return fmt.Errorf("the parent is process %d, not %d", parent, p.Parent)
	}
	return nil
}

// freshKeyring leaves the session keyring of whoever started us. Where keyctl is
// absent or refused, it is so for the sandbox too, which inherits the refusal.
func freshKeyring() error {
	if defence.LaunchKeyring.Off() {
		return nil
	}
	// The null pointer makes it anonymous; x/sys/unix passes a pointer to an empty
	// name, and a named keyring may be somebody else's.
	_, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	if errno != 0 && errno != unix.ENOSYS && errno != unix.EPERM {
		return fmt.Errorf("join a fresh session keyring: %w", errno)
	}
	return nil
}

// limitCores sets the core size to 1 byte, which also stops a core_pattern that is
// a pipe; 0 does not stop that. A process that may not raise the hard limit from 0
// stays there, if the pattern is a file.
func limitCores() error {
	if defence.LaunchCores.Off() {
		return nil
	}
	limit := unix.Rlimit{Cur: 1, Max: 1}
	err := unix.Prlimit(0, unix.RLIMIT_CORE, &limit, nil)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	pattern, readErr := os.ReadFile("/proc/sys/kernel/core_pattern")
	if readErr != nil || bytes.HasPrefix(pattern, []byte("|")) {
		return errors.Join(err, readErr)
	}
	return nil
}
