//go:build linux

package launch

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// owner is who a source directory belongs to.
type owner struct{ uid, gid uint32 }

// owners makes one user namespace for each owner that mounts of a plan have.
type owners struct {
	plan  Plan
	known map[owner]int
}

// needed says whether a map is: not where the leased ids own the directory.
func (o *owners) needed(of owner) bool { return of.uid != o.plan.UID || of.gid != o.plan.GID }

// namespace gives the descriptor of a user namespace that shows the owner's files
// as the leased ids', and writes the leased ids' files as the owner's. All other
// owners are the overflow ids, which nobody has, so their files cannot be changed.
func (o *owners) namespace(of owner) (int, error) {
	if fd, known := o.known[of]; known {
		return fd, nil
	}
	fd, err := userNamespace(
		syscall.SysProcIDMap{ContainerID: int(of.uid), HostID: int(o.plan.UID), Size: 1},
		syscall.SysProcIDMap{ContainerID: int(of.gid), HostID: int(o.plan.GID), Size: 1})
	if err != nil {
		return -1, fmt.Errorf("user namespace for the map: %w", err)
	}
	o.known[of] = fd
	return fd, nil
}

// close lets go of the descriptors; mounts keep their maps.
func (o *owners) close() {
	for _, fd := range o.known {
		_ = unix.Close(fd)
	}
}

// userNamespace makes a user namespace with the help of a child that never runs:
// it is traced, stops before the first instruction of its program, and is killed
// there. The caller's goroutine is locked to its thread, which is the tracer.
func userNamespace(uids, gids syscall.SysProcIDMap) (int, error) {
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"berm-map"}, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{uids},
			GidMappings: []syscall.SysProcIDMap{gids},
			Pdeathsig:   syscall.SIGKILL,
			Ptrace:      true,
		},
	})
	if err != nil {
		return -1, fmt.Errorf("start its first process: %w", err)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if end := endChild(pid); end != nil {
		err = errors.Join(err, end)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// endChild kills a child and waits until it is gone, past the stop before.
func endChild(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
		if status.Exited() || status.Signaled() {
			return nil
		}
	}
}
