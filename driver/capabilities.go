package driver

import (
	"fmt"
	"slices"

	"github.com/berm-dev/berm/posture"
)

// Tier is the kind of boundary.
type Tier string

// The tiers.
const (
	TierProcess     Tier = "process"
	TierContainer   Tier = "container"
	TierMicroVM     Tier = "microvm"
	TierPassthrough Tier = "passthrough"
)

// Capabilities is what a backend (Declare) or an opened driver can do. It is
// data: what is not named here returns Unsupported.
type Capabilities struct {
	// Backend is the backend's name: "process".
	Backend string `json:"backend"`
	Tier    Tier   `json:"tier"`
	// Isolation is what a machine with network none is promised to have.
	Isolation posture.Isolation `json:"isolation"`
	// Networks lists the networks that a Spec may name.
	Networks []Network `json:"networks"`
	// Memory, Processes, CPUs and Disk say how each limit is kept.
	Memory    Enforcement `json:"memory"`
	Processes Enforcement `json:"processes"`
	CPUs      Enforcement `json:"cpus"`
	Disk      Enforcement `json:"disk"`
	TreeKill  TreeKill    `json:"treeKill"`
	// HostDirs: Mounts may have a host directory as Source.
	HostDirs bool `json:"hostDirs"`
	// ContainedPaths: paths inside are a file system of the machine's own. When
	// false they are the host's.
	ContainedPaths bool `json:"containedPaths"`
	// Notes are facts that a person should know, one sentence each.
	Notes []string `json:"notes,omitempty"`
}

// Exceeds lists what c claims beyond bound, one sentence each: a driver may not
// claim more than its backend declared.
func (c Capabilities) Exceeds(bound Capabilities) []string {
	var out []string
	if c.Backend != bound.Backend || c.Tier != bound.Tier {
		out = append(out, fmt.Sprintf("is %s/%s, declared %s/%s", c.Tier, c.Backend, bound.Tier, bound.Backend))
	}
	for _, d := range c.Isolation.Missing(bound.Isolation) {
		out = append(out, fmt.Sprintf("isolation %s is not declared", d))
	}
	for _, n := range c.Networks {
		if !slices.Contains(bound.Networks, n) {
			out = append(out, fmt.Sprintf("network %s is not declared", n))
		}
	}
	for _, limit := range []struct {
		name        string
		have, bound Enforcement
	}{
		{"memory", c.Memory, bound.Memory},
		{"processes", c.Processes, bound.Processes},
		{"cpus", c.CPUs, bound.CPUs},
		{"disk", c.Disk, bound.Disk},
	} {
		if limit.have.rank() > limit.bound.rank() {
			out = append(out, fmt.Sprintf("limit %s is %s, declared %q", limit.name, limit.have, limit.bound))
		}
	}
	if c.TreeKill.rank() > bound.TreeKill.rank() {
		out = append(out, fmt.Sprintf("tree kill is %s, declared %s", c.TreeKill, bound.TreeKill))
	}
	if c.HostDirs && !bound.HostDirs {
		out = append(out, "host directories are not declared")
	}
	if c.ContainedPaths && !bound.ContainedPaths {
		out = append(out, "contained paths are not declared")
	}
	return out
}

func (e Enforcement) rank() int {
	return slices.Index([]Enforcement{Unenforced, Partial, Enforced}, e)
}

func (k TreeKill) rank() int {
	return slices.Index([]TreeKill{KillGroup, KillMark, KillCgroup}, k)
}
