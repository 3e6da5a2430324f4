package probe

import (
	"errors"
	"runtime"
	"strconv"
	"syscall"
)

// Trial is one attempt at what a sandbox has to refuse.
type Trial struct {
	// Kind is one of the constants below.
	Kind string
	// Argument is what the kind's comment says.
	Argument string
}

// The kinds of Trial.
const (
	// Connect opens a TCP connection to a port of 127.0.0.1.
	Connect = "connect"
	// Sysctl writes to a file below /proc/sys the value that it has.
	Sysctl = "sysctl"
	// Trace attaches to the agent as a debugger does. It has no argument.
	Trace = "trace"
	// Strangers counts processes that are in sight and do not descend from the
	// agent. It has no argument.
	Strangers = "strangers"
	// Call makes a system call, named by the table calls, in a way that has no
	// effect.
	Call = "call"
	// Memory takes so many bytes of memory. It is reached when all could be had;
	// who takes too much may not live to tell.
	Memory = "memory"
	// Processes starts so many processes, and ends them.
	Processes = "processes"
	// Disk writes so many bytes to a file in /tmp, and removes it.
	Disk = "disk"
)

// Outcome is how a Trial went.
type Outcome struct {
	// Reached: the attempt had the effect that a sandbox has to refuse.
	Reached bool
	// Amount is how much of the argument could be had.
	Amount uint64
	// Detail is what was seen, for people.
	Detail string
}

// run carries out a trial. What it makes is gone when it returns.
func (t Trial) run(agent int) (Outcome, error) {
	number := uint64(0)
	switch t.Kind {
	case Connect, Memory, Processes, Disk:
		var err error
		if number, err = strconv.ParseUint(t.Argument, 10, 40); err != nil {
			return Outcome{}, &fault{"trial " + t.Kind, err}
		}
	}
	switch t.Kind {
	case Connect:
		return judged("the connection", connectTo(int(number&0xffff))), nil
	case Sysctl:
		return judged("the write", writeBack(t.Argument)), nil
	case Trace:
		return judged("attaching", attach(agent)), nil
	case Strangers:
		return strangers(agent)
	case Call:
		return makeCall(t.Argument)
	case Memory:
		return amount(takeMemory(number)), nil
	case Processes:
		return amount(startProcesses(number)), nil
	case Disk:
		return amount(fillFile(number)), nil
	}
	return Outcome{}, errors.New("unknown trial " + t.Kind)
}

// judged is the outcome of an attempt that works or does not.
func judged(what string, err error) Outcome {
	if err == nil {
		return Outcome{Reached: true, Detail: what + " worked"}
	}
	return Outcome{Detail: what + " was refused: " + err.Error()}
}

// amount is the outcome of an attempt to have much.
func amount(had uint64, err error) Outcome {
	o := judged("all of it", err)
	o.Amount = had
	return o
}

func connectTo(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	// It bounds the connection too.
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &syscall.Timeval{Sec: 2}); err != nil {
		return err
	}
	_, err = again(func() (int, error) {
		return 0, syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	})
	return err
}

// writeBack writes what is there.
func writeBack(name string) error {
	p := "/proc/sys/" + name
	value, err := readFile(p)
	if err != nil {
		return err
	}
	fd, err := open(p, syscall.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	_, err = again(func() (int, error) { return syscall.Write(fd, value) })
	return err
}

// attach seizes a process and lets it go again.
func attach(pid int) error {
	const seize = 0x4206
	runtime.LockOSThread() // who attaches is a thread
	defer runtime.UnlockOSThread()
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, seize, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	// Only a stopped one can be let go; it goes on when this process ends.
	_ = syscall.PtraceDetach(pid)
	return nil
}

// maxNamed bounds the strangers that are named.
const maxNamed = 3

// strangers looks at every process in sight.
func strangers(agent int) (Outcome, error) {
	pids, err := visible()
	if err != nil {
		return Outcome{}, err
	}
	var o Outcome
	seen := false
	for _, pid := range pids {
		seen = seen || pid == syscall.Getpid()
		descends, err := descendant(pid, agent)
		if err != nil || descends {
			continue // it has ended, or is one of ours
		}
		o.Reached = true
		if o.Amount++; o.Amount <= maxNamed {
			o.Detail += strconv.Itoa(pid) + " "
		}
	}
	if !seen {
		return Outcome{}, errors.New("this process is not in /proc")
	}
	if o.Reached {
		o.Detail = "processes outside are in sight: " + o.Detail
	} else {
		o.Detail = strconv.Itoa(len(pids)) + " processes are in sight, all of the sandbox"
	}
	return o, nil
}

// visible lists the processes in /proc.
func visible() ([]int, error) {
	fd, err := open("/proc", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, &fault{"open /proc", err}
	}
	defer func() { _ = syscall.Close(fd) }()
	var out []int
	buffer := make([]byte, 16<<10)
	for {
		n, err := again(func() (int, error) { return syscall.ReadDirent(fd, buffer) })
		if err != nil {
			return nil, &fault{"list /proc", err}
		}
		if n <= 0 {
			return out, nil
		}
		_, _, names := syscall.ParseDirent(buffer[:n], -1, nil)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				out = append(out, pid)
			}
		}
	}
}

