package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"golang.org/x/sys/unix"
)

// row is one line of the table of numbers.
type row struct {
	name string
	run  func(context.Context, *bench) ([]verdict, error)
}

// rows are in the order in which they run: what leaves the machine warm comes
// last.
func rows() []row {
	return []row{
		{"create", createRow}, {"srt", srtRow}, {"exec", execRow},
		{"stdout", stdoutRow}, {"download", downloadRow}, {"upload", uploadRow},
		{"tunnel", tunnelRow}, {"egress", egressRow}, {"egress-memory", egressMemoryRow},
		{"idle", idleRow}, {"tunnels", tunnelsRow}, {"burst", burstRow},
	}
}

func rowNames() []string {
	var out []string
	for _, r := range rows() {
		out = append(out, r.name)
	}
	return out
}

// bench is what the rows of one pass share.
type bench struct {
	options

	provider *berm.Provider
	// dir is for files, in memory where that is possible: a slow disk would make
	// every copy look as slow as the others.
	dir string
}

// report is one pass.
type report struct {
	Caller   string    `json:"caller"`
	Machine  string    `json:"machine"`
	Posture  []string  `json:"posture"`
	TreeKill string    `json:"treeKill"`
	Notes    []string  `json:"notes,omitempty"`
	Runs     int       `json:"runs"`
	Rows     []verdict `json:"rows"`
}

// pass measures everything as the present caller.
func pass(ctx context.Context, o options) (held bool, err error) {
	b := &bench{options: o}
	if b.dir, err = scratch(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.provider, err = berm.Open(ctx, process.Config{}, berm.Config{
		Agent:    berm.AgentProgram{Path: o.agent},
		StateDir: filepath.Join(b.dir, "state"),
		Require:  berm.Isolation{Filesystem: true, Network: true, Processes: true},
	})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.provider.Close()) }()
	r, err := b.begin(ctx)
	if err != nil {
		return false, err
	}
	held = true
	for _, line := range rows() {
		if !slices.Contains(o.selected(), line.name) {
			continue
		}
		verdicts, err := line.run(ctx, b)
		if err != nil {
			return false, fmt.Errorf("%s: %w", line.name, err)
		}
		for _, v := range verdicts {
			v.Row = line.name
			held = held && (v.Held || v.Skipped != "")
			r.Rows = append(r.Rows, v)
			if !o.json {
				fmt.Print(v)
			}
		}
	}
	if o.json {
		return held, json.NewEncoder(os.Stdout).Encode(r)
	}
	return held, nil
}

// begin makes a sandbox to see under which posture all is measured.
func (b *bench) begin(ctx context.Context) (*report, error) {
	sandbox, err := b.provider.Create(ctx, berm.CreateOptions{})
	if err != nil {
		return nil, err
	}
	record := sandbox.Posture()
	if err := sandbox.Close(); err != nil {
		return nil, err
	}
	r := &report{
		Caller: "unprivileged", Machine: machine(), TreeKill: string(b.provider.Capabilities().TreeKill), Notes: record.Notes, Runs: b.runs,
	}
	if os.Geteuid() == 0 {
		r.Caller = "root"
	}
	for _, name := range record.Achieved.Names() {
		r.Posture = append(r.Posture, fmt.Sprint(name))
	}
	if !b.json {
		fmt.Printf("process tier as %s; %s; %d runs, medians\n", r.Caller, r.Machine, r.Runs)
		fmt.Printf("posture: %s; a command's tree ends by %s\n", strings.Join(r.Posture, ", "), r.TreeKill)
		for _, note := range r.Notes {
			fmt.Println("note:", note)
		}
	}
	return r, nil
}

// wantedRoom is what the files of all rows take, in bytes, with room to spare.
const wantedRoom = 4 * bulkBytes

// scratch makes the folder for files.
func scratch() (string, error) {
	const memory = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(memory, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) >= wantedRoom {
		if dir, err := os.MkdirTemp(memory, "berm-bench-"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", "berm-bench-")
}

// machine describes what was measured on.
func machine() string {
	var parts []string
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		parts = append(parts, "kernel "+strings.TrimSpace(string(release)))
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		processors := strings.Count("\n"+string(info), "\nprocessor")
		parts = append(parts, fmt.Sprintf("%d processors", processors))
		for line := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				parts = append(parts, strings.TrimLeft(strings.TrimSpace(name), ": "))
				break
			}
		}
	}
	return strings.Join(parts, ", ")
}
