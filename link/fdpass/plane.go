package fdpass

import (
	"context"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	// idlePerPlane bounds the streams kept for reuse, idleTimeout their age.
	idlePerPlane = 16
	idleTimeout  = 30 * time.Second
)

// plane is one of the two ways in. Each keeps its own streams, all of which were
// opened with that plane's tag, so that no request can come to the other plane
// by a stream that is used again.
type plane struct {
	link *Link
	tag  byte
	// slots holds one element for each stream in use.
	slots chan struct{}

	// idle has the streams without a request, the longest idle first, and expiry
	// runs while there are any. The link's lock guards both.
	idle   []*stream
	expiry *time.Timer
}

func newPlane(l *Link, tag byte, streams int) *plane {
	if defence.LinkStreamCount.Off() {
		streams = 1 << 16
	}
	return &plane{link: l, tag: tag, slots: make(chan struct{}, streams)}
}

// take gives the stream that was used last, or a fresh one. A guest that spoke
// without being asked, or closed its end, loses the stream.
func (p *plane) take(ctx context.Context) (s *stream, reused bool, err error) {
	for {
		if s = p.pop(); s == nil {
			s, err = p.link.dial(ctx, p.tag)
			return s, false, err
		}
		if s.silent() || defence.LinkUnaskedAnswer.Off() {
			return s, true, nil
		}
		_ = s.Close()
	}
}

func (p *plane) pop() *stream {
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	s := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	return s
}

// put keeps a stream for the next request.
func (p *plane) put(s *stream) {
	p.link.mu.Lock()
	keep := !p.link.ended && (len(p.idle) < idlePerPlane || defence.LinkIdleStreams.Off())
	if keep {
		s.idleSince = time.Now()
		s.upload = nil
		p.idle = append(p.idle, s)
		if p.expiry == nil {
			p.expiry = time.AfterFunc(idleTimeout, p.expire)
		}
	}
	p.link.mu.Unlock()
	if !keep {
		_ = s.Close()
	}
}

// expire closes the streams that were idle for too long.
func (p *plane) expire() {
	p.link.mu.Lock()
	var old []*stream
	for len(p.idle) > 0 && time.Since(p.idle[0].idleSince) >= idleTimeout {
		old = append(old, p.idle[0])
		p.idle = p.idle[1:]
	}
	p.expiry = nil
	if len(p.idle) > 0 && !p.link.ended {
		p.expiry = time.AfterFunc(idleTimeout-time.Since(p.idle[0].idleSince), p.expire)
	}
	p.link.mu.Unlock()
	for _, s := range old {
		_ = s.Close()
	}
}

// stop ends the keeping; the link closes the streams. The link's lock is held.
func (p *plane) stop() {
	p.idle = nil
	if p.expiry != nil {
		p.expiry.Stop()
	}
}
