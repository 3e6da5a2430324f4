package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// options come from the command line.
type options struct {
	race     bool
	long     bool
	update   bool
	timeout  string
	lists    string
	packages []string
}

func main() {
	var o options
	flag.BoolVar(&o.race, "race", false, "build the tests with the race detector")
	flag.BoolVar(&o.long, "long", false, "run with full sizes; the lists are for short runs, and are not compared")
	flag.BoolVar(&o.update, "update", false, "rewrite the lists instead of comparing")
	flag.StringVar(&o.timeout, "timeout", "10m", "limit of one package")
	flag.StringVar(&o.lists, "lists", "internal/testlist/testdata", "folder of the committed lists")
	flag.Parse()
	o.packages = flag.Args()
	if len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlist:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run goes through the callers. It reports false when a test failed or a list
// does not agree.
func run(ctx context.Context, o options) (bool, error) {
	callers := []caller{{name: "user"}}
	if os.Geteuid() == 0 {
		callers = []caller{{name: "root"}, {name: "user", drop: true}}
	}
	var total tally
	ok := true
	for _, c := range callers {
		fmt.Printf("== as %s\n", c.name)
		results, err := c.test(ctx, o)
		if err != nil {
			return false, fmt.Errorf("as %s: %w", c.name, err)
		}
		report(os.Stdout, results)
		sum := results.tally()
		fmt.Printf("   as %s: %s\n", c.name, sum)
		total = total.plus(sum)
		complaints, err := hold(o, c, results)
		if err != nil {
			return false, err
		}
		for _, complaint := range complaints {
			fmt.Printf("list %s: %s\n", c.name, complaint)
		}
		ok = ok && sum.failed == 0 && len(complaints) == 0
	}
	fmt.Println(total)
	return ok && total.passed > 0, nil
}

// hold compares with the caller's list, or rewrites it. With a choice of
// packages only these are compared.
func hold(o options, c caller, results *results) ([]string, error) {
	if o.long {
		return nil, nil
	}
	file := filepath.Join(o.lists, c.name+".txt")
	committed, err := readList(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if o.update {
		return nil, os.WriteFile(file, []byte(committed.merge(results).String()), 0o644)
	}
	if len(committed) == 0 {
		return []string{file + " is missing or empty: make test UPDATE=1 writes it"}, nil
	}
	return committed.differences(results), nil
}

// readLines reads a file without comments and empty lines.
func readLines(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		if line := strings.TrimSpace(scanner.Text()); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out, scanner.Err()
}
