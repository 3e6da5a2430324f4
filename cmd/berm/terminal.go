package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/berm-dev/berm"
)

// notATerminal is the fault of --tty without one.
const notATerminal = "--tty: the standard input is not a terminal"

// terminal gives the descriptor of the terminal that berm was started on.
func (a *app) terminal() (fd int, ok bool) {
	file, isFile := a.stdin.(*os.File)
	if !isFile {
		return -1, false
	}
	fd = int(file.Fd()) //nolint:gosec // a descriptor is an int
	return fd, term.IsTerminal(fd)
}

// sizeOf is a terminal's size; one that has none is the usual one.
func sizeOf(fd int) berm.Size {
	columns, rows, err := term.GetSize(fd)
	if err != nil || columns <= 0 || rows <= 0 {
		return berm.Size{Columns: 80, Rows: 24}
	}
	return berm.Size{Columns: columns, Rows: rows}
}

// raw hands the keys of a terminal to the command as they come, and its changes
// of size, until restore is called.
func raw(ctx context.Context, fd int, cmd *berm.Cmd) (restore func(), err error) {
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	done := make(chan struct{})
	var following sync.WaitGroup
	following.Go(func() {
		for {
			select {
			case <-changed:
				// A command that has just ended has no size.
				_ = cmd.Resize(ctx, sizeOf(fd))
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		close(done)
		following.Wait()
		// What can be done about a terminal that is gone?
		_ = term.Restore(fd, state)
	}, nil
}
