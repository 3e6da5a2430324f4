package errdefs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/berm-dev/berm/errdefs"
)

func TestKindsMatchTheStandardLibrary(t *testing.T) {
	t.Parallel()
	for kind, sentinels := range map[errdefs.Kind][]error{
		errdefs.Unsupported: {errors.ErrUnsupported},
		errdefs.NotFound:    {fs.ErrNotExist, os.ErrNotExist},
		errdefs.Exists:      {fs.ErrExist},
		errdefs.Denied:      {fs.ErrPermission},
		errdefs.Cancelled:   {context.Canceled},
		errdefs.Timeout:     {context.DeadlineExceeded, os.ErrDeadlineExceeded},
		errdefs.Closed:      {fs.ErrClosed, net.ErrClosed},
	} {
		err := fmt.Errorf("outer: %w", errdefs.New(kind, "op", "because"))
		if !errors.Is(err, kind) {
			t.Errorf("%v does not match its own kind", err)
		}
		for _, sentinel := range sentinels {
			if !errors.Is(err, sentinel) {
				t.Errorf("%v does not match %v", err, sentinel)
			}
		}
		if errors.Is(err, errdefs.Internal) || errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%v matches what it is not", err)
		}
		if got := errdefs.KindOf(err); got != kind {
			t.Errorf("KindOf(%v) = %v, want %v", err, got, kind)
		}
		if got := errdefs.KindOf(sentinels[0]); got != kind {
			t.Errorf("KindOf(%v) = %v, want %v", sentinels[0], got, kind)
		}
	}
	if errdefs.KindOf(nil) != "" || errdefs.KindOf(errors.New("x")) != errdefs.Internal {
		t.Error("KindOf of nil or of a stranger is wrong")
	}
	if got := errdefs.KindOf(&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}); got != errdefs.Exhausted {
		t.Errorf("a full disk is %v", got)
	}
}

func TestWrapOnce(t *testing.T) {
	t.Parallel()
	if errdefs.Wrap(errdefs.Internal, "op", nil) != nil {
		t.Error("a nil error was wrapped")
	}
	inner := errdefs.New(errdefs.Denied, "", "no")
	outer := errdefs.Wrap(errdefs.Internal, "read", inner)
	if !errors.Is(outer, errdefs.Denied) || outer.Error() != "read: no" {
		t.Errorf("got %q", outer)
	}
	if inner.Op != "" {
		t.Error("Wrap changed the error that it was given")
	}
	if again := errdefs.Wrap(errdefs.Internal, "other", outer); again != outer { //nolint:errorlint // identity is the point
		t.Errorf("wrapped twice: %v", again)
	}
	cause := errors.New("disk on fire")
	if err := errdefs.Wrap(errdefs.Exhausted, "write", cause); !errors.Is(err, cause) || !errors.Is(err, errdefs.Exhausted) {
		t.Errorf("cause or kind is lost in %v", err)
	}
}

func TestMessageAndEncoding(t *testing.T) {
	t.Parallel()
	err := &errdefs.Error{Kind: errdefs.Unsupported, Op: "create", Backend: "process", Reasons: []string{"no cgroup", "no bwrap"}, Err: errors.New("cause")}
	const want = "create (process): no cgroup; no bwrap: cause"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err.Error(), want)
	}
	got, jsonErr := json.Marshal(errdefs.Encode(fmt.Errorf("x: %w", err)))
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	const wantJSON = `{"name":"unsupported","message":"x: create (process): no cgroup; no bwrap: cause","reasons":["no cgroup","no bwrap"],"cause":"cause"}`
	if string(got) != wantJSON {
		t.Errorf("got %s, want %s", got, wantJSON)
	}
	if errdefs.Encode(nil).Name != "" || errdefs.New(errdefs.Closed, "").Error() != "closed" {
		t.Error("the empty forms are wrong")
	}
}
