package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/internal/defence"
)

// Limits of one sandbox's payloads. A zero is no limit.
type Limits struct {
	// MemoryBytes bounds memory with swap.
	MemoryBytes int64
	// Processes bounds processes and threads.
	Processes int
	// CPUs bounds processor time, in whole or part processors.
	CPUs float64
}

// period is the scheduler's accounting period, in microseconds.
const period = 100_000

// agentThreads is how many threads of the agent's own count against a version 1
// process limit: the one that starts commands.
const agentThreads = 1

// quota turns processors into microseconds per period. The kernel takes nothing
// below 1000.
func quota(cpus float64) int64 {
	return max(1000, int64(cpus*period+0.5))
}

// limitLegacy writes one controller's limit in a version 1 cgroup.
func limitLegacy(dir, controller string, l Limits) error {
	switch {
	case off(controller):
	case controller == "memory" && l.MemoryBytes > 0:
		value := strconv.FormatInt(l.MemoryBytes, 10)
		if err := write(dir, "memory.limit_in_bytes", value); err != nil {
			return err
		}
		// What waits in TCP and UDP sockets is an account of its own in version 1, and
		// without a limit: loopback alone could take gigabytes of the host.
		var sockets error
		if !defence.CgroupSockets.Off() {
			sockets = optional(write(dir, "memory.kmem.tcp.limit_in_bytes", value))
		}
		return errors.Join(sockets, optional(write(dir, "memory.memsw.limit_in_bytes", value)))
	case controller == "pids" && l.Processes > 0:
		return write(dir, "pids.max", strconv.Itoa(l.Processes+agentThreads))
	case controller == "cpu" && l.CPUs > 0:
		if err := write(dir, "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
			return err
		}
		return write(dir, "cpu.cfs_quota_us", strconv.FormatInt(quota(l.CPUs), 10))
	}
	return nil
}

// limitUnified writes one controller's limit in a version 2 cgroup.
func limitUnified(dir, controller string, l Limits) error {
	switch {
	case off(controller):
	case controller == "memory" && l.MemoryBytes > 0:
		if err := write(dir, "memory.max", strconv.FormatInt(l.MemoryBytes, 10)); err != nil {
			return err
		}
		return optional(write(dir, "memory.swap.max", "0"))
	case controller == "pids" && l.Processes > 0:
		return write(dir, "pids.max", strconv.Itoa(l.Processes))
	case controller == "cpu" && l.CPUs > 0:
		return write(dir, "cpu.max", fmt.Sprintf("%d %d", quota(l.CPUs), period))
	}
	return nil
}

// off reports whether a controller's limit was left out of this build.
func off(controller string) bool {
	return controller == "memory" && defence.CgroupMemory.Off() ||
		controller == "pids" && defence.CgroupProcesses.Off() || controller == "cpu" && defence.CgroupCPU.Off()
}

// optional forgives a file that this kernel does not have.
func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write sets one file of a cgroup. It never makes a file.
func write(dir, name, value string) error {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// number reads one number, -1 for "max".
func number(dir, name string) (int64, error) {
	text, err := readTrimmed(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	if text == "max" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// counter finds "name N" in the lines of an events file.
func counter(text, name string) (uint64, bool) {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && key == name {
			n, err := strconv.ParseUint(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
