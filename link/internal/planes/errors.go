package planes

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/berm-dev/berm/errdefs"
)

// Misbehaved is a Protocol error.
func Misbehaved(op, format string, args ...any) error {
	return errdefs.New(errdefs.Protocol, op, fmt.Sprintf(format, args...))
}

// ContextError gives the error of a context that is done a kind, and stays
// recognisable as the context's own.
func ContextError(ctx context.Context, op string) error {
	kind := errdefs.Cancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = errdefs.Timeout
	}
	return &errdefs.Error{Kind: kind, Op: op, Err: ctx.Err()}
}

// LostError is a TransportLost error. It never matches io.EOF, which a reader of
// a body would take for the body's end.
func LostError(op string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return errdefs.Wrap(errdefs.TransportLost, op, err)
}
