package agent

import (
	"slices"
	"sync/atomic"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

const (
	// maxKeep is the most that is kept of one stream, in bytes.
	maxKeep = 4 << 20
	// keepBudget is how much all streams together may keep. Beyond it each keeps
	// leastKeep, at the expense of those that write most.
	keepBudget = 24 << 20
	leastKeep  = 16 << 10
)

// ring keeps the last bytes of one stream. Whoever owns it locks.
type ring struct {
	limit int
	// used counts what all rings of the agent hold.
	used *atomic.Int64
	data []byte
	// next is the offset of the byte that comes next.
	next uint64
}

// add appends and gives the offset of the first byte.
func (r *ring) add(data []byte) (offset uint64) {
	offset = r.next
	r.next += uint64(len(data))
	if r.limit == 0 {
		return offset
	}
	limit := r.limit
	if r.used.Load() > keepBudget {
		limit = min(limit, leastKeep)
	}
	before := cap(r.data)
	if len(data) > limit {
		r.data, data = r.data[:0], data[len(data)-limit:]
	}
	r.data = append(r.data, data...)
	switch {
	case cap(r.data) > 4*limit:
		r.data = slices.Clone(r.data[max(0, len(r.data)-limit):])
	case len(r.data) > limit+limit/2:
		// Half a limit beyond it, so that not every byte moves all others.
		r.data = r.data[:copy(r.data, r.data[len(r.data)-limit:])]
	}
	r.used.Add(int64(cap(r.data) - before))
	return offset
}

// from gives a copy of what is kept from offset on, and where it begins.
func (r *ring) from(offset uint64) (data []byte, at uint64) {
	first := r.next - uint64(len(r.data))
	at = min(max(offset, first), r.next)
	return slices.Clone(r.data[at-first:]), at
}

// drop gives the memory back.
func (r *ring) drop() {
	if r.used != nil {
		r.used.Add(-int64(cap(r.data)))
	}
	r.data, r.limit = nil, 0
}

// streams are a command's, by number less one: 1 and 2 as descriptors, 3 is a
// terminal's.
type streams [3]ring

const terminalStream = 3

// newStreams keeps nothing where keep is 0.
func newStreams(keep uint32, used *atomic.Int64) streams {
	var s streams
	for i := range s {
		s[i].limit, s[i].used = int(min(keep, maxKeep)), used
	}
	return s
}

// backlog cuts what is kept into chunks.
func (s *streams) backlog(from *agentv1.Offsets) []chunk {
	var out []chunk
	for i, offset := range []uint64{from.GetStdout(), from.GetStderr(), from.GetPty()} {
		data, at := s[i].from(offset)
		for piece := range slices.Chunk(data, readSize) {
			out = append(out, chunk{stream: i + 1, data: piece, offset: at})
			at += uint64(len(piece))
		}
	}
	return out
}

// total counts each stream's bytes so far.
func (s *streams) total() *agentv1.Offsets {
	return &agentv1.Offsets{Stdout: s[0].next, Stderr: s[1].next, Pty: s[2].next}
}
