package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Work with configuration files",
		Args:  a.noSuchCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Print what a configuration file means, or every fault in it",
		Long: `Print what a configuration file (JSON or YAML) means, as one JSON object, or
every fault in it. Secrets and the values of environment variables are not
printed. Nothing is opened, so what this machine cannot do is found by berm
doctor.

Exit status: 0 when the file is right, else 125.`,
		Example: "  berm config check berm.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errdefs.New(errdefs.Invalid, "", "give one file: berm config check FILE")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.configCheck(args[0]) },
	})
	return cmd
}

// meaning is what a file resolves to.
type meaning struct {
	Backend string `json:"backend"`
	Network string `json:"network"`
	// WorkRoot is the working directory inside.
	WorkRoot string        `json:"workRoot"`
	Mounts   []mountLine   `json:"mounts"`
	Limits   driver.Limits `json:"limits"`
	Require  []string      `json:"require"`
	// File is the file itself without its secrets.
	File json.RawMessage `json:"file"`
}

type mountLine struct {
	Name string `json:"name"`
	// Source is empty for storage of the sandbox's own.
	Source   string `json:"source,omitempty"`
	Dest     string `json:"dest"`
	Writable bool   `json:"writable"`
}

func (a *app) configCheck(path string) error {
	file, err := config.Load(path, a.factories)
	if err != nil {
		return err
	}
	caps := file.Backend.Declare()
	out := meaning{
		Backend: file.BackendName, Network: string(network(file.Config.Network, caps)),
		WorkRoot: file.Config.Layout.WorkRoot(), Limits: limits(file.Config.Limits, caps),
		Require: append([]string{}, file.Config.Require.Names()...),
	}
	if !slices.Contains(caps.Networks, driver.Network(out.Network)) {
		return errdefs.New(errdefs.Unsupported, "check "+path, fmt.Sprintf("backend %s has no network %q", file.BackendName, out.Network))
	}
	mounts, faults, refusals := file.Config.Layout.Resolve(caps)
	if len(faults)+len(refusals) > 0 {
		return errdefs.New(errdefs.Invalid, "check "+path, append(faults, refusals...)...)
	}
	for _, m := range mounts {
		out.Mounts = append(out.Mounts, mountLine(m))
	}
	if out.File, err = file.Redacted(); err != nil {
		return errdefs.Wrap(errdefs.Internal, "check "+path, err)
	}
	return a.printIndented(out)
}

// network is the one that is used when the file names none.
func network(asked driver.Network, caps driver.Capabilities) driver.Network {
	if asked != "" {
		return asked
	}
	ungated := slices.DeleteFunc(slices.Clone(caps.Networks), func(n driver.Network) bool { return n == driver.NetworkGated })
	if len(ungated) == 1 {
		return ungated[0]
	}
	return driver.NetworkNone
}

// limits fills in the defaults that the backend could keep.
func limits(asked driver.Limits, caps driver.Capabilities) driver.Limits {
	if asked.MemoryBytes == 0 && caps.Memory == driver.Enforced {
		asked.MemoryBytes = berm.DefaultMemoryBytes
	}
	if asked.Processes == 0 && caps.Processes == driver.Enforced {
		asked.Processes = berm.DefaultProcesses
	}
	if asked.DiskBytes == 0 && caps.Disk == driver.Enforced {
		asked.DiskBytes = berm.DefaultDiskBytes
	}
	return asked
}
