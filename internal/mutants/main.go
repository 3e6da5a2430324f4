// Command mutants proves the defences: it turns each one of package defence's
// table off, in a build for that, and wants one of the tests that the table names
// to fail. A defence whose absence no test notices has survived, and the command
// fails.
//
//	go run ./internal/mutants [-only NAME,NAME] [-short] [-v]
//
// A mutant is killed by a failed test and by nothing else: not by a build that
// fails, a skipped test, a panic, or a run that does not end, unless the table
// says that this is how the absence shows. Before any is made, all those tests
// have to pass with every defence on, so that a test that is red anyway kills
// nothing.
//
// Everything is linked once, with a blank in the place of the names; a mutant is
// a copy with names in the blank.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

// stride is the part of the table that a short run takes: every sixth row.
const stride = 6

// options come from the command line.
type options struct {
	only    string
	short   bool
	seed    int
	verbose bool
	workers int
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "turn off these alone, separated by commas; a name that ends with a colon is all of a room")
	flag.BoolVar(&o.short, "short", false, "every sixth defence, others each day")
	flag.IntVar(&o.seed, "seed", int(time.Now().Unix()/86400), "where a short run begins")
	flag.BoolVar(&o.verbose, "v", false, "show what the tests print")
	flag.IntVar(&o.workers, "j", 2, "how many mutants are tested at once")
	flag.Parse()
	// All that was made goes also when it is interrupted.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// run reports false when a mutant survived.
func run(ctx context.Context, o options) (ok bool, err error) {
	chosen, err := choose(o)
	if err != nil {
		return false, err
	}
	var left []defence.Entry
	chosen = slices.DeleteFunc(chosen, func(e defence.Entry) bool {
		alone := len(jobsOf(e)) == 0
		if alone {
			left = append(left, e)
		}
		return alone
	})
	s, err := newShop(ctx, o, chosen)
	if err != nil {
		return false, err
	}
	defer func() {
		if closeErr := s.close(); closeErr != nil {
			ok, err = false, closeErr
		}
	}()
	if !s.baseline(ctx, chosen) {
		return false, ctx.Err()
	}
	killed, survived := s.turnOff(ctx, chosen)
	for _, e := range left {
		fmt.Printf("left out  %s: its tests need root\n", e.Name)
	}
	fmt.Printf("%d killed, %d survived\n", killed, survived)
	return survived == 0 && killed > 0 && ctx.Err() == nil, ctx.Err()
}

// choose picks rows of the table.
func choose(o options) ([]defence.Entry, error) {
	table := defence.Table()
	if o.only != "" {
		return named(table, strings.Split(o.only, ","))
	}
	if !o.short {
		return table, nil
	}
	fmt.Printf("every %dth defence, from the one with number %d on\n", stride, o.seed%stride)
	var out []defence.Entry
	for i := o.seed % stride; i < len(table); i += stride {
		out = append(out, table[i])
	}
	return out, nil
}

func named(table []defence.Entry, names []string) ([]defence.Entry, error) {
	var out []defence.Entry
	for _, name := range names {
		before := len(out)
		for _, e := range table {
			if string(e.Name) == name || strings.HasSuffix(name, ":") && strings.HasPrefix(string(e.Name), name) {
				out = append(out, e)
			}
		}
		if len(out) == before {
			return nil, fmt.Errorf("there is no defence %q", name)
		}
	}
	return out, nil
}
