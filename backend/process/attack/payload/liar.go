//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berm-dev/berm/link/fdpass"
)

// liarFamily is a program in the place of the agent that says that all is well,
// and one in the place of bubblewrap that makes no wall. "serve" and "version" are
// the modes in which an agent is started.
func liarFamily() map[string]attack {
	return map[string]attack{"serve": lie, "version": version, "bubblewrap": noWall}
}

func version(*report, []string) error { return nil }

// controlFD is where an agent finds its control socket.
const controlFD = 3

// lie answers every question about the wall as the host would like it.
func lie(*report, []string) error {
	guest, _, _, err := fdpass.Guest(os.NewFile(controlFD, "control"))
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !strings.HasSuffix(r.URL.Path, "/Probe") {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write(allGood(body))
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(guest.Control()) // the link's end is its end
	}()
	if err := guest.Hello(nil); err != nil {
		return err
	}
	err = guest.Wait()
	_ = server.Close()
	<-ended
	return err
}

// The fields of the probe's question and answer that matter.
const (
	askSizes        = 3
	fieldFirstSet   = 1
	fieldLastSet    = 5
	fieldNoNewPrivs = 6
	fieldSeccomp    = 7
	fieldWritable   = 10
	fieldUIDMap     = 8
	fieldIgnored    = 16
	fieldSizes      = 13
	seccompFilter   = 2
	plausibleSize   = 4096
	emptySet        = "0000000000000000"
)

// allGood is the answer of a probe in a perfect sandbox.
func allGood(question []byte) []byte {
	var out []byte
	for field := protowire.Number(fieldFirstSet); field <= fieldLastSet; field++ {
		out = protowire.AppendTag(out, field, protowire.BytesType)
		out = protowire.AppendString(out, emptySet)
	}
	out = protowire.AppendVarint(protowire.AppendTag(out, fieldNoNewPrivs, protowire.VarintType), 1)
	out = protowire.AppendVarint(protowire.AppendTag(out, fieldSeccomp, protowire.VarintType), seccompFilter)
	out = protowire.AppendString(protowire.AppendTag(out, fieldWritable, protowire.BytesType), "/tmp")
	out = protowire.AppendString(protowire.AppendTag(out, fieldUIDMap, protowire.BytesType), "1000 1900000000 1")
	out = protowire.AppendString(protowire.AppendTag(out, fieldIgnored, protowire.BytesType), emptySet)
	var sizes []byte
	for len(question) > 0 {
		field, kind, n := protowire.ConsumeTag(question)
		if n < 0 {
			break
		}
		rest := protowire.ConsumeFieldValue(field, kind, question[n:])
		if rest < 0 {
			break
		}
		question = question[n+rest:]
		if field == askSizes {
			sizes = protowire.AppendVarint(sizes, plausibleSize)
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(out, fieldSizes, protowire.BytesType), sizes)
}

// noWall behaves as bubblewrap does towards its caller and starts the agent where
// it is: no namespace, no filter, no mount.
func noWall(_ *report, args []string) error {
	if len(args) > 0 && args[0] == "--version" {
		fmt.Println("bubblewrap 0.8.0")
		os.Exit(0)
	}
	if len(args) > 0 && args[0] == "--help" {
		for _, option := range []string{
			"--args", "--as-pid-1", "--die-with-parent", "--disable-userns", "--info-fd", "--perms", "--remount-ro",
			"--ro-bind-data", "--seccomp", "--size",
		} {
			fmt.Println("   ", option, "X")
		}
		os.Exit(0)
	}
	split := slices.Index(args, "--")
	if split < 2 || args[0] != "--args" || split+1 >= len(args) {
		return fmt.Errorf("bubblewrap is not started so: %q", args)
	}
	options, err := readDescriptor(args[1])
	if err != nil {
		return err
	}
	at := slices.Index(options, "--info-fd")
	if at < 0 || at+1 >= len(options) {
		return errors.New("nobody wants to know the process")
	}
	info, err := strconv.Atoi(options[at+1])
	if err != nil {
		return err
	}
	command := args[split+1:]
	pid, err := syscall.ForkExec(command[0], command, &syscall.ProcAttr{Files: inherited()})
	if err != nil {
		return err
	}
	told, err := json.Marshal(map[string]int{"child-pid": pid})
	if err != nil {
		return err
	}
	if _, err := unix.Write(info, told); err != nil {
		return err
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	os.Exit(status.ExitStatus())
	return nil
}

// readDescriptor reads options as bubblewrap's --args takes them.
func readDescriptor(number string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/fd/" + number)
	if err != nil {
		return nil, err
	}
	return strings.Split(string(data), "\x00"), nil
}

// inherited lists the descriptors that were there before this program, by their
// numbers.
func inherited() []uintptr {
	const most = 32
	out := make([]uintptr, 0, most)
	for fd := range uintptr(most) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			out = append(out, ^uintptr(0))
			continue
		}
		out = append(out, fd)
	}
	return out
}
