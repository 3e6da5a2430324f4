//go:build !linux

package passthrough

import (
	"context"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// open refuses: the agent is a Linux program.
func open(context.Context, driver.Host) (driver.Driver, error) {
	return nil, refused(errdefs.Unavailable, "open", "the agent runs on Linux only")
}
