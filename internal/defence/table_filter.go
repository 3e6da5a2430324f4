package defence

// filterRows: what the system call filter refuses.
var filterRows = [...]Entry{
	{
		Name: FilterInstalled, Where: "backend/process/args_linux.go",
		Keeps:  "every call that the other rows of the filter name",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/filter", Any}},
	},
	{
		Name: FilterLowHalf, Where: "backend/process/seccomp/compile.go",
		Keeps:  "calls whose argument differs in bits that the kernel does not look at, as TIOCSTI | 1<<32",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterSockets, Where: "backend/process/seccomp/policy.go",
		Keeps:  "address families that few have tested, and vsock past the network namespace",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterTerminals, Where: "backend/process/seccomp/policy.go",
		Keeps:  "typing into a terminal that is shared (TIOCSTI, TIOCLINUX)",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterSetID, Where: "backend/process/seccomp/native_amd64.go",
		Keeps:  "set-id files in shared directories, by every call that takes a mode",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterDevices, Where: "backend/process/seccomp/native_amd64.go",
		Keeps:  "device nodes and whiteouts in shared directories",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterNamespaces, Where: "backend/process/seccomp/policy.go",
		Keeps:  "new namespaces, and the kernel code behind them that is meant for root",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterPersonality, Where: "backend/process/seccomp/policy.go",
		Keeps:  "old ABIs and weakened memory layouts",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterAgentLimits, Where: "backend/process/seccomp/policy.go",
		Keeps:  "limits that a payload would put on the agent",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterAgentPriority, Where: "backend/process/seccomp/policy.go",
		Keeps:  "a payload that slows the agent down",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterForgedSignals, Where: "backend/process/seccomp/policy.go",
		Keeps:  "signals that the agent would take for a fault of its own",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterFileLeases, Where: "backend/process/seccomp/policy.go",
		Keeps:  "leases that hold up the opening of shared files by the host",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterKernel, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "kernel interfaces with a history of holes: bpf, perf, userfaultfd, io_uring, fanotify",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterAdministration, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "what is for the administrator: modules, kexec, swap, reboot, quotas, the kernel log",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterMounts, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "changes of what is mounted, by old calls and new",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterSetNS, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "the way into namespaces of others",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterFileHandles, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "files opened by number, past every directory",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterClock, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "setting the host's clock",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterKeyrings, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "keyrings, which belong to no namespace",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterAsyncIO, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "one payload's use of all asynchronous contexts of the machine",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterSecretMemory, Where: "backend/process/seccomp/refusals.go",
		Keeps:  "memory that nobody can look at",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterHardware, Where: "backend/process/seccomp/native_amd64.go",
		Keeps:  "ports of the machine (iopl, ioperm)",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
	{
		Name: FilterForeignABI, Where: "backend/process/seccomp/policy.go",
		Keeps:  "calls by another architecture's numbers, past every rule",
		Proofs: []Proof{{"backend/process/seccomp", "TestForeignABIs|TestForeign", Any}},
	},
	{
		Name: FilterX32, Where: "backend/process/seccomp/policy.go",
		Keeps:  "calls by the numbers of x32, past every rule",
		Proofs: []Proof{{"backend/process/seccomp", "TestDifferential|TestForeign", Any}},
	},
	{
		Name: FilterNewCalls, Where: "backend/process/seccomp/policy.go",
		Keeps:  "calls that are newer than the rules",
		Proofs: []Proof{{"backend/process/seccomp", "TestPolicy|TestKernel", Any}},
	},
}
