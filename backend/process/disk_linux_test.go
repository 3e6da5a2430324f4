package process

import (
	"slices"
	"testing"

	"github.com/berm-dev/berm/driver"
)

func TestSizedPathsAreTheSandboxesOwn(t *testing.T) {
	t.Parallel()
	outputs := driver.Mount{Name: "outputs", Dest: driver.OutputsPath, Writable: true}
	for _, c := range []struct {
		mounts []driver.Mount
		want   []string
	}{
		{[]driver.Mount{outputs}, []string{tmpPath, homePath, shmPath, driver.OutputsPath}},
		{[]driver.Mount{{Dest: driver.ScratchPath}, {Source: "/srv", Dest: driver.UploadsPath, Writable: true}}, []string{tmpPath, homePath, shmPath}},
		// The host's file system is nobody's limit.
		{[]driver.Mount{{Source: "/srv", Dest: "/tmp", Writable: true}, {Source: "/srv", Dest: "/home", Writable: true}}, []string{shmPath}},
		{[]driver.Mount{{Dest: "/tmp", Writable: true}}, []string{homePath, shmPath, tmpPath}},
	} {
		if got := sizedPaths(c.mounts); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.mounts, got, c.want)
		}
	}
}
