package process

import (
	"fmt"

	"github.com/berm-dev/berm/driver"
)

// defaultDisk is used where a caller of the driver gives no disk limit: a file
// system without a size could take half of the host's memory.
const defaultDisk = 512 << 20

// pageSize is the granularity of an in-memory file system's size. It is also the
// least size; zero would mean no limit.
const pageSize = 64 << 10

// The parts of the disk limit, out of the sum of all parts of a sandbox.
const (
	tmpParts       = 8
	ephemeralParts = 8
	homeParts      = 4
	shmParts       = 4
	runParts       = 1
	trustParts     = 1
)

// Paths of the file systems that every sandbox has.
const (
	tmpPath  = "/tmp"
	homePath = "/home/user"
	shmPath  = "/dev/shm"
	runPath  = "/run"
)

// splitDisk gives each in-memory file system its size in bytes, by path. The sum
// never exceeds total. Mounts with a source take no part. With a gate there is
// one more, for certificates.
func splitDisk(total int64, mounts []driver.Mount, network driver.Network) (map[string]int64, error) {
	if total == 0 {
		total = defaultDisk
	}
	parts := map[string]int64{tmpPath: tmpParts, homePath: homeParts, shmPath: shmParts, runPath: runParts}
	if network == driver.NetworkGated {
		parts[driver.TrustPath] = trustParts
	}
	for _, m := range mounts {
		if m.Source == "" {
			parts[m.Dest] = ephemeralParts
		}
	}
	var sum int64
	for _, p := range parts {
		sum += p
	}
	if least := sum * pageSize; total < least {
		return nil, fmt.Errorf("a disk limit of %d bytes is too small: this layout needs at least %d", total, least)
	}
	sizes := make(map[string]int64, len(parts))
	for path, p := range parts {
		sizes[path] = total / sum * p / pageSize * pageSize
	}
	return sizes, nil
}
