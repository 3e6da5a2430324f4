package mux

import (
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/berm-dev/berm/errdefs"
)

// backlog bounds the streams that one side has opened and the other has not
// taken yet.
const backlog = 256

// trunk is what both sides have: the byte stream, the session on it, and the
// account of what is alive.
type trunk struct {
	guard *guard
	done  chan struct{}

	mu      sync.Mutex
	session *yamux.Session
	ended   bool
	closed  bool
	cause   error
	streams map[*stream]struct{}
	// work counts what Close waits for: goroutines and calls of RoundTrip. It
	// grows only under mu and before ended.
	work sync.WaitGroup
}

func newTrunk(conn io.ReadWriteCloser, host bool) *trunk {
	return &trunk{guard: newGuard(conn, host), done: make(chan struct{}), streams: map[*stream]struct{}{}}
}

// open starts the session. incoming bounds the streams that the peer may have
// open at a time.
func (t *trunk) open(incoming uint32, writeTimeout time.Duration) (*yamux.Session, error) {
	config := &yamux.Config{
		AcceptBacklog:           backlog,
		PingBacklog:             4,
		ConnectionWriteTimeout:  writeTimeout,
		MaxIncomingStreams:      incoming,
		InitialStreamWindowSize: streamWindow / 4,
		MaxStreamWindowSize:     streamWindow,
		// Once, for the size of the windows; there is no keep-alive.
		MeasureRTTInterval: 24 * time.Hour,
		LogOutput:          io.Discard,
		ReadBufSize:        16 << 10,
		MaxMessageSize:     128 << 10,
	}
	start := yamux.Server
	if t.guard.host {
		start = yamux.Client
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, t.endErrorLocked("start session")
	}
	session, err := start(t.guard, config, nil)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Internal, "start session", err)
	}
	t.session = session
	return session, nil
}

// begin runs enter under the lock, unless the link has ended.
func (t *trunk) begin(enter func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	enter()
	return true
}

// spawn runs f on a goroutine that Close waits for, unless the link has ended.
func (t *trunk) spawn(f func()) bool {
	if !t.begin(func() { t.work.Add(1) }) {
		return false
	}
	go func() {
		defer t.work.Done()
		f()
	}()
	return true
}

// end ends the link for a reason, nil for Close. Only the first call counts.
func (t *trunk) end(cause error) {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	t.ended, t.cause = true, cause
	session := t.session
	streams := slices.Collect(maps.Keys(t.streams))
	t.mu.Unlock()
	// Errors of closing are of no use to anybody here. The session resets its
	// streams before Done, so that no request succeeds after it.
	_ = t.guard.Close()
	if session != nil {
		_ = session.Close()
	}
	close(t.done)
	for _, s := range streams {
		s.abandon()
	}
}

// why turns the error with which the session ended into the link's.
func (t *trunk) why(op string, err error) error {
	if fault := t.guard.reason(); fault != nil {
		return fault
	}
	var known *errdefs.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, yamux.ErrConnectionWriteTimeout):
		return errdefs.Wrap(errdefs.TransportLost, op, errors.New("the peer took nothing for too long"))
	case protocolFault(err):
		return errdefs.Wrap(errdefs.Protocol, op, err)
	}
	return lostError(op, err)
}

// protocolFault tells whether the session ended for what the peer sent.
func protocolFault(err error) bool {
	for _, fault := range []error{yamux.ErrInvalidVersion, yamux.ErrInvalidMsgType, yamux.ErrDuplicateStream, yamux.ErrRecvWindowExceeded, yamux.ErrUnexpectedFlag} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// endError says that the link has ended, for an operation; nil while it lives.
func (t *trunk) endError(op string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endErrorLocked(op)
}

func (t *trunk) endErrorLocked(op string) error {
	switch {
	case !t.ended:
		return nil
	case t.closed || t.cause == nil:
		return errdefs.New(errdefs.Closed, op, "the link is closed")
	}
	return &errdefs.Error{Kind: errdefs.KindOf(t.cause), Op: op, Reasons: []string{"the link has ended"}, Err: t.cause}
}

// Done is closed when the link has ended, by either side.
func (t *trunk) Done() <-chan struct{} { return t.done }

// Err says why the link ended; nil while it lives and after a plain Close.
func (t *trunk) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause
}

// Close ends the link, resets every stream and waits for all goroutines of the
// link, but not for a read of a caller's own request body. It returns nil.
func (t *trunk) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.end(nil)
	// Another call may still be closing.
	<-t.done
	t.work.Wait()
	return nil
}
