// Package execmode is the agent's exec mode: a start shim that puts limits and a
// mark on itself, has the kernel keep the mark, and then becomes the command's
// program. It is on the path of every command of a sandbox without cgroups, so
// it imports very little: each import more is another one to wait for before
// package first may run it, and x/sys/unix alone comes after all of crypto.
package execmode

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	// StatusFD is where the shim finds its status pipe. A successful execve
	// closes it; a failed start writes a Status first.
	StatusFD = 3
	// EnvPrefix stands before each of the command's variables on the way through
	// the shim: its own Go runtime must not obey a GODEBUG that is meant for the
	// command.
	EnvPrefix = "b:"
)

// Limits is what the shim puts on itself; zero values put nothing.
type Limits struct {
	// Processes is RLIMIT_NPROC, DataBytes RLIMIT_DATA.
	Processes int
	DataBytes int64
	// Mark goes into RLIMIT_LOCKS, which the kernel hands on and otherwise
	// ignores.
	Mark uint64
	// Optional lets the start go on without the filter that keeps the mark.
	Optional bool
}

// Step is the part of a start that failed.
type Step uint32

// The steps, in order.
const (
	StepLimits Step = iota + 1
	StepFilter
	StepFork
	StepExec
)

// Status is why the shim did not become the program. It is an error that
// unwraps to the system's.
type Status struct {
	Step  Step
	Errno syscall.Errno
}

// Error names the step.
func (s *Status) Error() string {
	name := "start"
	switch s.Step {
	case StepLimits:
		name = "set limits"
	case StepFilter:
		name = "keep the mark"
	case StepFork:
		name = "fork"
	case StepExec:
		name = "execute"
	}
	return name + ": " + s.Errno.Error()
}

// Unwrap gives the errno.
func (s *Status) Unwrap() error { return s.Errno }

// StatusBytes is the length of an encoded Status.
const StatusBytes = 8

// DecodeStatus reads StatusBytes bytes from the status pipe.
func DecodeStatus(data [StatusBytes]byte) *Status {
	return &Status{Step: Step(data[0]), Errno: syscall.Errno(int(data[4]) | int(data[5])<<8)}
}

// Encode gives the shim's first argument: four numbers in hexadecimal.
func (l Limits) Encode() string {
	optional := uint64(0)
	if l.Optional {
		optional = 1
	}
	text := ""
	for i, n := range []uint64{uint64(l.Processes), uint64(l.DataBytes), l.Mark, optional} {
		if i > 0 {
			text += ":"
		}
		text += strconv.FormatUint(n, 16)
	}
	return text
}

// Main carries out the mode. args are the limits, the program's path and its
// arguments from argv[0] on. It returns the exit status of a start that failed;
// the reason goes to the status pipe.
func Main(args []string) int {
	if exit, ok := Enter(args); !ok {
		return exit
	}
	env := os.Environ()
	for i, entry := range env {
		if len(entry) >= len(EnvPrefix) && entry[:len(EnvPrefix)] == EnvPrefix {
			env[i] = entry[len(EnvPrefix):]
		}
	}
	return report(StepExec, syscall.Exec(args[1], args[2:], env))
}

// Enter does all of Main but the last step: the calling thread and its process
// are then as the program finds itself. It is false with the exit status of a
// start that failed.
func Enter(args []string) (exit int, ok bool) {
	// Also whatever leaked from a program that the agent lives in.
	if _, _, errno := syscall.RawSyscall(sysCloseRange, StatusFD, 1<<31-1, closeRangeCloexec); errno != 0 {
		syscall.CloseOnExec(StatusFD)
	}
	// The filter below belongs to a thread, and the thread that calls execve is
	// the one that lives on.
	runtime.LockOSThread()
	if len(args) < 3 {
		return report(StepLimits, syscall.EINVAL), false
	}
	limits, err := DecodeLimits(args[0])
	if err != nil {
		return report(StepLimits, syscall.EINVAL), false
	}
	if err := limits.apply(); err != nil {
		return report(StepLimits, err), false
	}
	if limits.Mark != 0 {
		if !limits.Optional {
			// The kernel takes a filter only from who cannot gain privileges. A
			// sandbox sees to that already; a shared host must not be changed.
			_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0)
		}
		if err := keepMark(); err != nil && !limits.Optional && !defence.CommandMarkKept.Off() {
			return report(StepFilter, err), false
		}
	}
	if limits.Processes > 0 {
		if err := tryFork(); err != nil {
			return report(StepFork, err), false
		}
	}
	if err := limits.applyData(); err != nil {
		return report(StepLimits, err), false
	}
	return 0, true
}

