// Command bench measures the process tier beside what it is compared with, in
// one run, and holds the medians against the targets in docs/benchmarks.md. It
// exits with status 1 when a target is missed and with 2 when it could not
// measure. It prints the posture under which it measured.
//
//	go run ./bench                    as root: once as root and once unprivileged
//	go run ./bench -only create,exec  some rows
//	go run ./bench -json              one JSON document for each caller, a line each
//
// `make bench` gives it the sandbox runtime from npm to compare with; without
// -srt that row is left out, and said to be. So it is with other proxies and
// -peers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// options are the command line.
type options struct {
	runs                int
	agent, payload, srt string
	peers               string
	only                string
	json, single        bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	held, err := run(ctx)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	case !held:
		os.Exit(1)
	}
}

func run(ctx context.Context) (held bool, err error) {
	var o options
	flag.IntVar(&o.runs, "runs", 40, "counted runs of each side; the longer rows make fewer")
	flag.StringVar(&o.agent, "agent", os.Getenv("BERM_AGENT"), "the agent's `program`; built when empty")
	flag.StringVar(&o.payload, "payload", "", "the `program` that runs inside as a server; built when empty")
	flag.StringVar(&o.srt, "srt", "", "the sandbox runtime's `program`, as scripts/srt prints it")
	flag.StringVar(&o.peers, "peers", "", "the `folder` with other proxies, as scripts/egress-peers prints it")
	gates := flag.Bool("gate", false, "be the process of the gates that are measured; not for people")
	client := flag.String("client", "", "be a client that is measured, as the `order` says; not for people")
	flag.StringVar(&o.only, "only", "", "measure these `rows` only: "+strings.Join(rowNames(), ","))
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.BoolVar(&o.single, "single", false, "measure as this caller only")
	flag.Parse()
	switch {
	case *gates:
		return true, serveGates(ctx)
	case *client != "":
		return true, beClient(ctx, *client)
	}
	if err := o.check(); err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "berm-bench-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// An unprivileged second pass must be able to read what is built there.
	if err := os.Chmod(dir, 0o755); err != nil {
		return false, err
	}
	if err := o.build(ctx, dir); err != nil {
		return false, err
	}
	held, err = pass(ctx, o)
	if err != nil || o.single || os.Geteuid() != 0 {
		return held, err
	}
	again, err := unprivileged(ctx, o, dir)
	return held && again, err
}

// check refuses a command line that would measure nothing.
func (o options) check() error {
	if o.runs < 1 || flag.NArg() > 0 {
		return errors.New("usage: bench [-runs N] [-only ROWS] [-json] [-srt PROGRAM] [-peers FOLDER] (see -h)")
	}
	for _, name := range o.selected() {
		if !slices.Contains(rowNames(), name) {
			return fmt.Errorf("there is no row %q; rows: %s", name, strings.Join(rowNames(), ", "))
		}
	}
	return nil
}

// selected are the rows that were asked for.
func (o options) selected() []string {
	if o.only == "" {
		return rowNames()
	}
	return strings.Split(o.only, ",")
}
