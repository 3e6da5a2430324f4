package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berm-dev/berm/errdefs"
)

const runName = "run"

// runFlags are the flags of `berm run` as they were typed. Values are checked
// later, all together.
type runFlags struct {
	config, backend       string
	workdir, outputs      string
	scratch, uploads      string
	skills, readOnly, env []string
	egressFlags
	timeout, memory       string
	pids, cpus            string
	posture               string
	require, toolchains   []string
	bestEffort, json, tty bool
	// bestEffortSaid: the flag was given, so that false overrides a file.
	bestEffortSaid bool
	// empty are flags that were given an empty value, as an unset variable in a
	// script gives them.
	empty []string
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   runName + " [flags] -- COMMAND [ARG...]",
		Short: "Run one command in a new sandbox",
		Long: `Run one command in a new sandbox, with its standard streams connected to
berm's own, and remove the sandbox when the command ends.

Files: the working directory inside is /workspace with --workdir, else
/mnt/user-data/outputs, which --outputs keeps. Host directories are given as they
are; relative ones belong to the current directory. A missing --outputs or
--scratch directory is made (its parent must exist).

Network: none unless it is asked for. With --allow, --allow-any or --credential the
only way out is the egress gate, which decides about each request by its rules;
what the sandbox sees of it is a proxy on its own loopback, which the usual
variables name. A credential is put on at the gate and never enters the sandbox.

Signals INT, TERM, HUP, QUIT, USR1 and USR2 are passed to the command. A second
INT or TERM, or 10 seconds without an end after the first, kills it.

Exit status: the command's own; 124 when its timeout ended it, 125 for a failure
of berm, 126 when the program cannot be executed, 127 when it is not found, 128+n
when signal n ended it, 137 when it ran out of memory.

With --json the output is kept and printed as one object:
  {"exitCode","reason","signal","timedOut","durationMs","stdout","stderr",
   "stdoutDropped","stderrDropped","outputIncomplete"}
The streams are base64. exitCode is null when a signal ended the command. A
failure is {"error": {"name","message","reasons","cause"}}.`,
		Example: `  berm run -- sh -c 'echo out; echo err >&2; exit 3'
  berm run --outputs ./out -- sh -c 'echo hi > hi.txt'
  berm run --workdir . --memory 2GiB --pids 64 --timeout 5m -- make test
  berm run --require filesystem,network,processes --posture - -- true
  berm run --allow .example.com --allow tcp://git.example.org:22 -- git clone git@git.example.org:tools.git
  berm run --allow github.com --credential 'host=api.github.com,prefix=Bearer ,env=GH_TOKEN' --audit audit.jsonl -- make
  echo 1+2 | berm run --json -- python3 -i
  berm run --tty -- vi notes.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.said(cmd)
			return a.run(cmd.Context(), f, args)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print the result as one JSON object instead of streaming")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal, connected to the one that berm was started on")
	return cmd
}

// said notes what only the parsed flags tell.
func (f *runFlags) said(cmd *cobra.Command) {
	f.bestEffortSaid = cmd.Flags().Changed("best-effort")
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if text := flag.Value.String(); text == "" || text == "[]" {
			f.empty = append(f.empty, flag.Name)
		}
	})
}

// add declares the flags. Words in backquotes name the value in the help.
func (f *runFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	// What follows the command's name is the command's, also without "--".
	flags.SetInterspersed(false)
	flags.SortFlags = false
	flags.StringVarP(&f.config, "config", "c", "", "read the configuration `FILE` (JSON or YAML); flags override it")
	flags.StringVar(&f.backend, "backend", "", "use the backend `NAME` (default: process); see berm doctor")
	flags.StringVar(&f.workdir, "workdir", "", "mount `DIR` read-write at /workspace and start there")
	flags.StringVar(&f.outputs, "outputs", "", "mount `DIR` read-write at /mnt/user-data/outputs")
	flags.StringVar(&f.scratch, "scratch", "", "mount `DIR` read-write at /mnt/user-data/scratch")
	flags.StringVar(&f.uploads, "uploads", "", "mount `DIR` read-only at /mnt/user-data/uploads")
	flags.StringArrayVar(&f.skills, "skill", nil, "mount a directory read-only at /mnt/skills/ID (`ID=DIR`, repeatable)")
	flags.StringArrayVar(&f.readOnly, "bind-ro", nil, "mount `DIR` read-only at its own path (repeatable)")
	flags.StringSliceVar(&f.toolchains, "toolchains", nil, "show compilers and interpreters from outside the system's paths, read-only: auto (default, those on berm's PATH), none, or their folders (`LIST`)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set a variable inside: `K=V`, or K alone to pass berm's own value, which then shows in no list of processes (repeatable)")
	flags.StringVar(&f.timeout, "timeout", "", "end the command after `DURATION` (90s, 5m, 1h30m)")
	flags.StringVar(&f.memory, "memory", "", "bound memory to `SIZE`, in powers of 1024: 512M, 1GiB (default 1GiB)")
	flags.StringVar(&f.pids, "pids", "", "bound processes and threads to `N` (default 256)")
	flags.StringVar(&f.cpus, "cpus", "", "bound processor time to `N` processors, also in parts: 0.5")
	flags.BoolVar(&f.bestEffort, "best-effort", false, "accept limits that this host can keep in part only, or not at all")
	f.egressFlags.add(cmd)
	flags.StringSliceVar(&f.require, "require", nil, "refuse to run without these promises: filesystem,network,processes,limits (`LIST`)")
	flags.StringVar(&f.posture, "posture", "", "write what was measured to `FILE` as JSON; - is the standard error")
	_ = cmd.MarkFlagFilename("config", "json", "yaml", "yml")
	for _, name := range []string{"workdir", "outputs", "scratch", "uploads", "bind-ro"} {
		_ = cmd.MarkFlagDirname(name)
	}
}

// noCommand is the fault of a line without a command.
const noCommand = "no command was given; write: berm run [flags] -- COMMAND [ARG...]"

// invalid gives one error for all faults, nil when there are none.
func invalid(op string, reasons []string) error {
	if len(reasons) == 0 {
		return nil
	}
	return errdefs.New(errdefs.Invalid, op, reasons...)
}
