package agent

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
)

// maxKernelFile bounds what is read of one file of /proc or of a cgroup.
const maxKernelFile = 1 << 20

// listProcesses gives the pids in /proc.
func listProcesses() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// readMark gives the hard limit that serves as mark; ok is false for processes
// without one.
func readMark(pid int) (mark uint64, ok bool) {
	data, err := readProc(pid, "limits")
	if err != nil {
		return 0, false
	}
	return parseMark(data)
}

// parseMark reads the "Max file locks" line of a limits file.
func parseMark(data []byte) (mark uint64, ok bool) {
	for line := range bytes.Lines(data) {
		rest, found := bytes.CutPrefix(line, []byte("Max file locks"))
		if !found {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) < 2 {
			return 0, false
		}
		mark, err := strconv.ParseUint(string(fields[1]), 10, 64)
		return mark, err == nil
	}
	return 0, false
}

func readProc(pid int, name string) ([]byte, error) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/" + name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file, maxKernelFile)
}

// readAll reads to the end, at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit))
	if err != nil {
		return nil, fmt.Errorf("read a kernel file: %w", err)
	}
	return data, nil
}
