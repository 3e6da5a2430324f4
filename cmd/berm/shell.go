package main

import (
	"github.com/spf13/cobra"

	"github.com/berm-dev/berm/errdefs"
)

const shellName = "shell"

// shellCommand is `berm run --tty` with the sandbox's own shell.
func (a *app) shellCommand() *cobra.Command {
	f := &runFlags{tty: true}
	cmd := &cobra.Command{
		Use:   shellName + " [flags]",
		Short: "Open a shell on this terminal in a new sandbox",
		Long: `Open a login shell in a new sandbox, on the terminal that berm was started on, and
remove the sandbox when the shell ends. Flags, files and exit status are those of
berm run.`,
		Example: `  berm shell
  berm shell --workdir . --memory 4GiB
  berm shell --allow .example.com
  berm shell --network host`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return errdefs.New(errdefs.Invalid, "", "a shell takes no command; write: berm run --tty -- COMMAND [ARG...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.said(cmd)
			// The agent knows which shells there are.
			return a.run(cmd.Context(), f, []string{"sh", "-c", `exec "$SHELL" -l`})
		},
	}
	f.add(cmd)
	return cmd
}
