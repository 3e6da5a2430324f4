package agent

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
)

// shortestSample is the least time over which processor use is averaged: what was
// measured a moment ago is told again.
const shortestSample = 100 * time.Millisecond

// metrics measures the sandbox. In its own cgroup the kernel counts; elsewhere
// what the processes that the agent can see use is added up, pages that they share
// once for each; on a shared host the host as a whole is measured, and not told
// what is whose. All methods may be called concurrently.
type metrics struct {
	group  *os.File // the cgroup v2 directory of all commands, nil without one
	shared bool
	dir    string
	// memory and cpus are the sandbox's limits; 0 is none.
	memory uint64
	cpus   float64

	mu   sync.Mutex
	at   time.Time // of the last sample
	used time.Duration
	pct  float64
}

func newMetrics(config Config) *metrics {
	m := &metrics{
		group: config.namedFile(boot.CgroupDir), shared: config.Boot.Shared, dir: config.Boot.Dir,
		memory: uint64(max(config.Boot.MemoryBytes, 0)), cpus: config.Boot.CPUs, at: time.Now(),
	}
	if m.shared {
		// The host's count did not begin with this agent.
		m.used = ticksTime(hostTicks())
	}
	return m
}

// reading is what GET /metrics answers: unix seconds, percent of all processors
// together, and bytes.
type reading struct {
	At       int64   `json:"ts"`
	CPUs     int     `json:"cpu_count"`
	CPUPct   float64 `json:"cpu_used_pct"`
	MemTotal uint64  `json:"mem_total"`
	MemUsed  uint64  `json:"mem_used"`
	MemCache uint64  `json:"mem_cache"`
	TotalMiB uint64  `json:"mem_total_mib"`
	UsedMiB  uint64  `json:"mem_used_mib"`
	Disk     uint64  `json:"disk_used"`
	DiskSize uint64  `json:"disk_total"`
}

// serve serves GET /metrics.
func (m *metrics) serve(w http.ResponseWriter, _ *http.Request) {
	now, err := m.read()
	if err != nil {
		answerError(w, http.StatusInternalServerError, "measure: "+err.Error())
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	answer(w, http.StatusOK, now)
}

func (m *metrics) read() (reading, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		return reading{}, err
	}
	host, err := readMeminfo()
	if err != nil {
		return reading{}, err
	}
	out := reading{At: time.Now().Unix(), MemTotal: host["MemTotal"]}
	if m.memory > 0 {
		out.MemTotal = min(out.MemTotal, m.memory)
	}
	current, counted := m.groupNumber("memory.current")
	var seen census
	processor := m.groupTime()
	if !counted || processor == 0 {
		if seen, err = m.census(); err != nil {
			return reading{}, err
		}
	}
	if processor == 0 {
		processor = seen.processor
	}
	switch {
	case counted:
		// Files in memory count as cache for the kernel, and cannot be dropped.
		stat := m.groupTable("memory.stat")
		out.MemCache = min(current, stat["file"]-min(stat["file"], stat["shmem"]))
		out.MemUsed = current - out.MemCache
	case m.shared:
		out.MemUsed = host["MemTotal"] - min(host["MemTotal"], host["MemAvailable"])
		out.MemCache = host["Cached"]
	default:
		out.MemUsed = seen.resident
	}
	capacity := float64(runtime.NumCPU())
	if m.cpus > 0 {
		capacity = min(capacity, m.cpus)
	}
	out.CPUs = int(math.Ceil(capacity))
	out.CPUPct = m.sample(processor, capacity)
	out.TotalMiB, out.UsedMiB = out.MemTotal>>20, out.MemUsed>>20
	block := uint64(fs.Bsize) //nolint:gosec // never negative
	out.DiskSize, out.Disk = fs.Blocks*block, (fs.Blocks-min(fs.Bfree, fs.Blocks))*block
	return out, nil
}

