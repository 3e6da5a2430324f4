// Command berm-agent is the program inside a sandbox. The backends start it;
// nobody needs to. Payloads that know no HTTP proxy reach the egress gate with
// its connect mode.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/berm-dev/berm/backend/process/launch"
	"github.com/berm-dev/berm/internal/agent"
	"github.com/berm-dev/berm/internal/agent/connect"
	"github.com/berm-dev/berm/internal/agent/execmode/first"
)

// controlDescriptor is where a backend leaves the control socket.
const controlDescriptor = 3

func main() { os.Exit(run(os.Args[1:])) }

// run carries out one mode and gives the exit status.
func run(args []string) int {
	// The light modes are over before main begins; only a failure of the exec mode
	// gets here.
	if exit, failed := first.Status(); failed {
		return exit
	}
	mode := ""
	if len(args) > 0 {
		mode = args[0]
	}
	switch mode {
	case "serve":
		return status(agent.Run(context.Background(), controlDescriptor))
	case "launch":
		return status(launch.Main(os.Stdin))
	case "connect":
		return connect.Main(context.Background(), args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	case "version":
		fmt.Println(version())
		return 0
	}
	fmt.Fprintln(os.Stderr, "usage: berm-agent serve|launch|exec|probe|detach|connect|version")
	return 2
}

func status(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "berm-agent:", err)
		return 1
	}
	return 0
}

// version is the module's version and the revision that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "berm-agent (unknown)"
	}
	out := "berm-agent " + info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			out += " " + setting.Value
		}
	}
	return out
}
