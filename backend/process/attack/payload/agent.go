//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// agentPID is the agent: the sandbox's first process.
const agentPID = 1

func agentFamily() map[string]attack {
	return map[string]attack{
		"agent-memory": agentMemory, "agent-limits": agentLimits, "agent-pace": agentPace, "agent-threads": agentThreads,
		"agent-files": agentFiles, "wait": wait, "foreign": foreign, "handles": handles,
	}
}

// agentMemory reads, traces and takes from the agent.
func agentMemory(r *report, _ []string) error {
	buffer := make([]byte, 16)
	local := unix.Iovec{Base: &buffer[0], Len: 16}
	// A Go program on Linux is mapped at 4 MiB.
	remote := unix.RemoteIovec{Base: 0x400000, Len: 16}
	l, m := uintptr(unsafe.Pointer(&local)), uintptr(unsafe.Pointer(&remote))
	threads, err := agentTasks()
	if err != nil {
		return err
	}
	for _, pid := range threads {
		p := uintptr(pid)
		r.call("ptrace attach", unix.SYS_PTRACE, unix.PTRACE_ATTACH, p, 0, 0)
		r.call("ptrace seize", unix.SYS_PTRACE, unix.PTRACE_SEIZE, p, 0, 0)
		r.call("process_vm_readv", unix.SYS_PROCESS_VM_READV, p, l, 1, m, 1, 0)
		r.call("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, p, l, 1, m, 1, 0)
		r.call("kcmp", unix.SYS_KCMP, p, uintptr(os.Getpid()), 0, 0, 0)
		r.call("get_robust_list", unix.SYS_GET_ROBUST_LIST, p, l, l)
		r.call("move_pages", unix.SYS_MOVE_PAGES, p, 0, 0, 0, 0, 0)
		r.call("migrate_pages", unix.SYS_MIGRATE_PAGES, p, 0, 0, 0)
	}
	fd, err := unix.PidfdOpen(agentPID, 0)
	r.add("control pidfd", err)
	for number := range uintptr(32) {
		r.call(fmt.Sprintf("pidfd_getfd %d", number), unix.SYS_PIDFD_GETFD, uintptr(fd), number, 0)
	}
	r.call("process_madvise", unix.SYS_PROCESS_MADVISE, uintptr(fd), m, 1, unix.MADV_PAGEOUT, 0)
	r.call("process_mrelease", unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0)
	return nil
}

// handles is agentMemory on a child of the program's own: what is refused for
// the agent is not simply out of order.
func handles(r *report, _ []string) error {
	child := exec.Command("/bin/sleep", "60") //nolint:forbid // killed below
	if err := child.Start(); err != nil {
		return err
	}
	pid := child.Process.Pid
	fd, err := unix.PidfdOpen(pid, 0)
	r.add("control pidfd", err)
	r.call("control pidfd_getfd", unix.SYS_PIDFD_GETFD, uintptr(fd), 0, 0)
	r.call("control kcmp", unix.SYS_KCMP, uintptr(pid), uintptr(pid), 0, 0, 0)
	_, err = os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	r.add("control maps", err)
	_, err = os.Readlink(fmt.Sprintf("/proc/%d/root", pid))
	r.add("control root", err)
	r.call("control setpriority", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, uintptr(pid), 19)
	r.call("control ptrace seize", unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0)
	_ = child.Process.Kill()
	_ = child.Wait()
	return nil
}

// agentTasks lists the agent's threads.
func agentTasks() ([]int, error) {
	entries, err := os.ReadDir("/proc/1/task")
	var out []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, tid)
		}
	}
	return out, err
}

// agentLimits sets every limit of the agent, by each of its threads.
func agentLimits(r *report, _ []string) error {
	threads, err := agentTasks()
	if err != nil {
		return err
	}
	zero := r.memory(make([]byte, 16))
	for _, tid := range threads {
		for resource := range uintptr(16) {
			for _, high := range highs() {
				name := fmt.Sprintf("prlimit64 of thread %d, limit %d, %#x", tid, resource, high)
				r.call(name, unix.SYS_PRLIMIT64, uintptr(tid)|high, resource|high, zero, 0)
				r.call(name+" read", unix.SYS_PRLIMIT64, uintptr(tid)|high, resource, 0, r.memory(make([]byte, 16)))
			}
		}
	}
	r.call("control prlimit64 of this process", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 0, r.memory(make([]byte, 16)))
	return nil
}

