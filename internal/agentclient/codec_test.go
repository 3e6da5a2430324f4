package agentclient

import (
	"bytes"
	"context"
	"testing"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// An entry costs the agent two bytes; a message full of them must not cost the
// host a hundred times as much. It counts allocations, so it runs alone.
func TestListingsAreCountedBeforeTheyAreDecoded(t *testing.T) { //nolint:paralleltest // see above
	pairs := append([]byte("\x0a\x80\x80\x80\x04"), bytes.Repeat([]byte("\x5a\x00"), 4<<20)...)
	for name, data := range map[string][]byte{
		"entries":                bytes.Repeat([]byte("\x0a\x00"), maxListMessage/2),
		"metadata of one entry":  pairs,
		"metadata of many":       bytes.Repeat([]byte("\x0a\x08\x5a\x00\x5a\x00\x5a\x00\x5a\x00"), maxListEntries/4+1),
		"an entry that is short": []byte("\x0a\x02\x5a\x01"),
	} {
		var err error
		allocations := testing.AllocsPerRun(3, func() {
			err = (&codec{}).UnmarshalRead(t.Context(), bytes.NewBuffer(data), &agentv1.ListDirResponse{})
		})
		if err == nil || allocations > 50 {
			t.Errorf("%s: error %v after %.0f allocations", name, err, allocations)
		}
	}
	largest := append(bytes.Repeat([]byte("\x0a\x00"), maxListEntries-1), "\x0a\x04\x5a\x00\x5a\x00"...)
	if err := (&codec{}).UnmarshalRead(t.Context(), bytes.NewBuffer(largest), &agentv1.ListDirResponse{}); err != nil {
		t.Errorf("a listing of the largest size: %v", err)
	}
}

func TestOneEntryTooMany(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]bool{maxListEntries: true, maxListEntries + 1: false} {
		data := bytes.NewBuffer(bytes.Repeat([]byte("\x0a\x00"), count))
		err := (&codec{}).UnmarshalRead(t.Context(), data, &agentv1.ListDirResponse{})
		if (err == nil) != want {
			t.Errorf("%d entries: %v", count, err)
		}
	}
}

// TestEveryCallHasADeadline: a caller without one gets ours, and one with one
// keeps it.
func TestEveryCallHasADeadline(t *testing.T) {
	t.Parallel()
	ctx, cancel := bounded(context.Background())
	defer cancel()
	if _, ok := ctx.Deadline(); !ok {
		t.Error("there is none")
	}
	own, cancelOwn := context.WithTimeout(t.Context(), 10*callTimeout)
	defer cancelOwn()
	ctx, cancel = bounded(own)
	defer cancel()
	got, _ := ctx.Deadline()
	if want, _ := own.Deadline(); !got.Equal(want) {
		t.Errorf("the deadline is %v, the caller's %v", got, want)
	}
}
