package posture

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berm-dev/berm/internal/defence"
)

// ProbeReport is what a probe child saw, raw.
type ProbeReport struct {
	// Capabilities are the five sets in the order inheritable, permitted,
	// effective, bounding, ambient, in hexadecimal.
	Capabilities    [5]string
	NoNewPrivileges bool
	SeccompMode     uint32
	// Writable are those of the tried paths that could be opened for writing.
	Writable []string
	// Routes are routing table lines that do not belong to loopback.
	Routes []string
	// Connected are those of the tried sockets that answered.
	Connected []string
	// Sizes are the bytes of the file systems that were asked for, in order.
	Sizes         []uint64
	AgentReadable bool
}

// ProbeWant is what the host asked the probe to try, and what has to come out.
type ProbeWant struct {
	// WritableControl is a path that must be found writable: a probe that could
	// not write anywhere has measured nothing.
	WritableControl string
	// OutsideReachable says that the host itself reached the probe socket: the
	// positive control of the connection attempt.
	OutsideReachable bool
	// DiskBytes bounds the sum of the sizes; 0 for no bound.
	DiskBytes int64
	// SizePaths is how many sizes were asked for.
	SizePaths int
}

// Judge turns a report into facts with Probe as witness.
func (r ProbeReport) Judge(want ProbeWant) []Fact {
	facts := []Fact{
		r.capabilities(),
		{Claim: NoNewPrivileges, Held: r.NoNewPrivileges, Detail: fmt.Sprintf("no_new_privs is %t", r.NoNewPrivileges)},
		{Claim: SyscallFilter, Held: r.SeccompMode == 2, Detail: fmt.Sprintf("seccomp mode is %d", r.SeccompMode)},
		r.readOnly(want),
		{Claim: AgentShielded, Held: !r.AgentReadable, Detail: fmt.Sprintf("agent readable is %t", r.AgentReadable)},
		{Claim: NoRoutes, Held: len(r.Routes) == 0, Detail: fmt.Sprintf("%d routes beyond loopback", len(r.Routes))},
		r.outside(want),
		r.sizes(want),
	}
	for i := range facts {
		facts[i].Witness = Probe
	}
	return facts
}

func (r ProbeReport) capabilities() Fact {
	fact := Fact{Claim: NoCapabilities, Held: true, Detail: "all five sets are empty"}
	for i, set := range r.Capabilities {
		if set == "" || strings.Trim(set, "0") != "" {
			fact.Held = false
			fact.Detail = fmt.Sprintf("capability set %d is %q", i, set)
		}
	}
	return fact
}

func (r ProbeReport) readOnly(want ProbeWant) Fact {
	others := slices.DeleteFunc(slices.Clone(r.Writable), func(p string) bool { return p == want.WritableControl })
	switch {
	case len(others) > 0:
		return Fact{Claim: ReadOnlySystem, Detail: "could write " + strings.Join(others, ", ")}
	case !slices.Contains(r.Writable, want.WritableControl) && !defence.PostureControls.Off():
		return Fact{Claim: ReadOnlySystem, Detail: "the positive control failed: could not write " + want.WritableControl}
	}
	return Fact{Claim: ReadOnlySystem, Held: true, Detail: "only " + want.WritableControl + " could be written"}
}

func (r ProbeReport) outside(want ProbeWant) Fact {
	switch {
	case !want.OutsideReachable && !defence.PostureControls.Off():
		return Fact{Claim: NoOutsideSocket, Detail: "the positive control failed: the host did not reach its own socket"}
	case len(r.Connected) > 0:
		return Fact{Claim: NoOutsideSocket, Detail: "a socket of the host answered"}
	}
	return Fact{Claim: NoOutsideSocket, Held: true, Detail: "a socket that the host reaches did not answer inside"}
}

func (r ProbeReport) sizes(want ProbeWant) Fact {
	fact := Fact{Claim: TmpfsLimit}
	if len(r.Sizes) != want.SizePaths || want.SizePaths == 0 {
		fact.Detail = "sizes were not measured"
		return fact
	}
	var sum uint64
	for _, size := range r.Sizes {
		if (size == 0 || size > 1<<62 || sum > 1<<62) && !defence.PostureSizes.Off() {
			fact.Detail = "a file system has no bound"
			return fact
		}
		sum += size
	}
	fact.Held = want.DiskBytes > 0 && sum <= uint64(want.DiskBytes)
	fact.Detail = fmt.Sprintf("%d bytes in all, limit %d", sum, want.DiskBytes)
	return fact
}
