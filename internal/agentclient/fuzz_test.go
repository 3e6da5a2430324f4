package agentclient

import (
	"bytes"
	"path"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// FuzzEvents feeds two events to a fresh order: whatever is accepted keeps the
// bounds.
func FuzzEvents(f *testing.F) {
	start := func(pid uint32) *agentv1.ProcessEvent {
		return &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Start{Start: &agentv1.ProcessEvent_StartEvent{Pid: pid}}}
	}
	end := func(e *agentv1.ProcessEvent_EndEvent) *agentv1.ProcessEvent {
		return &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_End{End: e}}
	}
	out := &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Data{Data: &agentv1.ProcessEvent_DataEvent{
		Output: &agentv1.ProcessEvent_DataEvent_Stdout{Stdout: []byte("out")},
	}}}
	text := "\x1b[31mnot found\u202e"
	seconds := []*agentv1.ProcessEvent{
		start(1), out, nil, {Event: &agentv1.ProcessEvent_Keepalive{Keepalive: &agentv1.ProcessEvent_KeepAlive{}}},
		{Event: &agentv1.ProcessEvent_Data{Data: &agentv1.ProcessEvent_DataEvent{Output: &agentv1.ProcessEvent_DataEvent_Pty{}}}},
		{Event: &agentv1.ProcessEvent_Data{Data: &agentv1.ProcessEvent_DataEvent{}}},
		end(&agentv1.ProcessEvent_EndEvent{Exited: true}), end(&agentv1.ProcessEvent_EndEvent{}),
		end(&agentv1.ProcessEvent_EndEvent{ExitCode: 255, Reason: 1}), end(&agentv1.ProcessEvent_EndEvent{ExitCode: -1, Reason: 1}),
		end(&agentv1.ProcessEvent_EndEvent{Signal: 9, Reason: 2}), end(&agentv1.ProcessEvent_EndEvent{Signal: -9, Reason: 2}),
		end(&agentv1.ProcessEvent_EndEvent{Signal: 9, Reason: 3}), end(&agentv1.ProcessEvent_EndEvent{Reason: 4, Error: &text}),
		end(&agentv1.ProcessEvent_EndEvent{Reason: 8, DurationUs: 1 << 60}), end(&agentv1.ProcessEvent_EndEvent{Reason: 9}),
		end(&agentv1.ProcessEvent_EndEvent{Reason: 1, Lingering: []uint32{1, 2}}), end(&agentv1.ProcessEvent_EndEvent{Reason: 1, Lingering: []uint32{0}}),
	}
	for _, second := range seconds {
		for _, first := range []*agentv1.ProcessEvent{start(42), second} {
			a, _ := proto.Marshal(first)
			b, _ := proto.Marshal(second)
			f.Add(a, b)
		}
	}
	f.Add([]byte("\xff"), []byte(""))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var o order
		ends, starts := 0, 0
		for _, data := range [][]byte{first, second} {
			var message agentv1.ProcessEvent
			if (&codec{}).UnmarshalRead(t.Context(), bytes.NewBuffer(data), &message) != nil {
				return
			}
			got, seen, err := o.next(&message)
			if err != nil {
				checkClean(t, err.Error())
				return
			}
			if ends > 0 {
				t.Fatal("an event after the end")
			}
			if !seen && (got.Started || got.End != nil || len(got.Stdout)+len(got.Stderr) > 0) {
				t.Fatal("an event that says something was not seen")
			}
			if got.Started {
				starts++
				if starts > 1 || got.PID == 0 || int32(got.PID) < 0 {
					t.Fatalf("start %d with pid %d", starts, got.PID)
				}
			}
			if (len(got.Stdout) > 0 || len(got.Stderr) > 0) && starts == 0 {
				t.Fatal("data before the start")
			}
			if got.End != nil {
				ends++
				checkEnd(t, got.End, starts > 0)
			}
		}
	})
}

func checkEnd(t *testing.T, end *End, started bool) {
	t.Helper()
	switch {
	case end.Reason < EndExited || end.Reason > EndStartFailed,
		(end.Reason < EndNotFound) != started,
		end.ExitCode < -1 || end.ExitCode > 255,
		end.ExitCode >= 0 != (end.Reason == EndExited),
		end.Signal < 0 || end.Signal > 64,
		end.Duration < 0,
		len(end.Lingering) > maxLingering:
		t.Fatalf("started=%t %+v", started, end)
	}
	for _, pid := range end.Lingering {
		if pid <= 0 {
			t.Fatalf("lingering pid %d", pid)
		}
	}
	checkClean(t, end.Error)
}

func checkClean(t *testing.T, text string) {
	t.Helper()
	if len(text) > maxErrorText+100 || !utf8.ValidString(text) {
		t.Fatalf("text of %d bytes", len(text))
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			t.Fatalf("text has %U", r)
		}
	}
}

// FuzzListing decodes a listing of /d: whatever is accepted lies in /d.
func FuzzListing(f *testing.F) {
	names := []string{"a", "", ".", "..", "a/b", "/", "x\x00", "\n", "ü", "-rf", strings.Repeat("n", 255), strings.Repeat("n", 766)}
	for _, name := range names {
		for _, lstat := range []*agentv1.Lstat{nil, {Mode: 0o100644}, {Mode: 0o120777, Link: "../x"}, {Mode: 0o644}, {Mode: 0o40755, Size: -1}} {
			data, _ := proto.Marshal(&agentv1.ListDirResponse{Entries: []*agentv1.EntryInfo{{
				Name: name, Path: "/d/" + name, Type: agentv1.FileType_FILE_TYPE_FILE, Lstat: lstat,
				ModifiedTime: &timestamppb.Timestamp{Seconds: 1 << 40, Nanos: -1},
			}}})
			f.Add(data)
		}
	}
	f.Add([]byte("\x0a\x00\x0a\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var message agentv1.ListDirResponse
		if (&codec{}).UnmarshalRead(t.Context(), bytes.NewBuffer(data), &message) != nil {
			return
		}
		entries, err := listedEntries("list", "/d", message.GetEntries())
		if err != nil {
			checkClean(t, err.Error())
			return
		}
		for i, e := range entries {
			switch {
			case path.Dir(e.Path) != "/d", path.Base(e.Path) != e.Name, e.Name == "." || e.Name == "..",
				strings.ContainsAny(e.Name, "/\x00"), e.Size < 0, len(e.Name) > 3*maxNameBytes, len(e.Link) > maxPathBytes,
				i > 0 && entries[i-1].Name > e.Name:
				t.Fatalf("accepted %+v", e)
			}
			if y := e.ModTime.Year(); y < 1 || y > 9999 {
				t.Fatalf("time %v", e.ModTime)
			}
			checkClean(t, e.Owner+e.Group)
		}
	})
}
