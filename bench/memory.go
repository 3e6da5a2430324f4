package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm"
)

// Targets of memory, in MiB.
const (
	targetIdle    = 15.0
	targetTunnels = 150.0
)

const (
	// idleSandboxes is over how many the cost of one is averaged.
	idleSandboxes = 20
	// tunnelCount are open at once; usedBytes have gone both ways through each.
	tunnelCount = 1000
	usedBytes   = 64 << 10
	// growthPoll is how often memory is looked at while bytes pass.
	growthPoll = 20 * time.Millisecond
)

const mebibyte = 1 << 20

// idleRow is what a sandbox costs that has run a command and waits: the agent,
// bubblewrap, and what the host program holds for it.
func idleRow(ctx context.Context, b *bench) (out []verdict, err error) {
	var sandboxes []*berm.Sandbox
	defer func() {
		for _, sandbox := range sandboxes {
			err = errors.Join(err, sandbox.Close())
		}
	}()
	make1 := func() error {
		sandbox, _, err := b.create(ctx)
		if sandbox != nil {
			sandboxes = append(sandboxes, sandbox)
		}
		return err
	}
	// The first pays for what all share on the host's side.
	if err := make1(); err != nil {
		return nil, err
	}
	before, err := settled()
	if err != nil {
		return nil, err
	}
	for range idleSandboxes {
		if err := make1(); err != nil {
			return nil, err
		}
	}
	after, err := settled()
	if err != nil {
		return nil, err
	}
	host := (after.host - before.host) / idleSandboxes
	inside := after.inside / float64(len(sandboxes))
	return []verdict{atMost("an idle sandbox, all in", host+inside, targetIdle, "MiB",
		figure{Name: "agent and bwrap, " + after.how, Value: inside, Unit: "MiB"},
		figure{Name: "host program, growth", Value: host, Unit: "MiB"})}, nil
}

// tunnelsRow is what many tunnels cost to a server inside, all of them open and
// used.
func tunnelsRow(ctx context.Context, b *bench) (out []verdict, err error) {
	sandbox, err := b.provider.Create(ctx, berm.CreateOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sandbox.Close()) }()
	address, stop, err := b.echoServer(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	defer stop()
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			err = errors.Join(err, conn.Close())
		}
	}()
	open := func() error {
		// The bound is the machine's: a tunnel takes a few milliseconds.
		dialling, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		conn, err := sandbox.DialContext(dialling, "tcp", address)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		return use(conn)
	}
	if err := open(); err != nil {
		return nil, err
	}
	before, err := settled()
	if err != nil {
		return nil, err
	}
	say := newProgress("tunnels", tunnelCount)
	for i := range tunnelCount {
		if err := open(); err != nil {
			return nil, fmt.Errorf("tunnel %d: %w", i+1, err)
		}
		say.at(i + 1)
	}
	after, err := settled()
	if err != nil {
		return nil, err
	}
	host, inside := after.host-before.host, after.inside-before.inside
	return []verdict{atMost(fmt.Sprintf("%d used tunnels", tunnelCount), host+inside, targetTunnels, "MiB",
		figure{Name: "agent and bwrap, growth, " + after.how, Value: inside, Unit: "MiB"},
		figure{Name: "host program, growth", Value: host, Unit: "MiB"})}, nil
}

// echoServer starts a server inside that sends back what it gets.
func (b *bench) echoServer(ctx context.Context, sandbox *berm.Sandbox) (address string, stop func(), err error) {
	const program = "/tmp/payload"
	file, err := os.Open(b.payload)
	if err != nil {
		return "", nil, err
	}
	if err := errors.Join(sandbox.Files().Create(ctx, program, 0o755, file), file.Close()); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := sandbox.CommandContext(ctx, program, "echo-server")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, err
	}
	stop = func() {
		cancel()
		// It was killed: that it did not end well is no news.
		_ = cmd.Wait()
	}
	line := make([]byte, 16)
	n, err := stdout.Read(line)
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the server inside does not say its port: %w", err)
	}
	return net.JoinHostPort("localhost", strings.TrimSpace(string(line[:n]))), stop, nil
}

// use sends bytes through a tunnel and waits for all of them to come back.
func use(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	sent := bytes.Repeat([]byte("tunnel. "), usedBytes/8)
	var work sync.WaitGroup
	var writeErr error
	work.Go(func() { _, writeErr = conn.Write(sent) })
	got := make([]byte, usedBytes)
	_, err := io.ReadFull(conn, got)
	work.Wait()
	if err := errors.Join(err, writeErr); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("the tunnel changed the bytes")
	}
	return conn.SetDeadline(time.Time{})
}

// memory is what is used at one moment, in MiB.
type memory struct {
	// host is this program, inside all agents and bubblewraps.
	host, inside float64
	// how inside was measured.
	how string
}

// settled measures once what is garbage is gone.
func settled() (memory, error) {
	debug.FreeOSMemory()
	host, err := proportional(os.Getpid())
	if err != nil {
		return memory{}, err
	}
	ours, agents, err := sandboxProcesses()
	if err != nil {
		return memory{}, err
	}
	m := memory{host: host, how: "proportional"}
	for _, p := range ours {
		used, err := proportional(p.pid)
		if errors.Is(err, os.ErrPermission) {
			// An unprivileged caller may not look into its agents. All have the same
			// program, so that each has its share of what is not its own.
			m.how = "own and a share of the program"
			used, err = ownAndShare(p.pid, agents)
		}
		if err != nil {
			return memory{}, err
		}
		m.inside += used
	}
	return m, nil
}

// proportional is a process's share of all pages that it uses, in MiB.
func proportional(pid int) (float64, error) {
	return procField(pid, "smaps_rollup", "Pss")
}

// ownAndShare is what a process has for itself, and its part of what sharers
// processes have alike, in MiB.
func ownAndShare(pid, sharers int) (float64, error) {
	own, err1 := procField(pid, "status", "RssAnon")
	file, err2 := procField(pid, "status", "RssFile")
	shared, err3 := procField(pid, "status", "RssShmem")
	return own + (file+shared)/float64(max(1, sharers)), errors.Join(err1, err2, err3)
}

// resident is all that a process has in memory, in MiB.
func resident(pid int) (float64, error) { return procField(pid, "status", "VmRSS") }

// procField reads a size from a file of /proc, in MiB.
func procField(pid int, file, name string) (float64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kib * 1024 / mebibyte, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", pid, file, name)
}