// Entered tells the agent that the start has succeeded, as execve does. It is
// for a caller of Enter that is the program itself.
func Entered() { _ = syscall.Close(StatusFD) }

// errLimits says that the first argument is not what Encode gives.
var errLimits = errors.New("malformed limits")

// DecodeLimits reads what Encode gave.
func DecodeLimits(text string) (Limits, error) {
	var numbers [4]uint64
	field, begin := 0, 0
	for i := 0; i <= len(text); i++ {
		if i < len(text) && text[i] != ':' {
			continue
		}
		n, err := strconv.ParseUint(text[begin:i], 16, 63)
		if err != nil || field == len(numbers) {
			return Limits{}, errLimits
		}
		numbers[field] = n
		field, begin = field+1, i+1
	}
	if field != len(numbers) || numbers[0] > 1<<31-1 {
		return Limits{}, errLimits
	}
	return Limits{
		Processes: int(numbers[0]), DataBytes: int64(numbers[1]), Mark: numbers[2], Optional: numbers[3] != 0,
	}, nil
}

// apply sets soft and hard limits alike, so that nothing raises them again.
func (l Limits) apply() error {
	set := func(resource int, value uint64) error {
		return syscall.Setrlimit(resource, &syscall.Rlimit{Cur: value, Max: value})
	}
	if err := LimitCores(); err != nil {
		return err
	}
	if l.Processes > 0 && !defence.RlimitProcesses.Off() {
		if err := set(rlimitProcesses, uint64(l.Processes)); err != nil {
			return err
		}
	}
	if l.Mark > 0 {
		return set(rlimitLocks, l.Mark)
	}
	return nil
}

// LimitCores keeps the kernel from writing cores: 1 byte, because only 1 also
// keeps it from running a core_pattern pipe. Under a hard limit of 0, which many
// hosts have and which cannot be raised, cores are off already unless the pattern
// is a pipe.
func LimitCores() error {
	err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 1, Max: 1})
	if err != syscall.EPERM { //nolint:errorlint // a bare errno
		return err
	}
	var first [1]byte
	pattern, openErr := os.Open("/proc/sys/kernel/core_pattern")
	if openErr != nil {
		return err
	}
	defer pattern.Close()
	if _, readErr := pattern.Read(first[:]); readErr != nil || first[0] == '|' {
		return err
	}
	return nil
}

// applyData is apply for memory. It comes last: the Go runtime itself may not
// fit below the limit for long.
func (l Limits) applyData() error {
	if l.DataBytes == 0 || defence.RlimitData.Off() {
		return nil
	}
	value := uint64(l.DataBytes)
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: value, Max: value})
}

// tryFork finds out whether the limit on processes is reached. execve would
// succeed beyond it, and the program's first fork would fail for no visible
// reason.
func tryFork() error {
	_, err := syscall.ForkExec("/", []string{""}, nil)
	if errors.Is(err, syscall.EAGAIN) {
		return err
	}
	return nil
}

// report writes the fault and gives the exit status of a failed start.
func report(step Step, err error) int {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	var buf [StatusBytes]byte
	buf[0], buf[4], buf[5] = byte(step), byte(errno), byte(errno>>8)
	_, _ = syscall.Write(StatusFD, buf[:])
	return 127
}
