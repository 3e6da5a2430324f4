package mux

import (
	"time"
)

// What no honest peer comes near: frames that mean nothing, in a burst and per
// second, and streams that the peer opens. The first end the link, the second
// slow the peer down.
const (
	pointlessBurst = 1024
	pointlessRate  = 64
	openBurst      = 4096
	openRate       = 4096

	// A stream that was reset may still get what was under way: a window of bytes
	// and a few frames. What is left over of this does not pile up beyond these.
	lateFrames    = 16
	maxLateBytes  = 64 << 20
	maxLateFrames = 64 << 10
)

// rules are the budgets of a peer. The guard's lock guards them.
type rules struct {
	// opened and met are the highest streams that either side has opened.
	opened, met uint32
	// lateBytes and lateFrames are for streams that have ended here.
	lateBytes, lateFrames int64
	pointless, opens      bucket
}

func newRules(now time.Time) rules {
	return rules{
		pointless: bucket{level: pointlessBurst, burst: pointlessBurst, rate: pointlessRate, at: now},
		opens:     bucket{level: openBurst, burst: openBurst, rate: openRate, at: now},
	}
}

// ended says that a stream has ended on this side.
func (r *rules) ended() {
	r.lateBytes = min(r.lateBytes+streamWindow, maxLateBytes)
	r.lateFrames = min(r.lateFrames+lateFrames, maxLateFrames)
}

// bucket is a budget that fills up with time.
type bucket struct {
	level, burst, rate float64
	at                 time.Time
}

func (b *bucket) fill(now time.Time) {
	b.level = min(b.burst, b.level+now.Sub(b.at).Seconds()*b.rate)
	b.at = now
}

// pause is how long it takes until there is none missing.
func (b *bucket) pause(now time.Time) time.Duration {
	b.fill(now)
	return time.Duration(max(0, -b.level/b.rate) * float64(time.Second))
}

// take takes one, also where there is none; then it is false.
func (b *bucket) take(now time.Time) bool {
	b.fill(now)
	b.level--
	return b.level >= 0
}

// judge says what is wrong with a frame that came, and keeps account of it. The
// lock is held.
func (g *guard) judge(f frame) error {
	const op = "read frame"
	switch {
	case f.version != 0 || f.kind > frameGoAway:
		return protocolError(op, "it is no frame")
	case f.flags&^(flagSYN|flagACK|flagFIN|flagRST) != 0:
		return protocolError(op, "unknown flags %#x", f.flags)
	case f.kind == frameGoAway:
		return nil
	case f.kind == framePing:
		return g.pointless("pings")
	case f.id == 0:
		return protocolError(op, "a frame of no stream")
	case f.flags&flagSYN != 0:
		if err := g.opening(f); err != nil {
			return err
		}
	}
	s := g.flows[f.id]
	if s == nil {
		return g.late(f)
	}
	if f.kind == frameData {
		return g.payload(s, f)
	}
	if s.repeats(f) {
		return g.pointless("repeated flags")
	}
	if f.flags&flagRST == 0 {
		s.granted += int64(f.length)
	}
	if s.granted > s.sent+streamWindow-firstWindow {
		return protocolError(op, "a window beyond %d bytes", streamWindow)
	}
	return nil
}

// opening judges the first frame of a stream.
func (g *guard) opening(f frame) error {
	if (f.id%2 == 1) == g.host || g.flows[f.id] != nil {
		return protocolError("read frame", "stream %d is not the peer's to open", f.id)
	}
	g.rules.met = max(g.rules.met, f.id)
	g.flows[f.id] = &flow{}
	if g.host {
		// The host's own number of streams is bounded by itself.
		g.rules.opens.take(time.Now())
	}
	return nil
}

// late judges a frame of a stream that is not open.
func (g *guard) late(f frame) error {
	highest := g.rules.met
	if (f.id%2 == 1) == g.host {
		highest = g.rules.opened
	}
	if f.id > highest {
		return protocolError("read frame", "stream %d was never opened", f.id)
	}
	if f.kind == frameData && f.length > 0 {
		g.rules.lateBytes -= int64(f.length)
	} else {
		g.rules.lateFrames--
	}
	if g.rules.lateBytes < 0 || g.rules.lateFrames < 0 {
		return protocolError("read frame", "too much for streams that have ended")
	}
	return nil
}

// payload judges a frame with payload, of an open stream.
func (g *guard) payload(s *flow, f frame) error {
	if repeated := s.repeats(f); f.length == 0 && repeated {
		return g.pointless("empty frames")
	}
	s.received += int64(f.length)
	if s.received > firstWindow+s.allowed {
		return protocolError("read frame", "stream %d got more than its window", f.id)
	}
	if f.length > 0 {
		s.buffered += int64(f.length)
		s.overhead += frameCost
		g.buffered += int64(f.length) + frameCost
	}
	return nil
}

// repeats tells whether a frame says nothing new: no flag that was not seen, and
// no window worth its frame. An honest peer grants half a window at a time.
func (s *flow) repeats(f frame) bool {
	fresh := f.flags &^ s.seen
	s.seen |= f.flags
	return fresh == 0 && (f.kind == frameData || f.length < streamWindow/16)
}

// pointless counts a frame that has no use.
func (g *guard) pointless(what string) error {
	if g.rules.pointless.take(time.Now()) {
		return nil
	}
	return protocolError("read frame", "a flood of %s", what)
}
