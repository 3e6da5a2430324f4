package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// sealedProgram puts an executable into anonymous memory that nobody can change
// any more, so that no file of it exists on disk.
func sealedProgram(name string, image []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 6.3 know no MFD_EXEC, and make executable memory anyway.
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("make executable memory (sysctl vm.memfd_noexec must not be 2): %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	_, err = file.Write(image)
	if err == nil {
		err = file.Chmod(0o555)
	}
	if err == nil && !defence.SealedAgent.Off() {
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seal %s: %w", name, err), file.Close())
	}
	return file, nil
}

// memFile makes a file in anonymous memory, at its start: any size, unlike a
// pipe, and read by one process only.
func memFile(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.WriteAt(data, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", name, err), file.Close())
	}
	return file, nil
}

// reopen opens an anonymous file again, read-only and with an offset of its own.
func reopen(file *os.File) (*os.File, error) {
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
}

// emptyInput is a pipe that is at its end.
func emptyInput() (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return read, write.Close()
}

// hostResolver is the content of the host's resolv.conf, as it is now.
func hostResolver() (*os.File, error) {
	data, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the host's resolv.conf: %w", err)
	}
	return memFile("berm-resolv", data)
}
