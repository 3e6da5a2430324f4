//go:build linux

package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

func namespaceFamily() map[string]attack {
	return map[string]attack{"namespaces": namespaces, "setns": setns, "mount-calls": mountCalls, "new-mounts": newMounts}
}

// kinds of namespaces.
func kinds() map[string]uintptr {
	return map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
		"user and mount": unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
	}
}

// namespaces makes each kind by each call, also with bits above the 32 that the
// kernel looks at.
func namespaces(r *report, _ []string) error {
	for name, flag := range kinds() {
		for _, high := range []uintptr{0, 1 << 32, 1 << 63} {
			suffix := fmt.Sprintf("%s %#x", name, high)
			// In clone the bit of the time namespace is one of the exit signal's.
			if flag != unix.CLONE_NEWTIME {
				r.child("clone "+suffix, func() (uintptr, unix.Errno) { return clone(flag | high | uintptr(unix.SIGCHLD)) })
			}
			r.child("unshare "+suffix, func() (uintptr, unix.Errno) {
				result, _, errno := unix.Syscall(unix.SYS_UNSHARE, flag|high, 0, 0)
				return result, errno
			})
		}
		r.child("clone3 "+name, func() (uintptr, unix.Errno) { return clone3(uint64(flag)) })
	}
	r.child("control clone", func() (uintptr, unix.Errno) { return clone(uintptr(unix.SIGCHLD)) })
	r.child("control clone3", func() (uintptr, unix.Errno) { return clone3(0) })
	return nil
}

// child records a call that may have made a child, and waits for that.
func (r *report) child(name string, call func() (uintptr, unix.Errno)) {
	pid, errno := call()
	if errno != 0 {
		r.add(name, errno)
		return
	}
	if pid != 0 {
		_, _ = unix.Wait4(int(pid), nil, unix.WALL, nil)
	}
	r.add(name, nil)
}

// clone forks; the child ends at once.
func clone(flags uintptr) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	if pid == 0 && errno == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return pid, errno
}

// clone3 is clone with its flags in memory, where no filter sees them.
func clone3(flags uint64) (uintptr, unix.Errno) {
	args := [11]uint64{0: flags, 4: uint64(unix.SIGCHLD)}
	pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if pid == 0 && errno == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return pid, errno
}

// setns enters namespaces by descriptors of files and of processes.
func setns(r *report, _ []string) error {
	for _, file := range []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup", "time", "pid_for_children"} {
		fd, err := unix.Open("/proc/self/ns/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		r.add("control open own "+file, err)
		if err == nil {
			r.call("setns "+file, unix.SYS_SETNS, uintptr(fd), 0)
			r.call("setns high "+file, unix.SYS_SETNS, uintptr(fd)|1<<32, 1<<32)
			_ = unix.Close(fd)
		}
		_, err = unix.Open("/proc/1/ns/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		r.add("open the agent's "+file, err)
	}
	for _, pid := range []int{1, unix.Getpid()} {
		fd, err := unix.PidfdOpen(pid, 0)
		r.add(fmt.Sprintf("control pidfd of %d", pid), err)
		for name, flag := range kinds() {
			r.call(fmt.Sprintf("setns by pid %d %s", pid, name), unix.SYS_SETNS, uintptr(fd), flag)
		}
	}
	return nil
}

// mountCalls are the old calls that change what is mounted.
func mountCalls(r *report, _ []string) error {
	at := r.text
	for name, flags := range map[string]uintptr{
		"remount rw": unix.MS_REMOUNT | unix.MS_BIND, "bind": unix.MS_BIND | unix.MS_REC, "shared": unix.MS_SHARED | unix.MS_REC,
		"move": unix.MS_MOVE, "magic": 0xc0ed0000 | unix.MS_BIND,
	} {
		for _, target := range []string{"/", "/usr", "/etc", "/proc/sys", "/dev", "/tmp"} {
			r.call("mount "+name+" "+target, unix.SYS_MOUNT, at("/tmp"), at(target), 0, flags, 0)
		}
	}
	for _, kind := range []string{"tmpfs", "proc", "sysfs", "devpts", "cgroup2", "overlay", "fuse", "binfmt_misc", "bpf"} {
		r.call("mount a "+kind, unix.SYS_MOUNT, at("x"), at("/tmp"), at(kind), 0, 0)
	}
	for _, target := range []string{"/proc/sys", "/proc/kcore", "/proc", "/etc", "/", "/tmp"} {
		r.call("umount "+target, unix.SYS_UMOUNT2, at(target), 0)
		r.call("umount lazily "+target, unix.SYS_UMOUNT2, at(target), unix.MNT_DETACH)
	}
	r.call("pivot_root", unix.SYS_PIVOT_ROOT, at("/tmp"), at("/tmp"))
	r.call("chroot", unix.SYS_CHROOT, at("/tmp"))
	return nil
}

// newMounts are the calls by descriptor.
func newMounts(r *report, _ []string) error {
	at := r.text
	here := unix.AT_FDCWD
	cwd := uintptr(here)
	for _, kind := range []string{"tmpfs", "proc", "sysfs", "ext4", "cgroup2", "overlay"} {
		r.call("fsopen "+kind, unix.SYS_FSOPEN, at(kind), unix.FSOPEN_CLOEXEC)
	}
	for _, path := range []string{"/", "/proc/sys", "/etc"} {
		r.call("open_tree "+path, unix.SYS_OPEN_TREE, cwd, at(path), unix.OPEN_TREE_CLOEXEC)
		r.call("open_tree a copy of "+path, unix.SYS_OPEN_TREE, cwd, at(path), unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)
		r.call("fspick "+path, unix.SYS_FSPICK, cwd, at(path), 0)
		attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		r.call("mount_setattr "+path, unix.SYS_MOUNT_SETATTR, cwd, at(path), unix.AT_RECURSIVE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		r.call("open_tree_attr "+path, unix.SYS_OPEN_TREE_ATTR, cwd, at(path), unix.OPEN_TREE_CLONE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		r.call("move_mount "+path, unix.SYS_MOVE_MOUNT, cwd, at("/tmp"), cwd, at(path), 0)
	}
	r.call("fsconfig", unix.SYS_FSCONFIG, 0, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
	r.call("fsmount", unix.SYS_FSMOUNT, 0, 0, 0)
	return nil
}
