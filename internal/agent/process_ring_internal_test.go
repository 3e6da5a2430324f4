package agent

import (
	"bytes"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// TestRing holds a ring against all that was ever written.
func TestRing(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var used atomic.Int64
		limit := 1 + random.IntN(5000)
		r := ring{limit: limit, used: &used}
		var all []byte
		for range random.IntN(60) {
			piece := make([]byte, random.IntN(3*limit))
			for i := range piece {
				piece[i] = byte(random.Uint32())
			}
			if at := r.add(piece); at != uint64(len(all)) {
				t.Fatalf("a piece is at %d, want %d", at, len(all))
			}
			all = append(all, piece...)
			if len(r.data) < min(limit, len(all)) || cap(r.data) > 4*limit+64 || used.Load() != int64(cap(r.data)) {
				t.Fatalf("limit %d: %d of %d bytes in %d, %d are counted", limit, len(r.data), len(all), cap(r.data), used.Load())
			}
			want := uint64(random.IntN(len(all) + 10))
			data, at := r.from(want)
			if at > uint64(len(all)) || !bytes.Equal(data, all[at:]) || at < want && at != uint64(len(all)) || len(data) < min(limit, len(all)-int(min(want, uint64(len(all))))) {
				t.Fatalf("limit %d: from %d gives %d bytes at %d of %d", limit, want, len(data), at, len(all))
			}
		}
		if r.drop(); used.Load() != 0 {
			t.Fatalf("%d bytes are counted after all was dropped", used.Load())
		}
	}
}

// TestRingsShareABudget: many streams that write much do not add up.
func TestRingsShareABudget(t *testing.T) {
	t.Parallel()
	var used atomic.Int64
	rings := make([]ring, 200)
	for range 40 {
		for i := range rings {
			rings[i].limit, rings[i].used = maxKeep, &used
			rings[i].add(make([]byte, 100<<10))
		}
	}
	if got := used.Load(); got > keepBudget+int64(len(rings))*4*leastKeep+2*maxKeep {
		t.Errorf("%d bytes are kept", got)
	}
}