// sample gives the use of processors since the last sample, in percent.
func (m *metrics) sample(used time.Duration, capacity float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	elapsed := now.Sub(m.at)
	if elapsed < shortestSample {
		return m.pct
	}
	share := 100 * float64(max(used-m.used, 0)) / (float64(elapsed) * capacity)
	m.at, m.used, m.pct = now, used, math.Round(100*min(share, 100))/100
	return m.pct
}

// groupTime gives the processor time of all commands so far, where the kernel
// counts it.
func (m *metrics) groupTime() time.Duration {
	micros := m.groupTable("cpu.stat")["usage_usec"]
	return time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond //nolint:gosec // bounded
}

// census is what all processes that can be seen use together.
type census struct {
	resident  uint64
	processor time.Duration
}

// census goes through /proc. Where the agent collects orphans, time of those that
// have ended is its own children's.
func (m *metrics) census() (census, error) {
	var out census
	if m.shared {
		out.processor = ticksTime(hostTicks())
		return out, nil
	}
	pids, err := listProcesses()
	if err != nil {
		return out, err
	}
	for _, pid := range pids {
		data, err := readProc(pid, "stat")
		if err != nil {
			continue // gone since
		}
		// The name in parentheses may hold anything.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 22 {
			continue
		}
		// utime, stime, cutime, cstime; rss in pages.
		for _, field := range fields[11:15] {
			out.processor += ticksTime(parseNumber(field))
		}
		out.resident += parseNumber(fields[21]) * uint64(os.Getpagesize())
	}
	return out, nil
}

// hostTicks gives the busy time of all processors of the host.
func hostTicks() uint64 {
	data, err := readKernelFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	fields := bytes.Fields(line)
	var ticks uint64
	// user, nice, system; then idle and iowait; irq, softirq, steal.
	for i, field := range fields {
		if i >= 1 && i <= 8 && i != 4 && i != 5 {
			ticks += parseNumber(field)
		}
	}
	return ticks
}

// ticksTime converts USER_HZ, which is 100 on every architecture of ours.
func ticksTime(ticks uint64) time.Duration {
	return time.Duration(min(ticks, math.MaxInt64/uint64(10*time.Millisecond))) * 10 * time.Millisecond //nolint:gosec // bounded
}

// parseNumber reads a number of the kernel's; what is none is 0.
func parseNumber(field []byte) uint64 {
	n, err := strconv.ParseUint(string(field), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readMeminfo gives /proc/meminfo in bytes.
func readMeminfo() (map[string]uint64, error) {
	data, err := readKernelFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for line := range bytes.Lines(data) {
		if fields := bytes.Fields(line); len(fields) == 3 {
			out[string(bytes.TrimSuffix(fields[0], []byte(":")))] = parseNumber(fields[1]) << 10
		}
	}
	if out["MemTotal"] == 0 {
		return nil, errors.New("the kernel does not say how much memory there is")
	}
	return out, nil
}

func readKernelFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxKernelFile))
}

// readGroup reads a file of the cgroup, nil when it is not there.
func (m *metrics) readGroup(name string) []byte {
	if m.group == nil {
		return nil
	}
	raw, err := m.group.SyscallConn()
	if err != nil {
		return nil
	}
	fd := -1
	err = raw.Control(func(dir uintptr) {
		fd, err = unix.Openat(int(dir), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil || fd < 0 {
		return nil
	}
	file := os.NewFile(uintptr(fd), name)
	defer func() { _ = file.Close() }()
	return readAtMost(file, maxKernelFile)
}

func (m *metrics) groupNumber(name string) (uint64, bool) {
	data := bytes.TrimSpace(m.readGroup(name))
	n, err := strconv.ParseUint(string(data), 10, 64)
	return n, err == nil
}

// groupTable reads a file of "name number" lines.
func (m *metrics) groupTable(name string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range bytes.Lines(m.readGroup(name)) {
		if fields := bytes.Fields(line); len(fields) == 2 {
			out[string(fields[0])] = parseNumber(fields[1])
		}
	}
	return out
}
