package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// kitConnector is the agent's program in the kit.
const kitConnector = "berm-agent"

// connector says where bubblewrap takes the agent's program from, for payloads
// that start its connect mode. The agent itself never runs from there: it is a
// file like any other of the system's.
type connector struct {
	// fd is the descriptor of the content, 0 for the kit's copy.
	fd int
}

func (c connector) options(kit string) []string {
	if c.fd > 0 {
		return []string{"--perms", "0555", "--ro-bind-data", strconv.Itoa(c.fd), connectorPath}
	}
	return []string{"--ro-bind", filepath.Join(kit, kitConnector), connectorPath}
}

// connector makes the program ready. One copy in the kit serves all sandboxes;
// where that lies on a file system without programs, each has its own.
func (d *bubble) connector(in *inheritance) (connector, error) {
	if d.ownConnectors {
		content, err := reopen(d.agent)
		if err != nil {
			return connector{}, fmt.Errorf("prepare the connector: %w", err)
		}
		return connector{fd: in.own(content)}, nil
	}
	d.connecting.Lock()
	defer d.connecting.Unlock()
	if d.connects {
		return connector{}, nil
	}
	if err := d.copyAgent(d.kit.path(kitConnector)); err != nil {
		return connector{}, fmt.Errorf("prepare the connector: %w", err)
	}
	d.connects = true
	return connector{}, nil
}

// mountedNoexec reports whether programs in dir cannot be executed, as on the
// shared memory of most containers.
func mountedNoexec(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0
}

// copyAgent writes the program where nobody can have put anything: the kit is
// the caller's own.
func (d *bubble) copyAgent(dest string) error {
	content, err := reopen(d.agent)
	if err != nil {
		return err
	}
	defer content.Close()
	file, err := os.OpenFile(dest, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Chmod(0o555), file.Close())
}
