//go:build linux

package main

import (
	"errors"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ipcFamily() map[string]attack {
	return map[string]attack{"ipc-make": ipcMake, "ipc-find": ipcFind, "ipc-remove": ipcRemove, "names": hostNames}
}

// ipcCalls are the four kinds under one key; flags is unix.IPC_CREAT or zero.
func (r *report) ipcCalls(args []string, flags uintptr) error {
	if len(args) != 1 {
		return errors.New("no key was given")
	}
	key, err := strconv.ParseUint(args[0], 10, 31)
	if err != nil {
		return err
	}
	k := uintptr(key)
	r.call("shm", unix.SYS_SHMGET, k, 4096, flags|0o600)
	r.call("sem", unix.SYS_SEMGET, k, 1, flags|0o600)
	r.call("msg", unix.SYS_MSGGET, k, flags|0o600)
	open := uintptr(unix.O_RDWR)
	if flags != 0 {
		open |= unix.O_CREAT
	}
	r.call("mq", unix.SYS_MQ_OPEN, r.text("berm-attack-"+args[0]), open, 0o600, 0)
	return nil
}

func ipcMake(r *report, args []string) error { return r.ipcCalls(args, unix.IPC_CREAT) }

func ipcFind(r *report, args []string) error { return r.ipcCalls(args, 0) }

// ipcRemove removes what ipcMake has made.
func ipcRemove(r *report, args []string) error {
	if err := r.ipcCalls(args, 0); err != nil {
		return err
	}
	key, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for number, control := range map[uintptr][2]uintptr{
		unix.SYS_SHMGET: {unix.SYS_SHMCTL, 1}, unix.SYS_SEMGET: {unix.SYS_SEMCTL, 2}, unix.SYS_MSGGET: {unix.SYS_MSGCTL, 1},
	} {
		// Size and flags are zero: it exists.
		id, _, errno := unix.Syscall(number, uintptr(key), 0, 0)
		if errno != 0 {
			return errno
		}
		args := [3]uintptr{id}
		args[control[1]] = unix.IPC_RMID
		if _, _, errno := unix.Syscall(control[0], args[0], args[1], args[2]); errno != 0 {
			return errno
		}
	}
	name := append([]byte("berm-attack-"+args[0]), 0)
	if _, _, errno := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// hostNames tells the names of the machine.
func hostNames(r *report, _ []string) error {
	var u unix.Utsname
	err := unix.Uname(&u)
	r.add("host name", err, unix.ByteSliceToString(u.Nodename[:]))
	r.add("domain name", err, unix.ByteSliceToString(u.Domainname[:]))
	return nil
}
