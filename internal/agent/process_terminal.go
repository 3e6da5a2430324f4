package agent

import (
	"errors"
	"fmt"
	"math"
	"os"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// Sizes of a terminal that is asked for without one.
const (
	defaultColumns = 80
	defaultRows    = 24
)

// openTerminal makes a terminal as all three of a command's streams.
func openTerminal(size *agentv1.PTY_Size) (*pipes, error) {
	window, err := windowOf(size)
	if err != nil {
		return nil, err
	}
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	out := &pipes{ends: [3]int{-1, -1, -1}, terminal: true}
	if err := out.connect(master, window); err != nil {
		out.closeChild()
		out.closeOwn()
		return nil, fmt.Errorf("prepare a terminal: %w", err)
	}
	return out, nil
}

// connect makes the streams' descriptors. It owns master.
func (s *pipes) connect(master int, window *unix.Winsize) error {
	// Reading and writing end at different times, so each has a descriptor.
	write, err := unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		s.stdin, err = pollable(write, "terminal")
	}
	file, fileErr := pollable(master, "terminal")
	if fileErr == nil {
		s.outputs = []*os.File{file}
	}
	if err := errors.Join(err, fileErr); err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	// The other side by descriptor: a name below /dev/pts could be anybody's.
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return errno
	}
	s.ends[0] = int(peer)
	for i := range s.ends[1:] {
		if s.ends[i+1], err = unix.FcntlInt(peer, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return err
		}
	}
	return unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, window)
}

// windowOf checks a size; none is the usual one.
func windowOf(size *agentv1.PTY_Size) (*unix.Winsize, error) {
	columns, rows := size.GetCols(), size.GetRows()
	if size == nil {
		columns, rows = defaultColumns, defaultRows
	}
	if columns == 0 || rows == 0 || columns > math.MaxUint16 || rows > math.MaxUint16 {
		return nil, connect.Errorf(connect.CodeInvalidArgument, "a terminal of %d columns and %d rows", columns, rows)
	}
	return &unix.Winsize{Col: uint16(columns), Row: uint16(rows)}, nil
}

// resize gives a command's terminal another size, of which the kernel tells the
// programs on it.
func (p *process) resize(size *agentv1.PTY_Size) error {
	window, err := windowOf(size)
	if err != nil {
		return err
	}
	if !p.terminal {
		return connect.Errorf(connect.CodeInternal, "process %d has no terminal", p.pid)
	}
	// Its own error for a file that is closed says that the command has ended.
	raw, err := p.stdin.file.SyscallConn()
	if err == nil {
		var fault error
		err = raw.Control(func(fd uintptr) {
			fault = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, window)
		})
		err = errors.Join(err, fault)
	}
	if err != nil {
		return connect.Errorf(connect.CodeNotFound, "process %d has ended", p.pid).WithCause(err)
	}
	return nil
}
