package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
	"github.com/berm-dev/berm/errdefs"
)

func open(t *testing.T, path string) *audit.File {
	t.Helper()
	file, err := audit.OpenFile(path, audit.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// flows reads the flow numbers of a file's lines.
func flows(t *testing.T, path string) []uint64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for line := range bytes.Lines(data) {
		var r egress.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, r.Flow)
	}
	return out
}

func write(t *testing.T, sink egress.Sink, flow uint64) {
	t.Helper()
	if err := sink.Write(t.Context(), &egress.Record{Flow: flow}); err != nil {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	file := open(t, path)
	write(t, file, 1)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	synced, err := audit.OpenFile(path, audit.FileOptions{Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	write(t, synced, 2)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for range 2 {
		if err := synced.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := synced.Write(t.Context(), full()); !errors.Is(err, errdefs.Closed) {
		t.Errorf("Y05: after Close: %v", err)
	}
	if err := synced.Reopen(t.Context()); !errors.Is(err, errdefs.Closed) {
		t.Errorf("Reopen after Close: %v", err)
	}
	if got := fmt.Sprint(flows(t, path)); got != "[1 2]" {
		t.Errorf("flows %s", got)
	}
}

// TestFileRefusals: a name in a folder that others write to is no way to other
// files.
func TestFileRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	for _, name := range []string{"target", "wide", "twice"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("kept\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	if err := errors.Join(
		os.Symlink(target, filepath.Join(dir, "link")), os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")),
		os.Chmod(filepath.Join(dir, "wide"), 0o666), os.Link(filepath.Join(dir, "twice"), filepath.Join(dir, "twice-b")), syscall.Mkfifo(fifo, 0o600), os.Mkdir(filepath.Join(dir, "folder"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "dangling", "wide", "twice", "fifo", "folder", "no/such/folder"} {
		file, err := audit.OpenFile(filepath.Join(dir, name), audit.FileOptions{})
		if !errors.Is(err, errdefs.Invalid) || file != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dangling link was followed: %v", err)
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "kept\n" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestFileTogether: many writers, here and elsewhere, get whole lines.
func TestFileTogether(t *testing.T) {
	t.Parallel()
	const writers, records = 8, 50
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	files := []*audit.File{open(t, path), open(t, path)}
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			for i := range records {
				r := full()
				r.Flow = uint64(w*records + i)
				if err := files[w%2].Write(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	seen := map[uint64]bool{}
	for _, flow := range flows(t, path) {
		seen[flow] = true
	}
	if len(seen) != writers*records {
		t.Errorf("%d records of %d", len(seen), writers*records)
	}
}

// TestFileRotation: what is renamed keeps its lines, and what comes after Reopen
// goes to the new file.
func TestFileRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	file := open(t, path)
	write(t, file, 1)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, file, 2)
	if err := os.Symlink(path+".1", path); err != nil {
		t.Fatal(err)
	}
	if err := file.Reopen(t.Context()); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("Reopen followed a link: %v", err)
	}
	write(t, file, 3)
	if err := errors.Join(os.Remove(path), file.Reopen(t.Context())); err != nil {
		t.Fatal(err)
	}
	write(t, file, 4)
	if a, b := fmt.Sprint(flows(t, path+".1")), fmt.Sprint(flows(t, path)); a != "[1 2 3]" || b != "[4]" {
		t.Errorf("%s, %s", a, b)
	}
}

// TestFileTornLine: after a line that was cut off (a full disk, a crash) the next
// one stands on its own.
func TestFileTornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte(`{"flow":1}`+"\n"+`{"flow":`), 0o600); err != nil {
		t.Fatal(err)
	}
	file := open(t, path)
	write(t, file, 2)
	write(t, file, 3)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Split(data, []byte("\n")); len(lines) != 5 || !bytes.HasPrefix(lines[2], []byte(`{"time"`)) || !bytes.HasPrefix(lines[3], []byte(`{"time"`)) {
		t.Errorf("%q", data)
	}
}

// TestY05FullFile: a file that takes no more is an error for each record, and none
// afterwards.
func TestY05FullFile(t *testing.T) {
	t.Parallel()
	const helper = "BERM_TEST_FULL_FILE"
	if os.Getenv(helper) == "" {
		// The limit is one of a whole process: a child's.
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		out, err := child(t, helper, path)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	file := open(t, os.Getenv(helper))
	write(t, file, 1)
	var old unix.Rlimit
	info, err := os.Stat(os.Getenv(helper))
	if err = errors.Join(err, unix.Getrlimit(unix.RLIMIT_FSIZE, &old)); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(info.Size()) + 20, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := file.Write(t.Context(), &egress.Record{Flow: 2}); err == nil {
			t.Error("a full file took a record")
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	write(t, file, 3)
	data, err := os.ReadFile(os.Getenv(helper))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	var last egress.Record
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil || last.Flow != 3 {
		t.Errorf("the record after the full disk: %q, %v", data, err)
	}
}

// TestFileContext: who has no time left is not kept waiting, and writes nothing.
func TestFileContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	file := open(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := file.Write(ctx, full()); !errors.Is(err, errdefs.Cancelled) {
		t.Errorf("%v", err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := file.Write(late, full()); !errors.Is(err, errdefs.Timeout) {
		t.Errorf("%v", err)
	}
	if got := flows(t, path); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