// descendant follows parents until one is the agent, or there is none.
func descendant(pid, agent int) (bool, error) {
	for range 1 << 10 {
		if pid == agent {
			return true, nil
		}
		data, err := readFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			return false, err
		}
		pid = 0
		for text := string(data); text != ""; {
			var line string
			line, text = cut(text, '\n')
			if name, value := cut(line, ':'); name == "PPid" {
				pid, _ = strconv.Atoi(trim(value))
			}
		}
		if pid <= 0 {
			return false, nil
		}
	}
	return false, nil
}

// takeMemory maps and touches memory, and gives it back.
func takeMemory(bytes uint64) (uint64, error) {
	const step = 1 << 20
	var taken [][]byte
	defer func() {
		for _, part := range taken {
			_ = syscall.Munmap(part)
		}
	}()
	for had := uint64(0); had < bytes; had += step {
		part, err := syscall.Mmap(-1, 0, step, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return had, err
		}
		for i := 0; i < step; i += 4096 {
			part[i] = 1
		}
		taken = append(taken, part)
	}
	return bytes, nil
}

// fillFile writes a file in /tmp that no name leads to.
func fillFile(bytes uint64) (uint64, error) {
	p := "/tmp/.berm-probe-" + strconv.Itoa(syscall.Getpid()) + "-fill"
	fd, err := open(p, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Unlink(p); err != nil {
		return 0, err
	}
	buffer := make([]byte, 64<<10)
	var had uint64
	for had < bytes {
		n, err := again(func() (int, error) { return syscall.Write(fd, buffer) })
		if err != nil {
			return had, err
		}
		had += uint64(max(n, 0)) //nolint:gosec // never negative
	}
	return had, nil
}

// startProcesses starts processes that do nothing, and ends them.
func startProcesses(count uint64) (uint64, error) {
	var pids []int
	defer func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = again(func() (int, error) { return syscall.Wait4(pid, nil, 0, nil) })
		}
	}()
	for had := range count {
		pid, errno := fork()
		if errno != 0 {
			return had, errno
		}
		pids = append(pids, pid)
	}
	return count, nil
}

// fork makes a copy of this process that sleeps until it is killed. A program
// would be several threads; this is one process, so that they can be counted.
// The copy has this thread only and must not come back to Go's runtime.
//
//go:norace
//go:noinline
func fork() (int, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return int(pid), errno
	}
	for {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// Numbers that package syscall does not have; those from 424 on are the same on
// every architecture.
const (
	sysIOUringSetup = 425
	familyVsock     = 40
	newUserSpace    = 0x10000000
)

// numbers are the system calls whose number depends on the architecture.
type numbers struct{ bpf, keyctl, perf, userfaultfd uintptr }

func native() numbers {
	if runtime.GOARCH == "amd64" {
		return numbers{bpf: 321, keyctl: 250, perf: 298, userfaultfd: 323}
	}
	return numbers{bpf: 280, keyctl: 219, perf: 241, userfaultfd: 282}
}

// makeCall makes the call with arguments that no kernel accepts, or that have no
// effect outside this process.
func makeCall(name string) (Outcome, error) {
	n := native()
	const none = ^uintptr(0)
	var number uintptr
	var args [4]uintptr
	switch name {
	case "unshare":
		number, args[0] = syscall.SYS_UNSHARE, newUserSpace
	case "mount":
		number = syscall.SYS_MOUNT
	case "bpf":
		number, args[0] = n.bpf, none
	case "keyctl":
		number, args[0] = n.keyctl, none
	case "perf_event_open":
		number = n.perf
	case "userfaultfd":
		number, args[0] = n.userfaultfd, none
	case "io_uring_setup":
		number = sysIOUringSetup
	case "vsock":
		number, args = syscall.SYS_SOCKET, [4]uintptr{familyVsock, syscall.SOCK_STREAM | syscall.SOCK_CLOEXEC}
	case "packet":
		number, args = syscall.SYS_SOCKET, [4]uintptr{syscall.AF_PACKET, syscall.SOCK_RAW | syscall.SOCK_CLOEXEC}
	default:
		return Outcome{}, errors.New("unknown call " + name)
	}
	fd, _, errno := syscall.Syscall6(number, args[0], args[1], args[2], args[3], 0, 0)
	switch {
	case errno == 0 && number == syscall.SYS_SOCKET:
		_ = syscall.Close(int(fd))
	case errno == syscall.EPERM || errno == syscall.ENOSYS || errno == syscall.EAFNOSUPPORT:
		return Outcome{Detail: "refused: " + errno.Error()}, nil
	case errno != 0:
		return Outcome{Reached: true, Detail: "it reached the kernel: " + errno.Error()}, nil
	}
	return Outcome{Reached: true, Detail: "it worked"}, nil
}
