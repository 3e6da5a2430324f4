package agentclient

import (
	"bytes"
	"testing"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// An entry costs the agent two bytes; a message full of them must not cost the
// host a hundred times as much. It counts allocations, so it runs alone.
func TestListingsAreCountedBeforeTheyAreDecoded(t *testing.T) { //nolint:paralleltest // see above
	data := bytes.Repeat([]byte("\x0a\x00"), maxListMessage/2)
	var err error
	allocations := testing.AllocsPerRun(3, func() {
		err = (&codec{}).UnmarshalRead(t.Context(), bytes.NewBuffer(data), &agentv1.ListDirResponse{})
	})
	if err == nil || allocations > 50 {
		t.Errorf("error %v after %.0f allocations", err, allocations)
	}
	if err := countEntries(data[:2*maxListEntries], maxListEntries); err != nil {
		t.Errorf("a listing of the largest size: %v", err)
	}
}
