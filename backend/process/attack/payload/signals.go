//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func signalFamily() map[string]attack {
	return map[string]attack{"signals": signals}
}

// lastSignal is the highest number.
const lastSignal = 64

// signals sends the agent every signal in one way, the first argument. What is
// reported is what could be sent: whether the agent lives is the test's to say.
func signals(r *report, args []string) error {
	ways := map[string]func(r *report, signal uintptr) error{
		"kill": byKill, "threads": byThreads, "queue": byQueue, "pidfd": byPidfd, "news": byNews, "parent": byParent, "terminal": byTerminal,
	}
	if len(args) != 1 || ways[args[0]] == nil {
		return fmt.Errorf("no such way: %q", args)
	}
	for signal := uintptr(1); signal <= lastSignal; signal++ {
		if err := ways[args[0]](r, signal); err != nil {
			return err
		}
	}
	// The news of a descriptor comes when it likes.
	time.Sleep(50 * time.Millisecond)
	return nil
}

func byKill(r *report, signal uintptr) error {
	name := fmt.Sprintf("%d ", signal)
	r.call(name+"kill", unix.SYS_KILL, agentPID, signal)
	r.call(name+"kill high", unix.SYS_KILL, agentPID|1<<32, signal|1<<32)
	r.call(name+"kill its group", unix.SYS_KILL, ^uintptr(0), 0)
	return nil
}

func byThreads(r *report, signal uintptr) error {
	threads, err := agentTasks()
	for _, tid := range threads {
		r.call(fmt.Sprintf("%d tgkill %d", signal, tid), unix.SYS_TGKILL, agentPID, uintptr(tid), signal)
		r.call(fmt.Sprintf("%d tkill %d", signal, tid), unix.SYS_TKILL, uintptr(tid), signal)
	}
	return err
}

// codes are what a sender may claim of a signal's origin, and what only the
// kernel may: user, kernel, queue, timer, message queue, asynchronous, tkill,
// and the faults' own.
func codes() []int32 { return []int32{0, 0x80, -1, -2, -3, -4, -5, -6, -60, 1, 2, 3, 4} }

// info is a siginfo with an address of a fault.
func info(signal uintptr, code int32) []byte {
	out := make([]byte, 128)
	binary.NativeEndian.PutUint32(out, uint32(signal))
	binary.NativeEndian.PutUint32(out[8:], uint32(code))
	binary.NativeEndian.PutUint64(out[16:], 0xdead0000)
	return out
}

func byQueue(r *report, signal uintptr) error {
	threads, err := agentTasks()
	threads = append(threads[:1], threads[max(1, len(threads)-2):]...) // the first and the last
	for _, code := range codes() {
		name := fmt.Sprintf("%d code %d ", signal, code)
		data := r.memory(info(signal, code))
		for _, tid := range threads {
			// The kernel takes a thread's number for its process's here.
			r.call(fmt.Sprintf("%srt_sigqueueinfo %d", name, tid), unix.SYS_RT_SIGQUEUEINFO, uintptr(tid), signal, data)
			r.call(fmt.Sprintf("%srt_tgsigqueueinfo %d", name, tid), unix.SYS_RT_TGSIGQUEUEINFO, agentPID, uintptr(tid), signal, data)
		}
		r.call(name+"rt_sigqueueinfo high", unix.SYS_RT_SIGQUEUEINFO, agentPID|1<<32, signal|1<<32, data)
		r.call(name+"rt_tgsigqueueinfo high", unix.SYS_RT_TGSIGQUEUEINFO, agentPID|1<<32, agentPID|1<<32, signal|1<<32, data)
	}
	return err
}

func byPidfd(r *report, signal uintptr) error {
	for _, flags := range []int{0, unix.PIDFD_THREAD} {
		fd, err := unix.PidfdOpen(agentPID, flags)
		if err != nil {
			return err
		}
		for scope := uintptr(0); scope <= 4; scope++ { // thread, group, process group
			r.call(fmt.Sprintf("%d pidfd %d", signal, scope), unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd), signal, 0, scope)
			for _, code := range codes() {
				data := r.memory(info(signal, code))
				r.call(fmt.Sprintf("%d code %d pidfd %d", signal, code, scope), unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd), signal, data, scope)
				r.call(fmt.Sprintf("%d code %d pidfd high", signal, code), unix.SYS_PIDFD_SEND_SIGNAL, uintptr(fd)|1<<32, signal|1<<32, data, scope)
			}
		}
		_ = unix.Close(fd)
	}
	return nil
}

// byNews has the kernel send the signal, as the news that a socket can be read.
func byNews(r *report, signal uintptr) error {
	threads, err := agentTasks()
	for _, tid := range threads {
		for kind := int32(0); kind <= 2; kind++ { // a thread, a process, a group
			for _, high := range []uintptr{0, 1 << 32} {
				fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				name := fmt.Sprintf("%d news ", signal)
				owner := [2]int32{kind, int32(tid)}
				r.call(name+"F_SETSIG", unix.SYS_FCNTL, uintptr(fds[0])|high, unix.F_SETSIG|high, signal|high)
				r.call(name+"F_SETOWN_EX", unix.SYS_FCNTL, uintptr(fds[0]), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
				r.call(name+"O_ASYNC", unix.SYS_FCNTL, uintptr(fds[0]), unix.F_SETFL, unix.O_ASYNC|unix.O_RDWR)
				_, _ = unix.Write(fds[1], []byte{'x'})
				_ = unix.Close(fds[0])
				_ = unix.Close(fds[1])
			}
		}
	}
	return err
}

// byParent makes the agent the parent of a child that ends with the signal.
func byParent(r *report, signal uintptr) error {
	pid, errno := clone(unix.CLONE_PARENT | signal)
	if errno != 0 {
		r.add(fmt.Sprintf("%d clone of a sibling", signal), errno)
		return nil
	}
	r.add(fmt.Sprintf("%d clone of a sibling", signal), nil, pid)
	return nil
}

// byTerminal makes the agent's group the foreground of a terminal, which sends
// it the signal.
func byTerminal(r *report, signal uintptr) error {
	if signal == 1 {
		// Only a leader of a session can have a terminal: this process leads its group.
		r.call("session", unix.SYS_SETSID)
	}
	terminal, _, err := pseudoTerminal()
	if err != nil {
		return err
	}
	group := int32(agentPID)
	r.call(fmt.Sprintf("%d TIOCSPGRP", signal), unix.SYS_IOCTL, terminal.Fd(), unix.TIOCSPGRP, uintptr(unsafe.Pointer(&group)))
	r.call(fmt.Sprintf("%d TIOCSIG", signal), unix.SYS_IOCTL, terminal.Fd(), unix.TIOCSIG, signal)
	return terminal.Close()
}

// pseudoTerminal gives both sides of a new one.
func pseudoTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}
