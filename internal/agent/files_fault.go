package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"
)

// fault is a failed file operation with the code that the caller is told.
type fault struct {
	code connect.Code
	text string
	err  error
}

func (f *fault) Error() string { return f.text }

func (f *fault) Unwrap() error { return f.err }

func faultf(code connect.Code, format string, args ...any) *fault {
	return &fault{code: code, text: fmt.Sprintf(format, args...)}
}

// fileFault classifies any error of an operation on a path. A fault stays as it is.
func fileFault(op, path string, err error) *fault {
	var known *fault
	if errors.As(err, &known) {
		return known
	}
	return &fault{code: codeOf(err), text: fmt.Sprintf("%s %q: %v", op, path, err), err: err}
}

// codeOf is the table from errors to codes.
func codeOf(err error) connect.Code {
	var errno unix.Errno
	switch {
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	case errors.Is(err, io.ErrUnexpectedEOF):
		return connect.CodeInvalidArgument
	case !errors.As(err, &errno):
		return connect.CodeInternal
	}
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		return connect.CodeNotFound
	case unix.EEXIST:
		return connect.CodeAlreadyExists
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return connect.CodePermissionDenied
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EMLINK:
		return connect.CodeResourceExhausted
	case unix.ENAMETOOLONG, unix.EINVAL, unix.EISDIR:
		return connect.CodeInvalidArgument
	case unix.ELOOP, unix.ENOTEMPTY, unix.EBUSY, unix.EXDEV, unix.ETXTBSY:
		return connect.CodeFailedPrecondition
	default:
		return connect.CodeInternal
	}
}

// rpc is the fault as Connect sends it.
func (f *fault) rpc() error {
	return connect.NewError(f.code, f.text).WithCause(f)
}

// status is the fault as the plain HTTP routes send it.
func (f *fault) status() int {
	switch f.code {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists:
		return http.StatusConflict
	case connect.CodeUnimplemented:
		return http.StatusUnsupportedMediaType
	case connect.CodeResourceExhausted:
		return http.StatusInsufficientStorage
	default:
		return http.StatusInternalServerError
	}
}
