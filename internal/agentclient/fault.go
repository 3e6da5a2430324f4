package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// maxErrorText bounds the agent's text in one error, in bytes.
const maxErrorText = 4 << 10

// clockSlack is how much earlier than us an agent may see a deadline of ours pass.
const clockSlack = time.Second

// kindOfCode is the table from the agent's codes to kinds.
func kindOfCode(code connect.Code) errdefs.Kind {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return errdefs.Invalid
	case connect.CodeNotFound:
		return errdefs.NotFound
	case connect.CodeAlreadyExists:
		return errdefs.Exists
	case connect.CodePermissionDenied, connect.CodeUnauthenticated:
		return errdefs.Denied
	case connect.CodeResourceExhausted:
		return errdefs.Exhausted
	case connect.CodeUnimplemented:
		return errdefs.Unsupported
	case connect.CodeUnavailable:
		return errdefs.TransportLost
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeAborted, connect.CodeDataLoss:
		return errdefs.Internal
	case connect.CodeCanceled, connect.CodeDeadlineExceeded:
		return errdefs.Protocol // unless a context of ours says the same: endedAs
	default:
		return errdefs.Protocol
	}
}

// endedAs says how ctx has ended, or is about to by its deadline, and "" when it
// lives: an agent must not make callers believe that they gave up themselves.
func endedAs(ctx context.Context) errdefs.Kind {
	deadline, ok := ctx.Deadline()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errdefs.Cancelled
	case ctx.Err() != nil, ok && time.Until(deadline) < clockSlack:
		return errdefs.Timeout
	}
	return ""
}

// kindOfStatus is the same table for plain HTTP.
func kindOfStatus(status int) errdefs.Kind {
	switch status {
	case http.StatusBadRequest, http.StatusRequestedRangeNotSatisfiable:
		return errdefs.Invalid
	case http.StatusUnauthorized, http.StatusForbidden:
		return errdefs.Denied
	case http.StatusNotFound:
		return errdefs.NotFound
	case http.StatusConflict:
		return errdefs.Exists
	case http.StatusUnsupportedMediaType, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return errdefs.Unsupported
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		return errdefs.Exhausted
	case http.StatusInternalServerError:
		return errdefs.Internal
	default:
		return errdefs.Protocol
	}
}

// fault gives any failure of a call its kind. The cause is kept only where it is
// the link's own error: the others quote the agent.
func fault(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	var known *errdefs.Error
	if errors.As(err, &known) {
		return errdefs.Wrap(known.Kind, op, known)
	}
	var remote *connect.Error
	coded := errors.As(err, &remote)
	if coded && remote.IsRemote() {
		given := remote.Code() == connect.CodeCanceled || remote.Code() == connect.CodeDeadlineExceeded
		if kind := endedAs(ctx); given && kind != "" {
			return errdefs.New(kind, op)
		}
		return errdefs.New(kindOfCode(remote.Code()), op, clean(remote.Message()))
	}
	kind := kindOfLocal(err)
	text := err.Error()
	switch {
	case kind == errdefs.Cancelled, kind == errdefs.Timeout:
		return errdefs.New(kind, op)
	case coded && kind == errdefs.Internal && remote.Code() == connect.CodeUnavailable:
		kind, text = errdefs.TransportLost, remote.Message()
	case coded && kind == errdefs.Internal:
		kind, text = errdefs.Protocol, remote.Message()
	case kind == errdefs.Internal:
		kind = errdefs.TransportLost
	}
	return errdefs.New(kind, op, clean(text))
}

// kindOfLocal tells what happened on this side, Internal when it does not know.
func kindOfLocal(err error) errdefs.Kind {
	var network net.Error
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.Canceled):
		return errdefs.Cancelled
	case errors.Is(err, context.DeadlineExceeded):
		return errdefs.Timeout
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe),
		errors.As(err, &errno), errors.As(err, &network):
		return errdefs.TransportLost
	}
	return errdefs.Internal
}

// broken is a break of the protocol.
func broken(op, format string, args ...any) error {
	return errdefs.New(errdefs.Protocol, op, clean(fmt.Sprintf(format, args...)))
}

// clean makes the agent's text fit for a terminal and a log: at most 4 KiB, and
// what does not print is escaped.
func clean(text string) string {
	if defence.ClientText.Off() {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		var piece string
		switch {
		case r == utf8.RuneError && size == 1:
			piece = fmt.Sprintf(`\x%02x`, text[0])
		case unicode.IsPrint(r):
			piece = text[:size]
		case r < utf8.RuneSelf:
			piece = fmt.Sprintf(`\x%02x`, r)
		default:
			piece = fmt.Sprintf(`\u{%x}`, r)
		}
		if out.Len()+len(piece) > maxErrorText-len("...") {
			out.WriteString("...")
			break
		}
		out.WriteString(piece)
		text = text[size:]
	}
	return out.String()
}
