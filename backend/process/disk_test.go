package process

import (
	"math"
	"testing"

	"github.com/berm-dev/berm/driver"
)

func TestSplitDiskNeverExceedsTheLimit(t *testing.T) {
	t.Parallel()
	mounts := []driver.Mount{
		{Name: "outputs", Dest: driver.OutputsPath, Writable: true},
		{Name: "scratch", Dest: driver.ScratchPath, Writable: true},
		{Name: "uploads", Dest: driver.UploadsPath, Source: "/srv"},
	}
	for i, total := range []int64{0, 4 << 20, 100_000_001, 512 << 20, 1 << 40, math.MaxInt64} {
		network, want := driver.NetworkNone, 6
		if i%2 == 1 {
			network, want = driver.NetworkGated, 7
		}
		sizes, err := splitDisk(total, mounts, network)
		if err != nil {
			t.Fatal(err)
		}
		if len(sizes) != want || sizes[driver.UploadsPath] != 0 {
			t.Errorf("%d: %v", total, sizes)
		}
		var sum int64
		for path, size := range sizes {
			if size < pageSize || size%pageSize != 0 {
				t.Errorf("%d: %s has %d", total, path, size)
			}
			sum += size
		}
		if limit := total; limit > 0 && sum > limit || sum <= 0 {
			t.Errorf("%d: sum is %d", total, sum)
		}
	}
	if _, err := splitDisk(1<<20, mounts, driver.NetworkGated); err == nil {
		t.Error("a limit that is too small is accepted")
	}
}
