package posture

import "slices"

// Claim names one measurable statement about a sandbox.
type Claim string

// The claims that the tiers built so far make.
const (
	MountNamespace   Claim = "mount-namespace"
	UserNamespace    Claim = "user-namespace"
	UnprivilegedUID  Claim = "unprivileged-uid"
	NoCapabilities   Claim = "no-capabilities"
	NoNewPrivileges  Claim = "no-new-privileges"
	SyscallFilter    Claim = "syscall-filter"
	ReadOnlySystem   Claim = "read-only-system"
	AgentShielded    Claim = "agent-shielded"
	NetworkNamespace Claim = "network-namespace"
	NoRoutes         Claim = "no-routes"
	NoOutsideSocket  Claim = "no-outside-socket"
	EgressGate       Claim = "egress-gate"
	PIDNamespace     Claim = "pid-namespace"
	IPCNamespace     Claim = "ipc-namespace"
	UTSNamespace     Claim = "uts-namespace"
	CgroupNamespace  Claim = "cgroup-namespace"
	MemoryLimit      Claim = "memory-limit"
	ProcessLimit     Claim = "process-limit"
	TmpfsLimit       Claim = "tmpfs-limit"
)

// Rule says which dimension a claim belongs to and whose word counts for it.
type Rule struct {
	Claim     Claim
	Dimension Dimension
	Witness   Witness
}

// Table is the list of claims that one tier has to prove.
type Table []Rule

// WithGate is the table of a sandbox on network gated: besides having no other way
// out, it has given the host the one that there is. A tier without claims has
// none more.
func (t Table) WithGate() Table {
	if len(t) == 0 {
		return t
	}
	return append(slices.Clone(t), Rule{EgressGate, Network, Host})
}

// TableFor returns the claims of a tier ("process", ...), nil for a tier that
// promises nothing. What the kernel keeps per process is told by the probe;
// what an outsider can read (namespace inodes, uid maps, cgroup files) is told
// by the host, because the sandbox could lie about it.
func TableFor(tier string) Table {
	if tier != "process" {
		return nil
	}
	return Table{
		{MountNamespace, Filesystem, Host},
		{UserNamespace, Filesystem, Host},
		{UnprivilegedUID, Filesystem, Host},
		{NoCapabilities, Filesystem, Probe},
		{NoNewPrivileges, Filesystem, Probe},
		{SyscallFilter, Filesystem, Probe},
		{ReadOnlySystem, Filesystem, Probe},
		{NetworkNamespace, Network, Host},
		{NoRoutes, Network, Probe},
		{NoOutsideSocket, Network, Probe},
		{PIDNamespace, Processes, Host},
		{IPCNamespace, Processes, Host},
		{UTSNamespace, Processes, Host},
		{CgroupNamespace, Processes, Host},
		{AgentShielded, Processes, Probe},
		{MemoryLimit, Limits, Host},
		{ProcessLimit, Limits, Host},
		{TmpfsLimit, Limits, Probe},
	}
}
