package agentclient_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

func watchMessage(m *agentv1.WatchDirResponse) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		return nil
	}
	return envelope(0, data)
}

func watchStart() []byte {
	return watchMessage(&agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Start{Start: &agentv1.WatchDirResponse_StartEvent{}}})
}

func watchAlive() []byte {
	return watchMessage(&agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Keepalive{Keepalive: &agentv1.WatchDirResponse_KeepAlive{}}})
}

func watchEvent(name string, kind agentv1.EventType, entry *agentv1.EntryInfo) []byte {
	return watchMessage(&agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Filesystem{
		Filesystem: &agentv1.FilesystemEvent{Name: name, Type: kind, Entry: entry},
	}})
}

func TestWatchARealAgent(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := os.Mkdir(filepath.Join(home, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, home, true, true)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, "d", "f"), "abc")
	for {
		e, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == "d/f" && e.Op == agentclient.WatchWrite {
			if e.Entry == nil || e.Entry.Size != 3 || e.Entry.Path != filepath.Join(home, "d/f") {
				t.Errorf("entry %+v", e.Entry)
			}
			break
		}
	}
	_ = w.Close()
	if _, err := w.Recv(); err == nil {
		t.Error("an event after Close")
	}
	_, err = c.Watch(t.Context(), filepath.Join(home, "d/f"), false, false)
	wantKind(t, err, errdefs.Invalid)
	_, err = c.Watch(t.Context(), filepath.Join(home, "none"), false, false)
	wantKind(t, err, errdefs.NotFound)
}

func TestBrokenWatches(t *testing.T) {
	t.Parallel()
	const create = agentv1.EventType_EVENT_TYPE_CREATE
	good := &agentv1.Lstat{Mode: 0o100644}
	info := func(p string, lstat *agentv1.Lstat) *agentv1.EntryInfo {
		return &agentv1.EntryInfo{Path: p, Lstat: lstat}
	}
	bye := envelope(2, []byte("{}"))
	for name, test := range map[string]struct {
		parts [][]byte
		kind  errdefs.Kind
	}{
		"nothing":         {nil, errdefs.TransportLost},
		"no start":        {[][]byte{watchEvent("a", create, nil)}, errdefs.Protocol},
		"alive first":     {[][]byte{watchAlive(), watchStart()}, errdefs.Protocol},
		"two starts":      {[][]byte{watchStart(), watchStart()}, errdefs.Protocol},
		"no event":        {[][]byte{watchStart(), envelope(0, nil)}, errdefs.Protocol},
		"no end":          {[][]byte{watchStart(), bye}, errdefs.Protocol},
		"cut":             {[][]byte{watchStart(), watchEvent("a", create, nil)}, errdefs.TransportLost},
		"garbage":         {[][]byte{watchStart(), envelope(0, []byte("\xff\xff"))}, errdefs.Protocol},
		"too large":       {[][]byte{watchStart(), envelope(0, make([]byte, 100<<10))}, errdefs.Protocol},
		"unknown type":    {[][]byte{watchStart(), watchEvent("a", 6, nil)}, errdefs.Protocol},
		"no type":         {[][]byte{watchStart(), watchEvent("a", 0, nil)}, errdefs.Protocol},
		"entry elsewhere": {[][]byte{watchStart(), watchEvent("a", create, info("/etc/a", good))}, errdefs.Protocol},
		"entry's mode":    {[][]byte{watchStart(), watchEvent("a", create, info("/d/a", &agentv1.Lstat{Mode: 0o644}))}, errdefs.Protocol},
		"signs of life":   {append([][]byte{watchStart()}, repeated(watchAlive(), 5000)...), errdefs.Protocol},
		"events lost":     {[][]byte{watchStart(), envelope(2, []byte(`{"error":{"code":"resource_exhausted","message":"lost \u001b[31m"}}`))}, errdefs.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := hostile(t, streaming(test.parts...)).Watch(t.Context(), "/d", true, true)
			for err == nil {
				_, err = w.Recv()
			}
			wantKind(t, err, test.kind)
			if w != nil {
				if _, again := w.Recv(); !errors.Is(again, err) {
					t.Errorf("a second error: %v", again)
				}
				_ = w.Close()
			}
		})
	}
	for _, name := range []string{"", "..", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/.", "a\x00", strings.Repeat("n", 1000), strings.Repeat("a/", 7000) + "a", "sub/a"} {
		t.Run("name "+name[:min(len(name), 10)], func(t *testing.T) {
			t.Parallel()
			w, err := hostile(t, streaming(watchStart(), watchEvent(name, create, nil))).Watch(t.Context(), "/d", name != "sub/a", false)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }()
			_, err = w.Recv()
			wantKind(t, err, errdefs.Protocol)
		})
	}
}

func repeated(part []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = part
	}
	return out
}

// TestWatchOfASilentAgent: the start has a bound of its own; what comes later is
// waited for.
func TestWatchOfASilentAgent(t *testing.T) {
	t.Parallel()
	c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/connect+proto")
		_, _ = w.Write(watchStart())
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	w, err := c.Watch(t.Context(), "/d", false, false)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		_, err := w.Recv()
		over <- err
	}()
	select {
	case err := <-over:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	_ = w.Close()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("Close does not end Recv")
	}
}
