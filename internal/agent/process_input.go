package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// inputPipe is the size of a standard input's pipe for bulk input, in bytes.
const inputPipe = 256 << 10

// errStdinClosed says that nothing can be written any more.
var errStdinClosed = errors.New("the standard input is closed")

// input is a command's standard input. A nil *input is one that was never open.
type input struct {
	// turn has one token: whole writes do not mix.
	turn chan struct{}

	closed   chan struct{}
	closing  sync.Once
	file     *os.File
	enlarged bool
}

func newInput(file *os.File) *input {
	return &input{turn: make(chan struct{}, 1), closed: make(chan struct{}), file: file}
}

// close ends the input: the command reads to its end. It wakes a writer.
func (i *input) close() {
	if i == nil {
		return
	}
	i.closing.Do(func() {
		close(i.closed)
		_ = i.file.Close()
	})
}

// write waits until the command's pipe has taken everything, the context has
// ended or the input was closed. Errors: errStdinClosed, also when the command
// has closed its side; the context's.
func (i *input) write(ctx context.Context, data []byte) error {
	if i == nil {
		return errStdinClosed
	}
	select {
	case i.turn <- struct{}{}:
	case <-i.closed:
		return errStdinClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-i.turn }()
	if len(data) > defaultPipe && !i.enlarged {
		i.enlarge()
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = i.file.SetWriteDeadline(time.Unix(1, 0))
		close(woken)
	})
	_, err := i.file.Write(data)
	if !stop() {
		<-woken
		_ = i.file.SetWriteDeadline(time.Time{})
		return ctx.Err()
	}
	switch {
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EPIPE):
		return errStdinClosed
	case err != nil:
		return fmt.Errorf("write to the standard input: %w", err)
	}
	return nil
}

// enlarge raises the pipe's size for bulk input; the file stays as it is when
// the kernel refuses.
func (i *input) enlarge() {
	i.enlarged = true
	raw, err := i.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, inputPipe) })
}
