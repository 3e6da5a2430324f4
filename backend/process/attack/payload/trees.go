//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forked makes a child by the bare system call. In the child nothing of the Go
// runtime works any more: it makes bare calls, or ends.
func forked(flags uintptr) (pid int) {
	got, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, flags|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	return int(got)
}

// ended is the end of a child of forked.
func ended() {
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// dozed waits in a child of forked.
func dozed(pause *unix.Timespec) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(pause)), 0, 0)
}

// rested is for ever.
func rested() {
	day := unix.Timespec{Sec: 86_400}
	for {
		dozed(&day)
	}
}

// forkBomb makes processes that make processes, for ever.
func forkBomb(*report, []string) error {
	pause := unix.Timespec{Nsec: 1_000_000}
	for {
		if forked(0) < 0 {
			dozed(&pause)
		}
	}
}

// vforkStorm makes children that start and end, as fast as the kernel can.
func vforkStorm(_ *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	for range count {
		if forked(0) != 0 {
			continue
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		for {
			pid := forked(unix.CLONE_VFORK)
			if pid == 0 {
				ended()
			}
			if pid > 0 {
				_, _, _ = syscall.RawSyscall6(syscall.SYS_WAIT4, uintptr(pid), 0, 0, 0, 0, 0)
			}
		}
	}
	rested()
	return nil
}

// chainStorm makes processes that end as soon as each has started the next one, in
// a session of its own: no two looks at the process list see the same.
func chainStorm(_ *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	for range count {
		if forked(0) != 0 {
			continue
		}
		for {
			if forked(0) > 0 {
				ended()
			}
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		}
	}
	rested()
	return nil
}

// daemonTree makes daemons as init systems know them: fork, setsid, fork, and the
// parent ends.
func daemonTree(_ *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	for range count {
		if forked(0) != 0 {
			continue
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		if forked(0) != 0 {
			ended()
		}
		rested()
	}
	rested()
	return nil
}

// stoppedTree makes a tree in which everybody is stopped, half of them in a
// session of its own.
func stoppedTree(_ *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	for i := range count {
		if forked(0) != 0 {
			continue
		}
		if i%2 == 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		}
		for {
			self, _, _ := syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
			_, _, _ = syscall.RawSyscall(syscall.SYS_KILL, self, uintptr(syscall.SIGSTOP), 0)
		}
	}
	for {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}

// headlessTree is a process whose first thread has ended while others go on, and
// its children.
func headlessTree(*report, []string) error {
	for range 4 {
		if forked(0) == 0 {
			rested()
		}
	}
	for range 1000 {
		go func() {
			// One of the many gets the first thread, as soon as that is free.
			runtime.LockOSThread()
			if unix.Gettid() == os.Getpid() {
				_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
			}
			runtime.UnlockOSThread()
		}()
		time.Sleep(time.Millisecond)
	}
	rested()
	return nil
}

// zombies leaves so many children unwaited for, and stays.
func zombies(r *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	made := 0
	for range count {
		switch forked(0) {
		case 0:
			ended()
		case -1:
		default:
			made++
		}
	}
	r.add("zombies", nil, made)
	return r.held()
}

// zombieTree is the same in a tree that has to be ended.
func zombieTree(r *report, args []string) error {
	err := zombies(r, args) // its input is at its end
	if err == nil {
		rested()
	}
	return err
}

// churn starts and ends so many processes, some at a time and through a shell, so
// that orphans come to be too.
func churn(r *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	const atOnce = 20
	for done := 0; done < count; done += atOnce {
		var running []*exec.Cmd
		for range atOnce {
			cmd := exec.Command("sh", "-c", ": & :") //nolint:forbid // ends at once
			if err := cmd.Start(); err != nil {
				return err
			}
			running = append(running, cmd)
		}
		for _, cmd := range running {
			if err := cmd.Wait(); err != nil {
				return err
			}
		}
	}
	r.add("churn", nil, count)
	return nil
}

// flakes writes so many lines of one byte, each by a write of its own.
func flakes(_ *report, args []string) error {
	count, err := number(args, 0)
	if err != nil {
		return err
	}
	for i := range count {
		out := os.Stdout
		if i%2 == 1 {
			out = os.Stderr
		}
		if _, err := out.Write([]byte{'.'}); err != nil {
			return err
		}
	}
	return nil
}

// number reads an argument that is a count.
func number(args []string, i int) (int, error) {
	if i >= len(args) {
		return 0, errors.New("a number is missing")
	}
	return strconv.Atoi(args[i])
}

// held gives the report at once and stays, so that somebody can look, until its
// input ends.
func (r *report) held() error {
	if err := json.NewEncoder(os.Stdout).Encode(r.attempts); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
