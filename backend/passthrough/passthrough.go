// Package passthrough runs commands as plain processes of the host, for people
// who want berm's API and accept that there is no wall at all. It has to be
// asked for by name (Config.Allow); every isolation claim is false, paths are
// the host's own, and the network is the host's.
//
// The agent is the same program as on every other backend, started as a child
// in a session of its own with an empty environment. It adopts and can find all
// descendants of its commands, so a command's tree still ends as a whole.
package passthrough

import (
	"context"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// Name is the backend's name.
const Name = "passthrough"

// Config is the backend's configuration. The zero value refuses to open.
type Config struct {
	// Allow says that the caller knows that nothing is isolated. Without it Open
	// returns Unsupported.
	Allow bool
}

var _ driver.Backend = Config{}

// Declare says what any host gives: no isolation, the host's network, and
// whole-tree kills.
func (Config) Declare() driver.Capabilities {
	return driver.Capabilities{
		Backend:  Name,
		Tier:     driver.TierPassthrough,
		Networks: []driver.Network{driver.NetworkHost},
		Memory:   driver.Partial,
		TreeKill: driver.KillMark,
		HostDirs: true,
		Notes: []string{
			"Nothing is isolated: commands are processes of the host, with the caller's files, network and identity",
			"Paths inside are the host's own; only the working directory can be chosen",
			"The memory limit holds for each process by itself, not for the sandbox",
		},
	}
}

// Open returns the driver. It starts nothing. Errors: Unsupported without Allow,
// Unavailable on hosts other than Linux.
func (c Config) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	if !c.Allow {
		cause, reasons := driver.Unready(driver.Diagnosis{Problems: []driver.Problem{{
			Reason: "passthrough isolates nothing and has to be allowed by name", Fix: "allow: true", Fatal: true,
		}}})
		return nil, &errdefs.Error{Kind: errdefs.Unsupported, Op: "open", Backend: Name, Reasons: reasons, Err: cause}
	}
	return open(ctx, host)
}

// Factory describes the backend to the configuration reader.
func Factory() driver.Factory {
	return driver.Factory{
		Tier:    driver.TierPassthrough,
		Name:    Name,
		Default: func() driver.Backend { return Config{} },
		Decode:  decode,
		Keys:    []string{"allow"},
	}
}

// decode reads the fields of a configuration object.
func decode(fields *driver.Fields) (driver.Backend, []string) {
	var c Config
	if reason := driver.Take(fields, "allow", &c.Allow); reason != "" {
		return nil, []string{reason}
	}
	return c, nil
}

// refused builds an error of this backend.
func refused(kind errdefs.Kind, op string, reasons ...string) *errdefs.Error {
	return &errdefs.Error{Kind: kind, Op: op, Backend: Name, Reasons: reasons}
}
