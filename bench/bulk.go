package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"golang.org/x/sys/unix"
)

// Targets of bytes in bulk.
const (
	targetBulk   = 0.7
	targetUpload = 0.4
	// targetFlat is how much larger than before the host's or the agent's memory
	// may be at any time while bulkBytes go by, again and again, in MiB.
	targetFlat = 16.0
)

const (
	// bulkBytes are moved by each run.
	bulkBytes = 256 << 20
	// blockBytes is the size of the reads and writes of all sides.
	blockBytes = 256 << 10
)

// bulkRuns is how many of the long runs there are.
func (b *bench) bulkRuns() int { return max(3, b.runs/4) }

// dd is the program that gives bytes, on both sides of a comparison.
func dd(from string) []string {
	return []string{"dd", "if=" + from, "bs=" + strconv.Itoa(blockBytes), "count=" + strconv.Itoa(bulkBytes/blockBytes), "status=none"}
}

// stdoutRow is a command's output against the same command's with its output on
// a raw unix socket.
func stdoutRow(ctx context.Context, b *bench) ([]verdict, error) {
	args := dd("/dev/zero")
	raw := &sample{name: "dd | raw unix socket", once: func(ctx context.Context) (time.Duration, error) { return rawSocket(ctx, args) }}
	return b.bulk(ctx, "stdout against a raw unix socket", targetBulk, raw, berm.CreateOptions{}, func(sandbox *berm.Sandbox) *sample {
		return &sample{name: "dd in the sandbox | stdout", once: func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				var got counter
				cmd := sandbox.CommandContext(ctx, args[0], args[1:]...)
				cmd.Stdout = &got
				return errors.Join(cmd.Run(), got.check())
			})
		}}
	})
}

// downloadRow is a file out of the sandbox against the same bytes, from a file
// too, through a raw unix socket.
func downloadRow(ctx context.Context, b *bench) ([]verdict, error) {
	source, err := b.sourceFile()
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(source) }()
	raw := &sample{name: "dd of a file | raw unix socket", once: func(ctx context.Context) (time.Duration, error) { return rawSocket(ctx, dd(source)) }}
	shared, err := os.MkdirTemp(b.dir, "download-")
	if err != nil {
		return nil, err
	}
	if err := os.Link(source, filepath.Join(shared, "file")); err != nil {
		return nil, err
	}
	options := berm.CreateOptions{Layout: &driver.Layout{Workdir: shared}}
	return b.bulk(ctx, "download against a raw unix socket", targetBulk, raw, options, func(sandbox *berm.Sandbox) *sample {
		return &sample{name: "download", once: func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				body, err := sandbox.Files().Open(ctx, "file")
				if err != nil {
					return err
				}
				var got counter
				_, err = io.CopyBuffer(&got, struct{ io.Reader }{body}, make([]byte, blockBytes))
				return errors.Join(err, body.Close(), got.check())
			})
		}}
	})
}

// uploadRow is a file into a mounted directory against cp to the same one.
func uploadRow(ctx context.Context, b *bench) ([]verdict, error) {
	source, err := b.sourceFile()
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(source) }()
	shared, err := os.MkdirTemp(b.dir, "upload-")
	if err != nil {
		return nil, err
	}
	copied, uploaded := filepath.Join(shared, "copied"), filepath.Join(shared, "uploaded")
	cp := &sample{name: "cp", once: func(ctx context.Context) (time.Duration, error) {
		took, err := timed(exec.CommandContext(ctx, "cp", source, copied).Run)
		return took, errors.Join(err, removeWhole(copied))
	}}
	options := berm.CreateOptions{Layout: &driver.Layout{Workdir: shared}}
	return b.bulk(ctx, "upload against cp to the same file system", targetUpload, cp, options, func(sandbox *berm.Sandbox) *sample {
		return &sample{name: "upload", once: func(ctx context.Context) (time.Duration, error) {
			took, err := timed(func() error {
				file, err := os.Open(source)
				if err != nil {
					return err
				}
				return errors.Join(sandbox.Files().Create(ctx, "uploaded", 0o644, file), file.Close())
			})
			return took, errors.Join(err, removeWhole(uploaded))
		}}
	})
}

// removeWhole removes a copy and complains about one that is not whole.
func removeWhole(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Size() != bulkBytes {
		err = fmt.Errorf("%s has %d bytes, not %d", path, info.Size(), bulkBytes)
	}
	return errors.Join(err, os.Remove(path))
}

// bulk compares throughputs, and watches how the memory of both ends grows.
func (b *bench) bulk(ctx context.Context, name string, target float64, base *sample, options berm.CreateOptions,
	in func(*berm.Sandbox) *sample) (out []verdict, err error) {
	sandbox, err := b.provider.Create(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sandbox.Close()) }()
	ours := in(sandbox)
	watch, err := watchGrowth()
	if err != nil {
		return nil, err
	}
	err = interleave(ctx, b.bulkRuns(), base, ours)
	host, inside := watch.stop()
	if err != nil {
		return nil, err
	}
	ratio := float64(base.median()) / float64(ours.median())
	return []verdict{
		atLeast(name, ratio, target, "x", base.rate(bulkBytes), ours.rate(bulkBytes)),
		atMost("most that memory grew meanwhile", max(host, inside), targetFlat, "MiB",
			figure{Name: "host", Value: host, Unit: "MiB"}, figure{Name: "agent and bwrap", Value: inside, Unit: "MiB"}),
	}, nil
}

// sourceFile makes a file of bulkBytes that no copy can find holes in.
func (b *bench) sourceFile() (string, error) {
	file, err := os.CreateTemp(b.dir, "source-")
	if err != nil {
		return "", err
	}
	// A root caller's sandbox reads it under another uid.
	err = file.Chmod(0o644)
	block := make([]byte, blockBytes)
	if err == nil {
		_, err = rand.Read(block)
	}
	for range bulkBytes / blockBytes {
		if err == nil {
			_, err = file.Write(block)
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// counter counts what is written to it.
type counter struct{ n int64 }

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func (c *counter) check() error {
	if c.n != bulkBytes {
		return fmt.Errorf("%d bytes came, not %d", c.n, bulkBytes)
	}
	return nil
}

// rawSocket reads what a program writes to a unix socket as its standard output.
func rawSocket(ctx context.Context, args []string) (time.Duration, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer func() { _ = ours.Close() }()
	return timed(func() error {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout = theirs
		if err := errors.Join(cmd.Start(), theirs.Close()); err != nil {
			return err
		}
		var got counter
		_, err := io.CopyBuffer(&got, struct{ io.Reader }{ours}, make([]byte, blockBytes))
		return errors.Join(err, cmd.Wait(), got.check())
	})
}
