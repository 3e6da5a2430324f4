package drivertest

import (
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func transportGroup() group {
	return group{name: "transport", behaviours: []behaviour{
		{"lost", transportLost},
		{"lost-file", transportLostFile},
		{"same-link", transportSameLink},
	}}
}

// transportLost: when the link breaks in the middle of a command, its end is
// unknown: a partial result and an error, never an exit status.
func transportLost(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	up := &arrival{first: make(chan struct{})}
	command := shell("echo up; sleep 1000; exit 0")
	kept := shell("echo kept; sleep 1000; exit 0")
	command.Stdout = up
	type outcome struct {
		res *berm.Result
		err error
	}
	outcomes := make(chan outcome, 2)
	for _, c := range []berm.Command{command, kept} {
		go func() {
			res, err := sb.Exec(bounded(t), c)
			outcomes <- outcome{res, err}
		}()
	}
	within(t, patience, "the command's start", func() { <-up.first })
	l, err := s.machine(t, sb).Link(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	for range 2 {
		var got outcome
		within(t, liveness, "a command whose link is lost", func() { got = <-outcomes })
		wantKind(t, got.err, errdefs.TransportLost, errdefs.Closed)
		noExit(t, got.res)
	}
	select {
	case <-sb.Done():
	default:
		t.Error("Done is not closed")
	}
	_, err = sb.Exec(bounded(t), berm.Command{Args: []string{"true"}})
	wantKind(t, err, errdefs.TransportLost, errdefs.Closed)
}

// transportLostFile: half a file is never a file.
func transportLostFile(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "truncate -s 512M big")
	body, err := sb.Files().Open(bounded(t), "big")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = body.Close() }()
	if _, err := body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	l, err := s.machine(t, sb).Link(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	rest := &counter{}
	within(t, patience, "the rest of the file", func() { err = drain(body, rest) })
	if err == nil {
		t.Errorf("after the link was lost, %d bytes came with a regular end", rest.count)
	}
}

// transportSameLink: there is one link, on every call, and it lives.
func transportSameLink(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	m := s.machine(t, sb)
	a, err1 := m.Link(bounded(t))
	b, err2 := m.Link(bounded(t))
	if err1 != nil || err2 != nil || a != b {
		t.Fatalf("two links: %v, %v, %v, %v", a, b, err1, err2)
	}
	select {
	case <-a.Done():
		t.Errorf("the link has ended: %v", a.Err())
	default:
	}
	if err := a.Err(); err != nil {
		t.Errorf("a living link has the error %v", err)
	}
}
