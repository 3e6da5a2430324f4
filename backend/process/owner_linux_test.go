package process

import (
	"os"
	"syscall"
)

// ownerOf is a file's uid, -1 when it is not known.
func ownerOf(info os.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}
