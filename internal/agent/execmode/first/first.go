// Package first runs the agent's exec mode before the rest of the program is
// initialised. Only the agent's main imports it.
//
// Go initialises packages in the order of their import paths, as far as their
// own imports allow. This one needs little and sorts before the protobuf and
// HTTP packages, whose initialisation would be a third of a marked command's
// start.
package first

import (
	"os"

	"github.com/berm-dev/berm/internal/agent/execmode"
)

var status, ran = attempt()

func attempt() (int, bool) {
	if len(os.Args) < 2 || os.Args[1] != "exec" {
		return 0, false
	}
	return execmode.Main(os.Args[2:]), true
}

// Status is the exit status of a start that failed; ran is false when the
// program was not started in exec mode. A start that succeeded does not come
// back.
func Status() (exit int, failed bool) { return status, ran }
