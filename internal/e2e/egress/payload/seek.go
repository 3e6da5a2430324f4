//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mask keeps what is searched for out of this program's own memory and input.
const mask = 0x5a

// seek looks for byte strings everywhere that a payload can read: files, and the
// environment, command line and memory of every process. The
// system is left out: it is read-only, and older than any secret. What to look for
// comes on standard input, masked and in hexadecimal, one a line. It writes the
// places, then what it has looked at.
func seek([]string) error {
	s := &search{}
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		masked, err := hex.DecodeString(scanner.Text())
		if err != nil {
			return err
		}
		s.masked = append(s.masked, masked)
		s.longest = max(s.longest, len(masked))
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	s.files()
	s.processes()
	fmt.Printf("looked at %d files, %d processes, %d memories\n", s.nFiles, s.nProcesses, s.nMemories)
	return nil
}

type search struct {
	masked                        [][]byte
	longest                       int
	nFiles, nProcesses, nMemories int
}

func (s *search) files() {
	skip := []string{"/proc", "/sys", "/dev/pts", "/usr"}
	_ = filepath.WalkDir("/", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read is not searched
		case entry.IsDir() && slices.Contains(skip, name):
			return filepath.SkipDir
		case entry.Type().IsRegular():
			s.file(name)
		}
		return nil
	})
}

func (s *search) file(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	// A device that is mounted on a file looks like one in its directory.
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	s.nFiles++
	s.stream(name, f)
	return true
}

// stream searches what a reader gives. Each piece is masked, so that no copy of
// what is found is left in this program.
func (s *search) stream(name string, r io.Reader) {
	buffer := make([]byte, 1<<16)
	kept := 0
	for {
		n, err := r.Read(buffer[kept:])
		for i := kept; i < kept+n; i++ {
			buffer[i] ^= mask
		}
		have := buffer[:kept+n]
		for _, want := range s.masked {
			if bytes.Contains(have, want) {
				fmt.Println("found in", name)
				return
			}
		}
		if err != nil || n == 0 {
			return
		}
		kept = copy(buffer, have[max(0, len(have)-s.longest):])
	}
}

func (s *search) processes() {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		s.nProcesses++
		for _, name := range []string{"environ", "cmdline", "comm", "stat", "mounts", "auxv"} {
			s.file(filepath.Join("/proc", entry.Name(), name))
		}
		if pid != os.Getpid() {
			s.memory(entry.Name())
		}
	}
}

// memory searches what can be read of a process's.
func (s *search) memory(pid string) {
	maps, err := os.ReadFile(filepath.Join("/proc", pid, "maps"))
	if err != nil {
		return
	}
	mem, err := os.Open(filepath.Join("/proc", pid, "mem"))
	if err != nil {
		return
	}
	defer func() { _ = mem.Close() }()
	s.nMemories++
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n != 2 || !strings.Contains(line, " r") {
			continue
		}
		s.stream("the memory of "+pid, io.NewSectionReader(mem, from, to-from))
	}
}
