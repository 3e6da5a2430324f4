//go:build unix

package state

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ownerOf gives a file's owner.
func ownerOf(info fs.FileInfo) (int, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// openNoFollow opens a file of our own that others may have put a link for.
func openNoFollow(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOFOLLOW|flags, 0o600)
}

// tryLock locks without waiting; false without an error says that somebody else
// has the lock.
func tryLock(file *os.File) (bool, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
