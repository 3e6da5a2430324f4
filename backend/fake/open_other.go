//go:build !linux

package fake

import (
	"context"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// open refuses: the agent is a Linux program.
func open(context.Context, driver.Host, driver.Capabilities) (driver.Driver, error) {
	return nil, &errdefs.Error{Kind: errdefs.Unavailable, Op: "open", Backend: Name, Reasons: []string{"the agent runs on Linux only"}}
}
