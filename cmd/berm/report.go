package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

// outcome is the object of --json. Its names do not change.
type outcome struct {
	// ExitCode is nil when the program did not exit by itself.
	ExitCode *int        `json:"exitCode"`
	Reason   berm.Reason `json:"reason"`
	// Signal is a name like SIGKILL, nil when no signal ended the program.
	Signal        *string `json:"signal"`
	TimedOut      bool    `json:"timedOut"`
	DurationMs    int64   `json:"durationMs"`
	Stdout        []byte  `json:"stdout"`
	Stderr        []byte  `json:"stderr"`
	StdoutDropped int64   `json:"stdoutDropped"`
	StderrDropped int64   `json:"stderrDropped"`
	// OutputIncomplete: processes that outlived the program held its output open.
	OutputIncomplete bool             `json:"outputIncomplete"`
	Error            *errdefs.Encoded `json:"error,omitempty"`
}

func newOutcome(result *berm.Result, err error) outcome {
	out := outcome{
		ExitCode: result.ExitCode, Reason: result.Reason, TimedOut: result.Reason == berm.TimedOut,
		DurationMs: result.Duration.Milliseconds(),
		// An empty stream is "", not null.
		Stdout: append([]byte{}, result.Stdout...), Stderr: append([]byte{}, result.Stderr...),
		StdoutDropped: result.StdoutDropped, StderrDropped: result.StderrDropped,
		OutputIncomplete: result.OutputIncomplete,
	}
	if result.Signal != 0 {
		name := unix.SignalName(result.Signal)
		if name == "" {
			name = fmt.Sprintf("SIG%d", int(result.Signal))
		}
		out.Signal = &name
	}
	if err != nil {
		encoded := errdefs.Encode(err)
		out.Error = &encoded
	}
	return out
}

// report tells how the command ended, where its exit status does not say it. It
// reports whether the object of --json, where one was asked for, was written.
func (s *session) report(ctx context.Context, result *berm.Result, err error) bool {
	written := !s.plan.json || s.app.printJSON(newOutcome(result, err)) == nil
	switch {
	case errors.Is(context.Cause(ctx), errReaderGone):
		// The reader left by its own will, which is no fault.
	case err != nil && !s.plan.json:
		s.app.reportFailure(err, false)
	case result.Reason == berm.TimedOut:
		s.app.say("the command was ended by its timeout of %v", s.plan.config.Timeout)
	case result.Reason == berm.OutOfMemory:
		s.app.say("out of memory: the limit of %d bytes was reached", s.memoryLimit())
	case result.Reason == berm.ProcessLimit:
		s.app.say("the limit on processes was reached")
	case result.Reason == berm.DiskLimit:
		s.app.say("the limit on temporary storage was reached")
	}
	if result.OutputIncomplete && err == nil {
		s.app.say("the output is not whole: processes that the command left behind still held it open, and were ended")
	}
	return written
}

func (s *session) memoryLimit() int64 {
	if limit := s.plan.config.Limits.MemoryBytes; limit != 0 {
		return limit
	}
	return berm.DefaultMemoryBytes
}

// writePosture writes the record to a file that appears whole or not at all, to
// the standard error for "-", and nowhere for "". What is there and is no regular
// file, such as a device, a pipe or a link to one, is written to and stays.
func (a *app) writePosture(path string, record posture.Record) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	text = append(text, '\n')
	if path == "-" {
		_, err = a.stderr.Write(text)
		return err
	}
	if special(path) {
		return writeInto(path, text)
	}
	return replaceFile(path, text)
}

// special reports whether what is at path is written to and stays: no regular
// file, nor a link that leads to one or nowhere. Such a link may have been left by
// an earlier payload to have another file overwritten, and is replaced itself;
// only those of the system, such as /dev/stdout, are followed.
func special(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().IsRegular() {
		return false
	}
	if info.Mode()&fs.ModeSymlink == 0 || strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/") {
		return true
	}
	target, err := os.Stat(path)
	return err == nil && !target.Mode().IsRegular()
}

// writeInto writes to what is there. A pipe that nobody reads is an error, not a
// reason to wait.
func writeInto(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Close())
}

// replaceFile writes a new file and gives it the name.
func replaceFile(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("make the file: %w", err)
	}
	_, writeErr := file.Write(text)
	err = errors.Join(writeErr, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
