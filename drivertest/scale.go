package drivertest

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// scaled is the size of a big transfer: an eighth with -short.
func scaled(size int64) int64 {
	if testing.Short() {
		return size / 8
	}
	return size
}

func itoa(n int) string { return strconv.Itoa(n) }

// hostBeat reads the size of a beat file through the host's side of the outputs.
func hostBeat(dir, file string) func(t *testing.T) int64 {
	return func(t *testing.T) int64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, filepath.Base(file)))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
}

// eventuallyStill checks that a size does not grow any more.
func eventuallyStill(t *testing.T, size func() int64, last int64) {
	t.Helper()
	const pulse = 300 * time.Millisecond
	since := time.Now()
	eventually(t, liveness+pulse, "the daemon is dead", func() bool {
		if now := size(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > pulse
	})
}

// drain reads to the end and gives the error that was there instead of it.
func drain(from io.Reader, to io.Writer) error {
	_, err := io.Copy(to, from)
	return err
}
