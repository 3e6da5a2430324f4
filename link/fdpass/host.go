package fdpass

import (
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/link"
)

// Options tunes the host's side. The zero value is good.
type Options struct {
	// MaxStreams bounds the streams in use on each plane; a request beyond it
	// waits for as long as its context allows. 0 is 1024.
	MaxStreams int
	// SendTimeout bounds how long one new stream may wait for a guest that does
	// not take it, where the request's own deadline is later. 0 is 10 s.
	SendTimeout time.Duration
}

const (
	defaultMaxStreams  = 1024
	defaultSendTimeout = 10 * time.Second
)

// Link is the host's side. It implements link.Link; all methods may be called
// concurrently.
type Link struct {
	control     *net.UnixConn
	sendTimeout time.Duration
	// sending is held by the one sender that waits for room on the control
	// socket, because the socket has one write deadline.
	sending chan struct{}
	data    *plane
	admin   *plane
	// buffers are for bulk bodies, requests for whole small requests.
	buffers  sync.Pool
	requests sync.Pool
	ready    chan struct{}
	done     chan struct{}
	// egress is written under mu before ready is closed; nil where none was
	// handed over.
	egress *egress

	mu     sync.Mutex
	ended  bool
	closed bool
	cause  error
	// streams are the live host ends.
	streams map[*stream]struct{}
	// work counts what Close waits for: goroutines and calls of RoundTrip. It
	// grows only under mu and before ended.
	work sync.WaitGroup
}

var _ link.Link = (*Link)(nil)

// New starts the host's side on control, an end from Pair, which it owns from
// now on, also when it fails. It sends the boot packet: at most boot.MaxBytes of
// payload, and at most 16 files, which stay the caller's. It does not wait for
// the guest. Errors: Invalid, TransportLost when the guest's end is closed
// already, Exhausted.
func New(control *os.File, bootPayload []byte, files []*os.File, opts Options) (*Link, error) {
	defer control.Close()
	if (len(bootPayload) > boot.MaxBytes || len(files) > maxFiles) && !defence.LinkBootSize.Off() {
		return nil, errdefs.New(errdefs.Invalid, "open link", "the boot packet is too large")
	}
	if opts.MaxStreams < 0 || opts.SendTimeout < 0 {
		return nil, errdefs.New(errdefs.Invalid, "open link", "negative option")
	}
	if opts.MaxStreams == 0 {
		opts.MaxStreams = defaultMaxStreams
	}
	if opts.SendTimeout == 0 {
		opts.SendTimeout = defaultSendTimeout
	}
	conn, err := openControl(control)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Invalid, "open link", err)
	}
	l := &Link{
		control:     conn,
		sendTimeout: opts.SendTimeout,
		sending:     make(chan struct{}, 1),
		ready:       make(chan struct{}),
		done:        make(chan struct{}),
		streams:     map[*stream]struct{}{},
	}
	l.buffers.New = func() any { return new([copySize]byte) }
	l.data = newPlane(l, tagData, opts.MaxStreams)
	l.admin = newPlane(l, tagControl, opts.MaxStreams)
	if err := l.sendBoot(bootPayload, files); err != nil {
		_ = conn.Close()
		return nil, err
	}
	l.work.Add(1)
	go l.watch()
	return l, nil
}

// sendBoot sends the boot packet. A fresh socket has room for it.
func (l *Link) sendBoot(payload []byte, files []*os.File) error {
	if err := l.control.SetWriteDeadline(time.Now().Add(l.sendTimeout)); err != nil {
		return wrapSystem("send boot packet", err)
	}
	err := withDescriptors(files, nil, func(fds []int) error {
		data, oob := encode(tagBoot, payload, fds...)
		_, _, err := l.control.WriteMsgUnix(data, oob, nil)
		return err
	})
	if err != nil {
		return wrapSystem("send boot packet", err)
	}
	return nil
}

// Ready waits for the guest's hello. Errors: Protocol when the first packet was
// no hello or carried something else than a loopback listener, TransportLost
// when the guest is gone, Closed after Close, the context's error.
func (l *Link) Ready(ctx context.Context) error {
	if err := l.endError("wait for the agent"); err != nil {
		return err
	}
	select {
	case <-l.ready:
		return nil
	case <-l.done:
		return l.endError("wait for the agent")
	case <-ctx.Done():
		return contextError(ctx, "wait for the agent")
	}
}

// Done is closed when the link has ended, by either side.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err says why the link ended; nil while it lives and after a plain Close.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Close ends the link, resets every stream and waits for all goroutines of the
// link, but not for a read of a caller's own request body. It returns nil.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end(nil)
	l.work.Wait()
	return nil
}

// watch owns the reading of the control socket: one hello, then nothing.
func (l *Link) watch() {
	defer l.work.Done()
	l.end(l.listen())
}

// listen returns why the link has to end; it never returns nil.
func (l *Link) listen() error {
	const op = "read control socket"
	hello, err := receive(l.control, 1, 2)
	if lost(err) {
		return lostError(op, err)
	} else if err != nil {
		return errdefs.Wrap(errdefs.Protocol, op, err)
	}
	fd, err := hello.helloListener()
	if err != nil {
		hello.drop()
		return err
	}
	if fd >= 0 {
		inside, err := openEgress(l, fd)
		if err != nil {
			return err
		}
		if !l.begin(func() { l.egress = inside; l.work.Add(1) }) {
			_ = inside.stop()
			return l.endError(op)
		}
		go inside.serve()
	}
	close(l.ready)
	// A plain read has no room for descriptors: the kernel drops what is sent.
	var one [1]byte
	_, err = l.control.Read(one[:])
	for err == nil && defence.LinkNothingAfterHello.Off() {
		_, err = l.control.Read(one[:])
	}
	if err != nil {
		return lostError(op, err)
	}
	return protocolError(op, "the guest sent a packet after its hello")
}

// begin runs enter under the lock, unless the link has ended.
func (l *Link) begin(enter func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	enter()
	return true
}

// end ends the link for a reason, nil for Close. Only the first call counts.
func (l *Link) end(cause error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended, l.cause = true, cause
	streams := slices.Collect(maps.Keys(l.streams))
	var uploads []*upload
	for _, s := range streams {
		if s.upload != nil {
			uploads = append(uploads, s.upload)
		}
	}
	l.data.stop()
	l.admin.stop()
	inside := l.egress
	l.mu.Unlock()
	// Errors of closing are of no use to anybody here: every descriptor goes. The
	// streams go before Done, so that no request succeeds after it, and before the
	// control socket, whose end makes an agent end its commands: that is not how
	// they would have ended, and must not be told.
	for _, s := range streams {
		_ = s.inner.Close()
	}
	_ = l.control.Close()
	close(l.done)
	for _, u := range uploads {
		u.abandon()
	}
	if inside != nil {
		_ = inside.stop()
	}
}

// endError says that the link has ended, for an operation; nil while it lives.
func (l *Link) endError(op string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.ended:
		return nil
	case l.closed || l.cause == nil:
		return errdefs.New(errdefs.Closed, op, "the link is closed")
	}
	return &errdefs.Error{Kind: errdefs.KindOf(l.cause), Op: op, Reasons: []string{"the link has ended"}, Err: l.cause}
}