// agentPace slows the agent's first thread, its group, or all of its user.
func agentPace(r *report, _ []string) error {
	uid := uintptr(os.Getuid())
	idle := r.memory(make([]byte, 64)) // priority 0
	attr := make([]byte, 56)
	attr[0], attr[4] = 56, unix.SCHED_IDLE
	mask := make([]byte, 128)
	mask[0] = 1
	const idleClass = 3 << 13
	for _, high := range highs() {
		suffix := fmt.Sprintf(" %#x", high)
		one := agentPID | high
		r.call("setpriority process"+suffix, unix.SYS_SETPRIORITY, unix.PRIO_PROCESS|high, one, 19)
		r.call("setpriority group"+suffix, unix.SYS_SETPRIORITY, unix.PRIO_PGRP|high, one, 19)
		r.call("setpriority user"+suffix, unix.SYS_SETPRIORITY, unix.PRIO_USER|high, uid|high, 19)
		r.call("setpriority own user"+suffix, unix.SYS_SETPRIORITY, unix.PRIO_USER|high, 0, 19)
		r.call("sched_setscheduler"+suffix, unix.SYS_SCHED_SETSCHEDULER, one, unix.SCHED_IDLE, idle)
		r.call("sched_setparam"+suffix, unix.SYS_SCHED_SETPARAM, one, idle)
		r.call("sched_setattr"+suffix, unix.SYS_SCHED_SETATTR, one, r.memory(attr), 0)
		r.call("sched_setaffinity"+suffix, unix.SYS_SCHED_SETAFFINITY, one, 128, r.memory(mask))
		r.call("ioprio process"+suffix, unix.SYS_IOPRIO_SET, 1|high, one, idleClass)
		r.call("ioprio group"+suffix, unix.SYS_IOPRIO_SET, 2|high, one, idleClass)
		r.call("ioprio user"+suffix, unix.SYS_IOPRIO_SET, 3|high, uid, idleClass)
	}
	r.call("setpgid", unix.SYS_SETPGID, agentPID, 0)
	r.call("setpgid to it", unix.SYS_SETPGID, 0, agentPID)
	r.call("control setpriority of this process", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 19)
	r.call("control sched_setaffinity of this process", unix.SYS_SCHED_SETAFFINITY, 0, 128, r.memory(mask))
	return nil
}

// agentThreads slows all threads of the agent that can be, over and over until
// the program is ended.
func agentThreads(*report, []string) error {
	mask := make([]byte, 128)
	mask[0] = 1
	var priority int32
	for {
		threads, err := agentTasks()
		if err != nil {
			return err
		}
		for _, tid := range threads {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)
			_, _, _ = unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), unix.SCHED_IDLE, uintptr(unsafe.Pointer(&priority)))
			_, _, _ = unix.Syscall(unix.SYS_SCHED_SETAFFINITY, uintptr(tid), 128, uintptr(unsafe.Pointer(&mask[0])))
		}
	}
}

// agentFiles opens what /proc has of the agent.
func agentFiles(r *report, _ []string) error {
	for _, base := range []string{"/proc/1", "/proc/1/task/1", "/proc/self/root/proc/1"} {
		for _, name := range []string{
			"environ", "mem", "maps", "smaps", "smaps_rollup", "map_files", "auxv", "stack", "syscall", "personality", "pagemap",
			"io", "timers", "numa_maps", "fd", "fdinfo", "ns/net", "ns/user", "ns/mnt",
		} {
			r.open("read "+base+"/"+name, filepath.Join(base, name), unix.O_RDONLY)
		}
		for _, name := range []string{"root", "cwd", "exe", "fd/0", "fd/3"} {
			_, err := os.Readlink(filepath.Join(base, name))
			r.add("follow "+base+"/"+name, err)
			r.open("read "+base+"/"+name, filepath.Join(base, name), unix.O_RDONLY)
		}
		for _, name := range []string{
			"mem", "oom_score_adj", "oom_adj", "coredump_filter", "clear_refs", "comm", "autogroup", "sched", "setgroups", "uid_map",
			"gid_map", "projid_map", "loginuid", "timens_offsets",
		} {
			r.open("write "+base+"/"+name, filepath.Join(base, name), unix.O_WRONLY)
		}
	}
	// These open, and refuse the write.
	r.add("write timerslack", os.WriteFile("/proc/1/timerslack_ns", []byte("1000000000"), 0))
	r.add("write attr", os.WriteFile("/proc/1/attr/current", []byte("x"), 0))
	_, err := os.ReadFile("/proc/1/stat")
	r.add("control stat", err)
	_, err = os.ReadFile("/proc/self/environ")
	r.add("control own environ", err)
	return nil
}

// open opens and closes; what some kernels lack is left out.
func (r *report) open(name, path string, flags int) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		_ = unix.Close(fd)
	} else if errnoName(err) == "ENOENT" {
		return
	}
	r.add(name, err)
}

// wait writes a line and waits for the end of its input.
func wait(*report, []string) error {
	if _, err := fmt.Fprintln(os.Stderr, "ready"); err != nil {
		return err
	}
	_, err := syscall.Read(0, make([]byte, 1))
	return err
}
