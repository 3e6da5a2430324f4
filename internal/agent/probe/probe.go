// Package probe is the agent's probe mode: a child that was started as a command
// is, and that measures what surrounds it. Each sandbox waits for one before it
// is handed out, so this package imports very little, as package execmode does:
// what it does not need is not initialised before it runs. It has no formatting
// and no JSON for that reason.
package probe

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
)

// Order is what the child reads from its standard input.
type Order struct {
	AgentPID        int
	WritePaths      []string
	AbstractSockets []string
	SizePaths       []string
	// Trials are carried out in order, after everything else.
	Trials []Trial
}

// Report is what it writes to its standard output.
type Report struct {
	// The capability sets and the ignored signals, in hexadecimal, as
	// /proc/self/status has them. The ignored signals are those that are left when
	// the Go runtime has set its own handlers.
	CapInheritable, CapPermitted, CapEffective, CapBounding, CapAmbient string
	SignalsIgnored                                                      string

	NoNewPrivileges bool
	SeccompMode     uint32
	UIDMap          string
	UID             uint32
	// Writable, Connected and Sizes (bytes, one for each path) answer the Order's
	// three lists; Routes are routing entries that lead elsewhere than loopback.
	Writable  []string
	Routes    []string
	Connected []string
	Sizes     []uint64
	// ProcessLimit is RLIMIT_NPROC, 0 for none.
	ProcessLimit  uint64
	AgentReadable bool
	// Outcomes has one for each of the Order's Trials.
	Outcomes []Outcome
}

// Bounds of what the probe reads and reports.
const (
	maxInput  = 1 << 20
	maxFile   = 64 << 10
	maxRoutes = 64
)

// fault is a step that failed and why.
type fault struct {
	step string
	err  error
}

func (f *fault) Error() string { return f.step + ": " + f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// Main carries out the mode on the process's standard streams and gives its exit
// status.
func Main() int {
	if err := Run(os.Stdin, os.Stdout); err != nil {
		_, _ = os.Stderr.WriteString("berm-agent: probe: " + err.Error() + "\n")
		return 1
	}
	return 0
}

// Run reads an Order, measures, and writes a Report. What cannot be measured is
// an error, never a good answer.
func Run(stdin io.Reader, stdout io.Writer) error {
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return &fault{"read order", err}
	}
	order, err := DecodeOrder(data)
	if err != nil {
		return &fault{"decode order", err}
	}
	report, err := order.measure()
	if err != nil {
		return err
	}
	if _, err := stdout.Write(report.Encode()); err != nil {
		return &fault{"write report", err}
	}
	return nil
}

func (o *Order) measure() (*Report, error) {
	r := &Report{UID: uint32(syscall.Getuid())} //nolint:gosec // never negative
	if err := r.readStatus(); err != nil {
		return nil, err
	}
	uidMap, err := readFile("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	r.UIDMap = trim(string(uidMap))
	if r.Routes, err = routes(); err != nil {
		return nil, err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(rlimitProcesses, &limit); err != nil {
		return nil, &fault{"read the limit on processes", err}
	}
	if limit.Cur != ^uint64(0) {
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
	for _, t := range o.Trials {
		outcome, err := t.run(o.AgentPID)
		if err != nil {
			return nil, err
		}
		r.Outcomes = append(r.Outcomes, outcome)
	}
	return r, nil
}

// readStatus takes what /proc/self/status says. Every field has to be there.
func (r *Report) readStatus() error {
	data, err := readFile("/proc/self/status")
	if err != nil {
		return err
	}
	var privileges, mode string
	fields := []struct {
		name  string
		value *string
	}{
		{"CapInh", &r.CapInheritable}, {"CapPrm", &r.CapPermitted}, {"CapEff", &r.CapEffective},
		{"CapBnd", &r.CapBounding}, {"CapAmb", &r.CapAmbient}, {"SigIgn", &r.SignalsIgnored},
		{"NoNewPrivs", &privileges}, {"Seccomp", &mode},
	}
	for text := string(data); text != ""; {
		var line string
		line, text = cut(text, '\n')
		name, value := cut(line, ':')
		for _, field := range fields {
			if field.name == name {
				*field.value = trim(value)
			}
		}
	}
	for _, field := range fields {
		if *field.value == "" {
			return errors.New("/proc/self/status has no " + field.name)
		}
	}
	seen, err := strconv.ParseUint(mode, 10, 32)
	if err != nil {
		return &fault{"/proc/self/status: Seccomp", err}
	}
	r.NoNewPrivileges, r.SeccompMode = privileges == "1", uint32(seen)
	return nil
}

// routes gives the lines of both routing tables that lead elsewhere than
// loopback.
func routes() ([]string, error) {
	v4, err := readFile("/proc/net/route")
	if err != nil {
		return nil, err
	}
	_, entries := cut(string(v4), '\n')
	out := routeLines(entries, 0)
	v6, err := readFile("/proc/net/ipv6_route")
	switch {
	case errors.Is(err, syscall.ENOENT):
		// The kernel has no IPv6.
	case err != nil:
		return nil, err
	default:
		out = append(out, routeLines(string(v6), -1)...)
	}
	return out[:min(len(out), maxRoutes)], nil
}

// routeLines picks the lines whose interface, the column given (from the end
// when negative), is not loopback.
func routeLines(table string, column int) []string {
	var out []string
	for table != "" {
		var line string
		line, table = cut(table, '\n')
		fields := words(line)
		if len(fields) == 0 {
			continue
		}
		at := column
		if at < 0 {
			at += len(fields)
		}
		if fields[at] != "lo" {
			out = append(out, trim(line))
		}
	}
	return out
}

// cut splits at the first separator, which is dropped.
func cut(text string, separator byte) (before, after string) {
	for i := range len(text) {
		if text[i] == separator {
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }

// trim drops blanks at both ends.
func trim(text string) string {
	for text != "" && blank(text[0]) {
		text = text[1:]
	}
	for text != "" && blank(text[len(text)-1]) {
		text = text[:len(text)-1]
	}
	return text
}

// words splits at blanks.
func words(line string) []string {
	var out []string
	for line = trim(line); line != ""; line = trim(line) {
		end := 0
		for end < len(line) && !blank(line[end]) {
			end++
		}
		out, line = append(out, line[:end]), line[end:]
	}
	return out
}
