// Command berm runs untrusted commands behind a wall: a sandbox on one of
// several backends, measured before anything runs in it.
//
// Exit statuses of `berm run` are those of the command, with 124 for its
// timeout, 125 for a failure of berm's own, 126 and 127 for a program that
// cannot be started or found, and 128+n for signal n.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berm-dev/berm/backend/all"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, factories: all.Factories(), lookupEnv: os.LookupEnv}
	return a.execute(ctx, args)
}

// app is what the commands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	factories      []driver.Factory
	lookupEnv      func(string) (string, bool)
	// unknown are the reasons against flags that do not exist.
	unknown []string
}

// status is an exit status whose reason has been told already.
type status int

// The statuses that berm itself gives; 128+n is a signal.
const (
	statusTimeout       status = 124
	statusFailure       status = 125
	statusNotExecutable status = 126
	statusNotFound      status = 127
	statusSignal        status = 128
)

// Error is for the type alone: nobody prints it.
func (s status) Error() string { return "exit status" }

// maxUnknown bounds how many unknown flags are told at once.
const maxUnknown = 20

// execute parses and runs. An unknown flag is noted, taken out, and the rest is
// parsed again, so that all faults of a command line are told together.
func (a *app) execute(ctx context.Context, args []string) int {
	var err error
	for {
		root := a.rootCommand()
		root.SetArgs(args)
		err = root.ExecuteContext(ctx)
		var unknown *unknownFlagError
		if !errors.As(err, &unknown) || len(a.unknown) >= maxUnknown {
			break
		}
		a.unknown = append(a.unknown, unknown.reason)
		rest, found := unknown.remove(args)
		if !found {
			err = errdefs.New(errdefs.Invalid, "", a.unknown...)
			break
		}
		args = rest
	}
	if err == nil && len(a.unknown) > 0 {
		err = errdefs.New(errdefs.Invalid, "", a.unknown...)
	}
	var told status
	switch {
	case err == nil:
		return 0
	case errors.As(err, &told):
		return int(told)
	}
	a.reportFailure(err, asksJSON(args))
	return int(statusFailure)
}

// asksJSON reports whether --json is among berm's own flags. It is asked when
// the flags could not be parsed.
func asksJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--json" || strings.HasPrefix(arg, "--json=t") || arg == "--json=1"
	})
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "berm",
		Short: "Run untrusted commands behind a measured wall",
		Long: `berm runs commands that you do not trust in a sandbox. What a sandbox promises
is measured before anything runs in it; what cannot be promised is refused.`,
		Example: `  berm run -- sh -c 'id; ls /'
  berm run --outputs ./out --timeout 1m -- python3 -c 'open("a.txt","w").write("hi")'
  berm run --allow example.com -- curl https://example.com/
  berm doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          a.noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if len(a.unknown) > 0 && cmd.Name() != runName {
				return errdefs.New(errdefs.Invalid, "", a.unknown...)
			}
			return nil
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagFault)
	root.AddCommand(a.runCommand(), a.shellCommand(), a.doctorCommand(), a.configCommand(), a.policyCommand(), a.versionCommand())
	return root
}
