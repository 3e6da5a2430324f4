//go:build !linux

package process

import (
	"context"
	"runtime"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// elsewhere is what other systems get.
const elsewhere = "the process backend runs on Linux only, not yet on " + runtime.GOOS

func open(context.Context, Config, driver.Host) (driver.Driver, error) {
	return nil, refused(errdefs.Unavailable, "open", elsewhere)
}
