package passthrough

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// imageFD is the lowest descriptor number for the agent's image. Between fork
// and exec the low numbers are rearranged for the child; this one must still
// mean the image when the child executes /proc/self/fd/N.
const imageFD = 64

// sealed puts a program into memory where nobody can change it any more, so
// that no file of the agent lies on disk.
func sealed(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("berm-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		// Before Linux 6.3 there is no MFD_EXEC, and every one is executable.
		fd, err = unix.MemfdCreate("berm-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for the agent: %w", err)
	}
	low := os.NewFile(uintptr(fd), "berm-agent")
	defer func() { _ = low.Close() }()
	if _, err := low.Write(program); err != nil {
		return nil, fmt.Errorf("copy the agent into memory: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(low.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the agent: %w", err)
	}
	high, err := unix.FcntlInt(low.Fd(), unix.F_DUPFD_CLOEXEC, imageFD)
	if err != nil {
		return nil, fmt.Errorf("move the agent's descriptor: %w", err)
	}
	return os.NewFile(uintptr(high), "berm-agent"), nil
}
