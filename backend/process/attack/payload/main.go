//go:build linux

// Command payload makes the attempts of the attack corpus, inside a sandbox. Its
// first argument names an attack; its output is one line of JSON: what became of
// each attempt. It is static, so that it runs in any image.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt is what became of one thing that was tried.
type attempt struct {
	Name string `json:"name"`
	// Errno is the error number's name, or another word for a failure; empty when
	// the attempt succeeded.
	Errno  string `json:"errno,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// report collects one attack's attempts. It is for one goroutine.
type report struct {
	attempts []attempt
	kept     [][]byte // what addresses were given of
}

// attack makes attempts; args are those after its name. An error says that it
// could not be made at all.
type attack func(r *report, args []string) error

// families are all attacks by name: one function of each file.
func families() []map[string]attack {
	return append(tierFamilies(), namespaceFamily(), socketFamily(), kernelFamily(), agentFamily(), signalFamily(), ipcFamily(),
		rightsFamily(), terminalFamily(), procFamily(), walkFamily())
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "payload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	all := map[string]attack{}
	for _, family := range families() {
		maps.Copy(all, family)
	}
	if len(args) == 0 || all[args[0]] == nil {
		return fmt.Errorf("%q does not begin with the name of an attack: %q", args, slices.Sorted(maps.Keys(all)))
	}
	// What is changed of a thread (limits, signal masks) stays on this one.
	runtime.LockOSThread()
	r := &report{}
	if err := all[args[0]](r, args[1:]); err != nil {
		return err
	}
	err := json.NewEncoder(os.Stdout).Encode(r.attempts)
	runtime.KeepAlive(r)
	return err
}

// add records what an attempt gave: nil is success.
func (r *report) add(name string, err error, detail ...any) {
	a := attempt{Name: name, Detail: fmt.Sprint(detail...)}
	if err != nil {
		a.Errno = errnoName(err)
		if a.Detail == "" && a.Errno == failed {
			a.Detail = err.Error()
		}
	}
	r.attempts = append(r.attempts, a)
}

// failed stands for errors without a number.
const failed = "failed"

func errnoName(err error) string {
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
		return fmt.Sprintf("errno %d", int(errno))
	case errors.Is(err, fs.ErrNotExist):
		return "ENOENT"
	case errors.Is(err, io.EOF):
		return "EOF"
	}
	return failed
}

// call makes a system call by its number and records what it gave. The result is
// zero when it failed.
func (r *report) call(name string, number uintptr, args ...uintptr) uintptr {
	var a [6]uintptr
	copy(a[:], args)
	result, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		r.add(name, errno)
		return 0
	}
	r.add(name, nil, "gave ", int(result))
	return result
}

// text gives the address of a string with a NUL behind it, good for as long as
// the report is.
func (r *report) text(s string) uintptr { return r.memory(append([]byte(s), 0)) }

// memory is text for any bytes.
func (r *report) memory(b []byte) uintptr {
	r.kept = append(r.kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}
