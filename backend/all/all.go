// Package all lists the backends that a program links. It is a plain list, so
// that nothing happens by importing a backend.
package all

import (
	"github.com/berm-dev/berm/backend/passthrough"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/driver"
)

// Factories lists every backend that a person may choose, the default first.
// The fake is for tests and is not among them.
func Factories() []driver.Factory {
	return []driver.Factory{process.Factory(), passthrough.Factory()}
}
