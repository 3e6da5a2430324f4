package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// probeOrder is what the probe child reads from its standard input.
type probeOrder struct {
	AgentPID        int      `json:"agentPid"`
	WritePaths      []string `json:"writePaths,omitempty"`
	AbstractSockets []string `json:"abstractSockets,omitempty"`
	SizePaths       []string `json:"sizePaths,omitempty"`
}

// probeReport is what it writes to its standard output.
type probeReport struct {
	Status          map[string]string `json:"status"` // fields of /proc/self/status in hexadecimal
	NoNewPrivileges bool              `json:"noNewPrivileges"`
	SeccompMode     uint32            `json:"seccompMode"`
	UIDMap          string            `json:"uidMap"`
	UID             uint32            `json:"uid"`
	Writable        []string          `json:"writable,omitempty"`
	Routes          []string          `json:"routes,omitempty"`
	Connected       []string          `json:"connected,omitempty"`
	Sizes           []uint64          `json:"sizes,omitempty"`
	ProcessLimit    uint64            `json:"processLimit"`
	AgentReadable   bool              `json:"agentReadable"`
}

// Bounds of what the probe reads and reports.
const (
	maxProbeInput = 1 << 20
	maxProbeFile  = 64 << 10
	maxRoutes     = 64
)

// RunProbe is the agent's probe mode: it measures what surrounds the calling
// process, which was started as a command is, and reports it. The one goroutine
// and the few system calls keep it quick, since each sandbox is probed before it
// is handed out. What cannot be measured is an error, never a good answer. The
// ignored signals are those that are left when the Go runtime has set its own
// handlers.
func RunProbe(stdin io.Reader, stdout io.Writer) error {
	data, err := io.ReadAll(io.LimitReader(stdin, maxProbeInput))
	if err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	var order probeOrder
	if err := json.Unmarshal(data, &order); err != nil {
		return fmt.Errorf("decode order: %w", err)
	}
	report, err := order.measure()
	if err != nil {
		return err
	}
	out, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if _, err := stdout.Write(out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (o *probeOrder) measure() (*probeReport, error) {
	r := &probeReport{UID: uint32(unix.Getuid())} //nolint:gosec // never negative
	if err := r.readStatus(); err != nil {
		return nil, err
	}
	uidMap, err := probeFile("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	r.UIDMap = strings.TrimSpace(string(uidMap))
	if r.Routes, err = routes(); err != nil {
		return nil, err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return nil, fmt.Errorf("read the limit on processes: %w", err)
	}
	if limit.Cur != unix.RLIM_INFINITY {
		r.ProcessLimit = limit.Cur
	}
	for _, p := range o.WritePaths {
		if canWrite(p) {
			r.Writable = append(r.Writable, p)
		}
	}
	for _, name := range o.AbstractSockets {
		if canConnect(name) {
			r.Connected = append(r.Connected, name)
		}
	}
	for _, p := range o.SizePaths {
		r.Sizes = append(r.Sizes, fileSystemSize(p))
	}
	r.AgentReadable = canRead(o.AgentPID)
	return r, nil
}

// readStatus takes what /proc/self/status says. Every field has to be there.
func (r *probeReport) readStatus() error {
	data, err := probeFile("/proc/self/status")
	if err != nil {
		return err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	r.Status = map[string]string{}
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "SigIgn"} {
		value, ok := fields[name]
		if !ok {
			return fmt.Errorf("/proc/self/status has no %s", name)
		}
		r.Status[name] = value
	}
	privileges, err := strconv.ParseUint(fields["NoNewPrivs"], 10, 32)
	if err != nil {
		return fmt.Errorf("/proc/self/status: NoNewPrivs: %w", err)
	}
	mode, err := strconv.ParseUint(fields["Seccomp"], 10, 32)
	if err != nil {
		return fmt.Errorf("/proc/self/status: Seccomp: %w", err)
	}
	r.NoNewPrivileges, r.SeccompMode = privileges == 1, uint32(mode)
	return nil
}

// probeFile reads a small file of procfs.
func probeFile(p string) ([]byte, error) {
	file, err := os.Open(p)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxProbeFile))
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return data, nil
}

// routes gives the lines of both routing tables that lead elsewhere than
// loopback.
func routes() ([]string, error) {
	v4, err := probeFile("/proc/net/route")
	if err != nil {
		return nil, err
	}
	out := routeLines(v4, true, 0)
	v6, err := probeFile("/proc/net/ipv6_route")
	switch {
	case errors.Is(err, os.ErrNotExist):
		// The kernel has no IPv6.
	case err != nil:
		return nil, err
	default:
		out = append(out, routeLines(v6, false, -1)...)
	}
	return out[:min(len(out), maxRoutes)], nil
}

// routeLines picks the lines whose interface, the column given (from the end
// when negative), is not loopback.
func routeLines(table []byte, header bool, column int) []string {
	var out []string
	for line := range bytes.Lines(table) {
		if header {
			header = false
			continue
		}
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			continue
		}
		at := column
		if at < 0 {
			at += len(fields)
		}
		if fields[at] != "lo" {
			out = append(out, strings.Join(fields, " "))
		}
	}
	return out
}

// canWrite opens an existing file for writing and writes nothing, or makes a
// file in a directory and removes it.
func canWrite(p string) bool {
	var st unix.Stat_t
	if unix.Stat(p, &st) != nil {
		return false
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return canMake(p)
	}
	fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

func canMake(dir string) bool {
	name, err := tempName()
	if err != nil {
		return true // not measured: the worse answer
	}
	p := dir + "/" + name
	fd, err := unix.Open(p, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	_ = unix.Unlink(p)
	return true
}

// canConnect reports whether an abstract socket of that name is within reach,
// also when it is of another type or its queue is full.
func canConnect(name string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name})
	return err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EPROTOTYPE)
}

func fileSystemSize(p string) uint64 {
	var fs unix.Statfs_t
	if unix.Statfs(p, &fs) != nil || fs.Bsize <= 0 {
		return 0
	}
	return fs.Blocks * uint64(fs.Bsize)
}

// canRead tries each way to the agent's memory, environment and descriptors.
func canRead(pid int) bool {
	base := "/proc/" + strconv.Itoa(pid) + "/"
	for _, name := range []string{"environ", "mem", "maps", "fd", "task/" + strconv.Itoa(pid) + "/environ"} {
		if canOpen(base + name) {
			return true
		}
	}
	if _, err := os.Readlink(base + "cwd"); err == nil {
		return true
	}
	local := make([]byte, 1)
	// Address 1 is mapped nowhere: EFAULT says that the memory could be reached.
	_, err := unix.ProcessVMReadv(pid,
		[]unix.Iovec{{Base: &local[0], Len: 1}}, []unix.RemoteIovec{{Base: 1, Len: 1}}, 0)
	if err == nil || errors.Is(err, unix.EFAULT) {
		return true
	}
	return canTakeDescriptor(pid)
}

// canOpen opens for reading and, because procfs checks some files only then,
// reads.
func canOpen(p string) bool {
	file, err := os.Open(p)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return true
	}
	if info.IsDir() {
		_, err = file.Readdirnames(1)
	} else {
		_, err = file.Read(make([]byte, 1))
	}
	// EIO is what mem says of address 0 to those who may read it.
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.EIO)
}

// canTakeDescriptor tries pidfd_getfd. EBADF means that only the descriptor was
// missing.
func canTakeDescriptor(pid int) bool {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(pidfd) }()
	fd, err := unix.PidfdGetfd(pidfd, 0, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == nil || errors.Is(err, unix.EBADF)
}
