//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// piece is what hogs take at a time, in bytes.
const piece = 1 << 20

// hog takes memory in one of the ways that there are, until it is refused or has
// so many MiB, says how many it got, and holds them until its input ends.
func hog(r *report, args []string) error {
	if len(args) != 2 {
		return errors.New("hog WAY MIB")
	}
	want, err := number(args, 1)
	if err != nil {
		return err
	}
	take, err := taker(args[0])
	if err != nil {
		return err
	}
	got := 0
	var refusal error
	for got < want && refusal == nil {
		if refusal = take(); refusal == nil {
			got++
		}
	}
	r.add(args[0], refusal, got)
	return r.held()
}

// taker gives a function that takes one piece more.
func taker(way string) (func() error, error) {
	block := make([]byte, piece)
	for i := range block {
		block[i] = 1
	}
	switch way {
	case "malloc":
		return func() error {
			memory, err := unix.Mmap(-1, 0, piece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			copy(memory, block)
			return err
		}, nil
	case "memfd":
		fd, err := unix.MemfdCreate("hog", 0)
		return func() error { return writeAll(fd, block) }, err
	case "tmpfs":
		fd, err := unix.Open("/dev/shm/hog", unix.O_CREAT|unix.O_WRONLY, 0o600)
		return func() error { return writeAll(fd, block) }, err
	case "shm":
		return func() error { return takeSegment(block) }, nil
	case "pipes":
		return takePipes, nil
	case "sockets":
		return func() error { return takeSockets(block) }, nil
	case "tcp":
		listener, err := newListener()
		return func() error { return listener.take(block) }, err
	}
	return nil, fmt.Errorf("unknown way %q", way)
}

func writeAll(fd int, block []byte) error {
	for len(block) > 0 {
		n, err := unix.Write(fd, block)
		if err != nil {
			return err
		}
		block = block[n:]
	}
	return nil
}

// takeSegment fills a System V segment that nobody is attached to afterwards.
func takeSegment(block []byte) error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, piece, unix.IPC_CREAT|0o600)
	if err != nil {
		return err
	}
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return err
	}
	copy(memory, block)
	return unix.SysvShmDetach(memory)
}

// takePipes fills pipes with a MiB, each with as much as the kernel lets it hold.
func takePipes() error {
	raiseFiles()
	for taken := 0; taken < piece; {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_NONBLOCK); err != nil {
			return err
		}
		n, err := unix.Write(ends[1], make([]byte, 64<<10))
		if err != nil {
			return err
		}
		taken += n
	}
	return nil
}

// takeSockets fills socket buffers with a MiB.
func takeSockets(block []byte) error {
	raiseFiles()
	for taken := 0; taken < piece; {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		n, err := unix.Write(ends[0], block)
		if err != nil {
			return err
		}
		taken += n
	}
	return nil
}

// raiseFiles takes all descriptors that there are.
func raiseFiles() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
}

// fill writes into each directory until there is no room, and says how many bytes
// there was room for.
func fill(r *report, dirs []string) error {
	block := make([]byte, piece)
	for _, dir := range dirs {
		f, err := os.OpenFile(filepath.Join(dir, "fill"), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			r.add(dir, err, 0)
			continue
		}
		written := 0
		for err == nil {
			var n int
			n, err = f.Write(block)
			written += n
		}
		_ = f.Close()
		r.add(dir, err, written)
	}
	return nil
}

// inodes makes files without content in a directory until it is refused, at most
// so many, and says how many it made.
func inodes(r *report, args []string) error {
	if len(args) != 2 {
		return errors.New("inodes DIRECTORY COUNT")
	}
	most, err := number(args, 1)
	if err != nil {
		return err
	}
	made := 0
	for ; made < most; made++ {
		fd, err := unix.Open(filepath.Join(args[0], fmt.Sprint("f", made)), unix.O_CREAT|unix.O_WRONLY|unix.O_EXCL, 0o600)
		if err != nil {
			r.add("inodes", err, made)
			return nil
		}
		_ = unix.Close(fd)
	}
	r.add("inodes", nil, made)
	return nil
}

// inFlight sends descriptors to sockets that nobody reads, until the kernel says
// that this user has too many on their way, and keeps them there.
func inFlight(r *report, _ []string) error {
	raiseFiles()
	const atOnce = 253 // SCM_MAX_FD
	rights := unix.UnixRights(make([]int, atOnce)...)
	total := 0
	for {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			r.add("in flight", err, total)
			return r.held()
		}
		for {
			err := unix.Sendmsg(ends[0], []byte{0}, rights, nil, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				r.add("in flight", err, total)
				return r.held()
			}
			total += atOnce
		}
	}
}
