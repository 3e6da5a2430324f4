package probe_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/berm-dev/berm/internal/agent/probe"
)

func full() *probe.Report {
	return &probe.Report{
		CapInheritable: "0", CapPermitted: "1", CapEffective: "2", CapBounding: "3", CapAmbient: "4", SignalsIgnored: "5",
		NoNewPrivileges: true, SeccompMode: 2, UIDMap: "1000 0 1", UID: 1000,
		Writable: []string{"/tmp", "a\nb \"c\" \xff"}, Routes: []string{"eth0 1 2"}, Connected: []string{"x"},
		Sizes: []uint64{0, 1<<64 - 1}, ProcessLimit: 7, AgentReadable: true,
		Outcomes: []probe.Outcome{{Reached: true, Amount: 1<<64 - 1, Detail: "a b\n"}, {}},
	}
}

func TestReportSurvives(t *testing.T) {
	t.Parallel()
	for _, want := range []*probe.Report{full(), {}} {
		got, err := probe.DecodeReport(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

// A report that was cut off anywhere is no report.
func TestReportIsWhole(t *testing.T) {
	t.Parallel()
	data := full().Encode()
	for n := range len(data) - 1 {
		if _, err := probe.DecodeReport(data[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were taken for a report", n, len(data))
		}
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	for i, line := range lines {
		name, _, _ := bytes.Cut(line, []byte(" "))
		switch string(name) {
		case "writable", "route", "connected", "size", "outcome", "", "end\n":
			continue
		}
		without := slices.Concat(slices.Concat(lines[:i]...), slices.Concat(lines[i+1:]...))
		if _, err := probe.DecodeReport(without); err == nil {
			t.Errorf("a report without %s was accepted", name)
		}
		twice := slices.Concat(line, data)
		if _, err := probe.DecodeReport(twice); err == nil {
			t.Errorf("a report with %s twice was accepted", name)
		}
	}
}

func TestOrderSurvives(t *testing.T) {
	t.Parallel()
	want := &probe.Order{AgentPID: 1, WritePaths: []string{"/a b", "\n"}, AbstractSockets: []string{"s"}, SizePaths: []string{"/tmp", "/"},
		Trials: []probe.Trial{{Kind: probe.Connect, Argument: "80"}, {Kind: probe.Trace}, {Kind: probe.Sysctl, Argument: "a b\n"}}}
	got, err := probe.DecodeOrder(want.Encode())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// The calling process is measured against itself: what it can do is known.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	order := probe.Order{
		AgentPID: os.Getpid(), WritePaths: []string{dir, file, dir + "/missing", "/proc/self/status/x"},
		AbstractSockets: []string{"berm-nobody-listens-" + strconv.Itoa(os.Getpid())}, SizePaths: []string{dir, dir + "/missing"},
	}
	var out bytes.Buffer
	if err := probe.Run(bytes.NewReader(order.Encode()), &out); err != nil {
		t.Fatal(err)
	}
	got, err := probe.DecodeReport(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Writable, []string{dir, file}) || len(got.Connected) != 0 {
		t.Errorf("writable %q, connected %q", got.Writable, got.Connected)
	}
	if len(got.Sizes) != 2 || got.Sizes[1] != 0 || got.UID != uint32(os.Getuid()) || len(got.CapEffective) != 16 || got.UIDMap == "" {
		t.Errorf("got %+v", got)
	}
	if !got.AgentReadable {
		t.Error("a process can read itself")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "kept" {
		t.Errorf("the file is %q, %v", data, err)
	}
}

func FuzzDecodeReport(f *testing.F) {
	whole := full().Encode()
	for _, data := range [][]byte{whole, (&probe.Report{}).Encode(), nil, []byte("end\n"), []byte("end"), []byte("\n"), []byte("size -1\nend\n"), []byte("route \\x\nend\n")} {
		f.Add(data)
	}
	// Every line left out, given twice, and cut.
	for line := range bytes.Lines(whole) {
		f.Add(bytes.Replace(whole, line, nil, 1))
		f.Add(append(slices.Clone(line), whole...))
		f.Add(bytes.Replace(whole, line, line[:len(line)/2], 1))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		report, err := probe.DecodeReport(data)
		if err != nil {
			return
		}
		again, err := probe.DecodeReport(report.Encode())
		if err != nil || !reflect.DeepEqual(again, report) {
			t.Errorf("%+v became %+v, %v", report, again, err)
		}
	})
}

func FuzzDecodeOrder(f *testing.F) {
	for _, paths := range [][]string{nil, {"/"}, {""}, {" "}, {"\n"}, {"\\"}, {"\x00"}, {"ü"}, {"\xff"}, {"end"}, {"a b", "c\nend"}, {"/", "/"}} {
		f.Add((&probe.Order{AgentPID: 1, WritePaths: paths}).Encode())
		f.Add((&probe.Order{AgentPID: 1 << 30, AbstractSockets: paths, SizePaths: paths}).Encode())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		order, err := probe.DecodeOrder(data)
		if err != nil {
			return
		}
		again, err := probe.DecodeOrder(order.Encode())
		if err != nil || !reflect.DeepEqual(again, order) {
			t.Errorf("%+v became %+v, %v", order, again, err)
		}
	})
}
