// Package first runs the agent's light modes, exec, probe and detach, before the rest of
// the program is initialised. Only the agent's main imports it.
//
// Go initialises packages in the order of their import paths, as far as their
// own imports allow. This one needs little and sorts before the protobuf and
// HTTP packages, whose initialisation would be a third of a marked command's
// start.
package first

import (
	"os"

	"github.com/berm-dev/berm/internal/agent/detach"
	"github.com/berm-dev/berm/internal/agent/execmode"
	"github.com/berm-dev/berm/internal/agent/probe"
)

var status, ran = attempt()

func attempt() (int, bool) {
	if len(os.Args) < 2 {
		return 0, false
	}
	switch args := os.Args[2:]; os.Args[1] {
	case "exec":
		if !isProbe(args) {
			return execmode.Main(args), true
		}
		// The program is this one, and runs already: with the limits, the mark and
		// the filter of a command. To execute it again would change nothing of that
		// and take half of the probe's time.
		if exit, ok := execmode.Enter(args); !ok {
			return exit, true
		}
		execmode.Entered()
		os.Exit(probe.Main()) //nolint:forbid // this is before main, and instead of it
	case "probe":
		// The rest of the initialisation would only delay the answer's end.
		os.Exit(probe.Main()) //nolint:forbid // this is before main, and instead of it
	case "detach":
		os.Exit(detach.Main(args)) //nolint:forbid // this is before main, and instead of it
	}
	return 0, false
}

// isProbe recognises the probe among the programs that the exec mode starts.
func isProbe(args []string) bool {
	return len(args) == 4 && args[1] == "/proc/self/exe" && args[3] == "probe"
}

// Status is the exit status of a start that failed; ran is false when the
// program was not started in exec mode. A start that succeeded does not come
// back, and neither does a probe.
func Status() (exit int, failed bool) { return status, ran }
