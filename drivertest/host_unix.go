//go:build unix

package drivertest

import (
	"io/fs"
	"os"
	"syscall"
)

// waitForLock keeps test processes that run beside each other apart.
func waitForLock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX) }

// ownerOf gives a file's owner, -1 when it is not known.
func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}
