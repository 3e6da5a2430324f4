package probe

import (
	"errors"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// What package syscall does not have; the numbers are the kernel's.
const (
	rlimitProcesses = 6
	sysPidfdOpen    = 434
	sysPidfdGetfd   = 438
)

// again repeats a call that a signal interrupted; the Go runtime sends itself
// some.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

func open(p string, flags int, perm uint32) (int, error) {
	return again(func() (int, error) { return syscall.Open(p, flags|syscall.O_CLOEXEC, perm) })
}

// readFile reads the beginning of a file, maxFile bytes at most.
func readFile(p string) ([]byte, error) {
	fd, err := open(p, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, &fault{"open " + p, err}
	}
	defer func() { _ = syscall.Close(fd) }()
	buffer := make([]byte, 0, 4096)
	for len(buffer) < maxFile {
		if len(buffer) == cap(buffer) {
			buffer = append(buffer, 0)[:len(buffer)]
		}
		n, err := again(func() (int, error) { return syscall.Read(fd, buffer[len(buffer):cap(buffer)]) })
		if err != nil {
			return nil, &fault{"read " + p, err}
		}
		if n <= 0 {
			break
		}
		buffer = buffer[:len(buffer)+n]
	}
	return buffer, nil
}

// canWrite opens an existing file for writing and writes nothing, or makes a
// file in a directory and removes it.
func canWrite(p string) bool {
	var st syscall.Stat_t
	if syscall.Stat(p, &st) != nil {
		return false
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return canMake(p)
	}
	fd, err := open(p, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// maxNames bounds the names that canMake tries.
const maxNames = 64

// canMake makes a file of a name that was free. Nothing else runs yet that could
// have taken it; where all are taken there is no measurement, and the answer is
// the worse one.
func canMake(dir string) bool {
	base := dir + "/.berm-probe-" + strconv.Itoa(syscall.Getpid()) + "-"
	for i := range maxNames {
		p := base + strconv.Itoa(i)
		fd, err := open(p, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if errors.Is(err, syscall.EEXIST) {
			continue
		}
		if err != nil {
			return false
		}
		_ = syscall.Close(fd)
		_ = syscall.Unlink(p)
		return true
	}
	return true
}

// canConnect reports whether an abstract socket of that name is within reach,
// also when it is of another type or its queue is full.
func canConnect(name string) bool {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = syscall.Close(fd) }()
	err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: "@" + name})
	return err == nil || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EPROTOTYPE)
}

func fileSystemSize(p string) uint64 {
	var fs syscall.Statfs_t
	if _, err := again(func() (int, error) { return 0, syscall.Statfs(p, &fs) }); err != nil || fs.Bsize <= 0 {
		return 0
	}
	return fs.Blocks * uint64(fs.Bsize)
}

// canRead tries each way to the agent's memory, environment and descriptors.
func canRead(pid int) bool {
	number := strconv.Itoa(pid)
	base := "/proc/" + number + "/"
	for _, name := range []string{"environ", "mem", "maps", "fd", "task/" + number + "/environ"} {
		if canOpen(base + name) {
			return true
		}
	}
	if _, err := syscall.Readlink(base+"cwd", make([]byte, 64)); err == nil {
		return true
	}
	return canReadMemory(pid) || canTakeDescriptor(pid)
}

// canOpen opens for reading and, because procfs checks some files only then,
// reads.
func canOpen(p string) bool {
	fd, err := open(p, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = syscall.Close(fd) }()
	buffer := make([]byte, 1024)
	if _, err = again(func() (int, error) { return syscall.Read(fd, buffer) }); errors.Is(err, syscall.EISDIR) {
		_, err = again(func() (int, error) { return syscall.ReadDirent(fd, buffer) })
	}
	// EIO is what mem says of address 0 to those who may read it.
	return err == nil || errors.Is(err, syscall.EIO)
}

// remoteVector is the kernel's struct iovec for another process's memory.
type remoteVector struct {
	base, length uintptr
}

// canReadMemory tries process_vm_readv. Address 1 is mapped nowhere: EFAULT says
// that the memory could be reached.
func canReadMemory(pid int) bool {
	call := uintptr(310)
	if runtime.GOARCH != "amd64" {
		call = 270
	}
	var local [1]byte
	here := syscall.Iovec{Base: &local[0], Len: 1}
	there := remoteVector{base: 1, length: 1}
	_, _, errno := syscall.Syscall6(call, uintptr(pid),
		uintptr(unsafe.Pointer(&here)), 1, uintptr(unsafe.Pointer(&there)), 1, 0)
	return errno == 0 || errno == syscall.EFAULT
}

// canTakeDescriptor tries pidfd_getfd. EBADF means that only the descriptor was
// missing.
func canTakeDescriptor(pid int) bool {
	pidfd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return false
	}
	defer func() { _ = syscall.Close(int(pidfd)) }()
	fd, _, errno := syscall.Syscall(sysPidfdGetfd, pidfd, 0, 0)
	if errno == 0 {
		_ = syscall.Close(int(fd))
	}
	return errno == 0 || errno == syscall.EBADF
}
