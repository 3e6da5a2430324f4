package process

import (
	"slices"

	"github.com/berm-dev/berm/driver"
)

// sizedPaths are the file systems of splitDisk that commands can write.
func sizedPaths(mounts []driver.Mount) []string {
	paths := []string{tmpPath, homePath, shmPath}
	for _, m := range mounts {
		// What is mounted over one takes its place.
		paths = slices.DeleteFunc(paths, func(path string) bool { return inside(path, m.Dest) })
		if m.Source == "" && m.Writable {
			paths = append(paths, m.Dest)
		}
	}
	return paths
}
