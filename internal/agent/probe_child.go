package agent

import (
	"io"

	"github.com/berm-dev/berm/internal/agent/probe"
)

// RunProbe is package probe's Run, for programs that are an agent among other
// things, as test binaries are.
func RunProbe(stdin io.Reader, stdout io.Writer) error { return probe.Run(stdin, stdout) }
