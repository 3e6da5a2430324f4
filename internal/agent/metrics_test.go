package agent_test

import (
	"encoding/json"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/agent"
)

type measured struct {
	TS          int64   `json:"ts"`
	CPUCount    int     `json:"cpu_count"`
	CPUUsedPct  float64 `json:"cpu_used_pct"`
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
	MemCache    *uint64 `json:"mem_cache"`
}

func measure(tb testing.TB, data http.Handler) measured {
	tb.Helper()
	rec := call(tb, data, "GET", "/metrics", "")
	var m measured
	if rec.Code != 200 || json.Unmarshal(rec.Body.Bytes(), &m) != nil || m.MemCache == nil {
		tb.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return m
}

// The numbers are those of the kernel, and a command that works is seen.
func TestMetrics(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"own": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			config := bootFor(home)
			config.Shared = shared
			a, err := agent.New(agent.Config{Boot: config, Executable: "/proc/self/exe"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.Close)
			var fs unix.Statfs_t
			if err := unix.Statfs(home, &fs); err != nil {
				t.Fatal(err)
			}
			m := measure(t, a.Data())
			if age := time.Now().Unix() - m.TS; age < 0 || age > 60 {
				t.Errorf("ts %d", m.TS)
			}
			if m.CPUCount != runtime.NumCPU() || m.DiskTotal != fs.Blocks*uint64(fs.Bsize) || m.DiskUsed == 0 || m.DiskUsed > m.DiskTotal {
				t.Errorf("%+v", m)
			}
			if m.MemUsed < uint64(os.Getpagesize()) || m.MemUsed > m.MemTotal || m.MemTotalMiB != m.MemTotal>>20 || m.MemUsedMiB != m.MemUsed>>20 {
				t.Errorf("%+v", m)
			}
			busy := call(t, a.Data(), "POST", "/metrics", "")
			if busy.Code != 405 || busy.Header().Get("Allow") == "" {
				t.Errorf("%d %v", busy.Code, busy.Header())
			}
			// This process works by asking.
			for deadline := time.Now().Add(20 * time.Second); ; {
				if m = measure(t, a.Data()); m.CPUUsedPct > 0 && m.CPUUsedPct <= 100 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%+v", m)
				}
			}
		})
	}
}

// Limits that the host has told are what there is.
func TestMetricsTellLimits(t *testing.T) {
	t.Parallel()
	config := bootFor(t.TempDir())
	config.MemoryBytes, config.CPUs = 64<<20, 0.5
	a, err := agent.New(agent.Config{Boot: config, Executable: "/proc/self/exe"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if m := measure(t, a.Data()); m.MemTotal != 64<<20 || m.CPUCount != 1 {
		t.Errorf("%+v", m)
	}
}
