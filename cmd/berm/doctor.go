package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/toolchain"
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Test which backends work on this machine, and say what to do about the others",
		Long: `Say of each backend whether it works on this machine, why not, what to type to
change that, and what it can promise and limit here. Each backend that can be
opened starts one small sandbox and tries from inside what a sandbox has to
refuse; a check that fails makes the backend unavailable. Nothing of yours is
mounted, and nothing is left behind. Last come the toolchains that your PATH
leads to and that --toolchains auto shows to a sandbox.

Exit status: 0 when the default backend works, else 125.`,
		Example: "  berm doctor\n  berm doctor --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.doctor(cmd.Context(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// diagnosis is what is told of one backend.
type diagnosis struct {
	*berm.Diagnosis
	// Default: `berm run` uses this backend when none is named.
	Default bool `json:"default"`
	// Declared is the upper bound of what any machine could give.
	Declared driver.Capabilities `json:"declared"`
}

func (a *app) doctor(ctx context.Context, asJSON bool) error {
	ctx, signals := watch(ctx)
	defer signals.stop()
	var all []diagnosis
	for i, factory := range a.factories {
		backend := factory.Default()
		d := diagnosis{Default: i == 0, Declared: backend.Declare()}
		var err error
		if d.Diagnosis, err = berm.Probe(ctx, backend, berm.Config{Agent: berm.AgentProgram{Image: embeddedAgent()}}); err != nil {
			a.reportFailure(explain(ctx, err), asJSON)
			return interruptStatus(ctx)
		}
		d.Backend = factory.Name
		all = append(all, d)
	}
	tools, left := toolchain.Find(toolchain.ThisHost(""))
	if asJSON {
		if a.printJSON(struct {
			Backends   []diagnosis           `json:"backends"`
			Toolchains []toolchain.Toolchain `json:"toolchains"`
			LeftOut    []string              `json:"toolchainsLeftOut,omitempty"`
		}{all, append([]toolchain.Toolchain{}, tools...), left}) != nil {
			return statusFailure
		}
	} else {
		for _, d := range all {
			a.printDiagnosis(d)
		}
		a.printToolchains(tools, left)
	}
	if !all[0].Available {
		return statusFailure
	}
	return nil
}

func (a *app) printDiagnosis(d diagnosis) {
	line := func(format string, args ...any) {
		fmt.Fprintln(a.stdout, printable(fmt.Sprintf(format, args...)))
	}
	state, which := "not available", ""
	if d.Available {
		state = "available"
	}
	if d.Default {
		which = " (default)"
	}
	line("%s%s: %s", d.Backend, which, state)
	for _, problem := range d.Problems {
		kind := "weaker"
		if problem.Fatal {
			kind = "problem"
		}
		line("  %-8s %s", kind+":", problem.Reason)
		if problem.Fix != "" {
			line("  fix:     %s", problem.Fix)
		}
	}
	if d.Checks != nil {
		line("  measured: %s", orNone(d.Achieved.Names()))
	}
	for _, check := range d.Checks {
		line("  check:   %-14s %s: %s", check.Outcome, check.Name, check.Detail)
	}
	caps := d.Declared
	if d.Capabilities != nil {
		caps = *d.Capabilities
	} else {
		line("  where it works, at best:")
	}
	line("  tier:    %s", caps.Tier)
	line("  promises: %s", orNone(caps.Isolation.Names()))
	var networks []string
	for _, n := range caps.Networks {
		networks = append(networks, string(n))
	}
	line("  networks: %s", orNone(networks))
	line("  limits:  memory %s, processes %s, cpus %s, disk %s", kept(caps.Memory), kept(caps.Processes), kept(caps.CPUs), kept(caps.Disk))
	line("  ends a command's tree by: %s", caps.TreeKill)
	for _, note := range caps.Notes {
		line("  note:    %s", note)
	}
	for _, fact := range d.Facts {
		line("  seen:    %s", fact)
	}
}

func (a *app) printToolchains(tools []toolchain.Toolchain, left []string) {
	heading := "toolchains outside the system's paths:"
	if len(tools) == 0 {
		heading += " none"
	}
	fmt.Fprintln(a.stdout, heading)
	for _, t := range tools {
		fmt.Fprintln(a.stdout, printable(fmt.Sprintf("  %s: %s", t.Name, t.Root)))
	}
	for _, note := range left {
		fmt.Fprintln(a.stdout, printable("  note:    "+note))
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func kept(e driver.Enforcement) string {
	if e == driver.Unenforced {
		return "not enforced"
	}
	return string(e)
}
