package agent

import (
	"errors"
	"fmt"
	"math"
	"os"

	"connectrpc.com/connect/v2"
	"github.com/creack/pty"
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
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	out := &pipes{ends: [3]int{-1, -1, -1}, terminal: true}
	defer slave.Close()
	fail := func(err error) (*pipes, error) {
		out.closeChild()
		return nil, errors.Join(fmt.Errorf("prepare a terminal: %w", err), master.Close())
	}
	if err := pty.Setsize(slave, window); err != nil {
		return fail(err)
	}
	for i := range out.ends {
		if out.ends[i], err = unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return fail(err)
		}
		// The runtime opened it for its own poller, which the programs do not have.
		if err := unix.SetNonblock(out.ends[i], false); err != nil {
			return fail(err)
		}
	}
	// Reading and writing end at different times, so each has a descriptor.
	write, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	if out.stdin, err = pollable(write, "terminal"); err != nil {
		return fail(err)
	}
	read, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail(errors.Join(err, out.stdin.Close()))
	}
	file, err := pollable(read, "terminal")
	if err != nil {
		return fail(errors.Join(err, out.stdin.Close()))
	}
	out.outputs = []*os.File{file}
	return out, master.Close()
}

// windowOf checks a size; none is the usual one.
func windowOf(size *agentv1.PTY_Size) (*pty.Winsize, error) {
	columns, rows := size.GetCols(), size.GetRows()
	if size == nil {
		columns, rows = defaultColumns, defaultRows
	}
	if columns == 0 || rows == 0 || columns > math.MaxUint16 || rows > math.MaxUint16 {
		return nil, connect.Errorf(connect.CodeInvalidArgument, "a terminal of %d columns and %d rows", columns, rows)
	}
	return &pty.Winsize{Cols: uint16(columns), Rows: uint16(rows)}, nil
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
			fault = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: window.Rows, Col: window.Cols})
		})
		err = errors.Join(err, fault)
	}
	if err != nil {
		return connect.Errorf(connect.CodeNotFound, "process %d has ended", p.pid).WithCause(err)
	}
	return nil
}
