package defence

// agentRows: the agent, its commands and its work on files.
var agentRows = [...]Entry{
	{
		Name: AgentNotDumpable, Where: "internal/agent/run.go",
		Keeps:  "reading the agent's memory, environment and descriptors",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/agent", Any}},
	},
	{
		Name: AgentCores, Where: "internal/agent/run.go",
		Keeps:  "core files and the program that the kernel pipes them to",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/cores", Root}},
	},
	{
		Name: AgentDescriptors, Where: "internal/agent/run.go",
		Keeps:  "what bubblewrap left open",
		Proofs: []Proof{{"internal/agent", "TestInheritedDescriptorsStayOut", Any}},
	},
	{
		Name: AgentSignals, Where: "internal/agent/run.go",
		Keeps:  "a payload that ends the agent by a signal",
		Proofs: []Proof{{"internal/agent", "TestAgentOutlivesSignals", Any}},
	},
	{
		Name: AgentReaps, Where: "internal/agent/process_reap.go",
		Keeps:  "dead orphans that use up the limit on processes",
		Proofs: []Proof{{"internal/agent", "TestOrphansAreCollected", Any}},
	},
	{
		Name: AgentHeaderSize, Where: "internal/agent/serve.go",
		Keeps:  "a request with an endless header",
		Proofs: []Proof{{"internal/agent", "TestRequestsAreBounded", Any}},
	},
	{
		Name: AgentMessageSize, Where: "internal/agent/agent.go",
		Keeps:  "a request with an endless message",
		Proofs: []Proof{{"internal/agent", "TestRequestsAreBounded", Any}},
	},
	{
		Name: AgentEndsWithLink, Where: "internal/agent/serve.go",
		Keeps:  "a sandbox that outlives its host program",
		With:   []Defence{DieWithParent},
		Proofs: []Proof{{"backend/process", "TestKilledHostTakesItsSandboxWithIt", User}},
	},
	{
		Name: PayloadDescriptors, Where: "internal/agent/run.go",
		Keeps:  "a payload that uses up the descriptors which the host may send",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/descriptors", Any}},
	},
	{
		Name: StarterApart, Where: "internal/agent/spawn.go",
		Keeps:  "payloads that have the kernel end their agent for the memory that they take",
		Proofs: []Proof{{"backend/process/attack", "TestWhoFillsTmpEndsAlone", Root}},
	},
	{
		Name: PayloadSignals, Where: "internal/agent/run.go",
		Keeps:  "a payload that uses up the signals and timers of its user's other programs",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/signals", Any}},
	},
	{
		Name: CommandEnvironment, Where: "internal/agent/process_plan.go",
		Keeps:  "the agent's environment in commands",
		Proofs: []Proof{{"internal/agent", "TestDescriptorsAndEnvironment", Any}},
	},
	{
		Name: CommandWithoutNUL, Where: "internal/agent/process_plan.go",
		Keeps:  "arguments that execve would cut",
		Proofs: []Proof{{"internal/agent", "TestRefusedRequests", Any}},
	},
	{
		Name: CommandSession, Where: "internal/agent/spawn.go",
		Keeps:  "signals of one command to another, and to the agent",
		Proofs: []Proof{{"internal/agent", "TestCommandsHaveSessionsOfTheirOwn", Any}},
	},
	{
		Name: CommandCgroup, Where: "internal/agent/tree.go",
		Keeps:  "daemons that outlive their command, with cgroups",
		Proofs: []Proof{{"internal/agent", "TestTreesEndWhole/cgroup/timeout", Root}},
	},
	{
		Name: CommandMark, Where: "internal/agent/tree.go",
		Keeps:  "daemons that outlive their command, without cgroups",
		Proofs: []Proof{{"internal/agent", "TestTreesEndWhole/mark/timeout", Any}},
	},
	{
		Name: CommandMarkKept, Where: "internal/agent/execmode/execmode.go",
		Keeps:  "a process that sheds its mark",
		Proofs: []Proof{{"internal/agent", "TestMarkCannotBeShed", Any}},
	},
	{
		Name: CommandHeadless, Where: "internal/agent/tree_cgroup.go",
		Keeps:  "a process whose first thread has ended, which the kill of a cgroup misses",
		Proofs: []Proof{{"backend/process", "TestConformance/timeout/headless", Root}},
	},
	{
		Name: CommandTimeout, Where: "internal/agent/process_start.go",
		Keeps:  "a command that does not end",
		Proofs: []Proof{{"backend/process", "TestConformance/timeout/fires", Any}},
	},
	{
		Name: CommandEndsWithStream, Where: "internal/agent/process.go",
		Keeps:  "a command whose caller has gone",
		Proofs: []Proof{{"internal/agent", "TestTreesEndWhole/mark/cancel", Any}},
	},
	{
		Name: RlimitProcesses, Where: "internal/agent/execmode/execmode.go",
		Keeps:  "using up the host's processes, without cgroups",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/rlimits", User}},
	},
	{
		Name: RlimitData, Where: "internal/agent/execmode/execmode.go",
		Keeps:  "using up the host's memory by one process, without cgroups",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/rlimits", User}},
	},
	{
		Name: SlowFollowers, Where: "internal/agent/process_subscriber.go",
		Keeps:  "a follower that holds up a command of another's",
		Proofs: []Proof{{"internal/agent", "TestSlowSubscriberIsDropped", Any}}, Hangs: true,
	},
	{
		Name: EndsForgotten, Where: "internal/agent/process_table.go",
		Keeps:  "memory for every command that ever ended",
		Proofs: []Proof{{"internal/agent", "TestEndsAreForgotten", Any}},
	},
	{
		Name: TunnelCount, Where: "internal/agent/tunnel.go",
		Keeps:  "tunnels without number",
		Proofs: []Proof{{"internal/agent", "TestTunnelsAreCounted", Any}},
	},
	{
		Name: ProbeItems, Where: "internal/agent/probe.go",
		Keeps:  "a probe without end",
		Proofs: []Proof{{"internal/agent", "TestProbeListsAreBounded", Any}},
	},
	{
		Name: FilesMode, Where: "internal/agent/files.go",
		Keeps:  "set-id bits by way of the agent",
		Proofs: []Proof{{"internal/agent", "TestFilesRefusals", Any}},
	},
	{
		Name: FilesUser, Where: "internal/agent/files_http.go",
		Keeps:  "another user's name",
		Proofs: []Proof{{"internal/agent", "TestFilesRefusals", Any}},
	},
	{
		Name: FilesDepth, Where: "internal/agent/files.go",
		Keeps:  "a listing that uses up the agent's descriptors",
		Proofs: []Proof{{"internal/agent", "TestFilesystemForEnvdClients", Any}},
	},
	{
		Name: FilesListing, Where: "internal/agent/files_local.go",
		Keeps:  "a listing larger than a message",
		Proofs: []Proof{{"internal/agent", "TestListingsAreBounded", Any}},
	},
	{
		Name: FilesWhole, Where: "internal/agent/files_encoding.go",
		Keeps:  "half an upload that passes for a file",
		Proofs: []Proof{{"internal/agent", "TestHalfABodyIsNoFile", Any}},
	},
	{
		Name: FilesProcfs, Where: "internal/agent/files_io.go",
		Keeps:  "what belongs to the agent in /proc, by the agent's own hand",
		Proofs: []Proof{{"internal/agentclient", "TestProcfsIsOutOfReach", User}},
	},
	{
		Name: FilesRegular, Where: "internal/agent/files_io.go",
		Keeps:  "FIFOs that hang the agent, and devices that act",
		Proofs: []Proof{{"internal/agentclient", "TestOnlyRegularFiles", User}},
	},
	{
		Name: FilesAtomic, Where: "internal/agent/files_io.go",
		Keeps:  "readers that see half a file",
		Proofs: []Proof{{"backend/process", "TestConformance/atomic/never-half", Any}},
	},
	{
		Name: FilesDraftRemoved, Where: "internal/agent/files_io.go",
		Keeps:  "drafts of broken uploads",
		Proofs: []Proof{{"internal/agentclient", "TestCreateThatBreaksLeavesNothing", Any}},
	},
	{
		Name: FilesExclusive, Where: "internal/agent/files_io.go",
		Keeps:  "replacing a file that was to be new",
		Proofs: []Proof{{"internal/agent", "TestFilesOverHTTP", Any}},
	},
	{
		Name: FilesMovedTrees, Where: "internal/agent/files_remove.go",
		Keeps:  "a removal that follows a tree which was moved away",
		Proofs: []Proof{{"internal/agent", "TestRemovalDoesNotFollowAMovedTree", Any}},
	},
	{
		Name: FilesLinkLoops, Where: "internal/agent/files_walk.go",
		Keeps:  "links without end",
		Proofs: []Proof{{"internal/agent", "TestChainsOfLinksEnd", Any}},
	},
	{
		Name: FilesLinkLength, Where: "internal/agent/files_walk.go",
		Keeps:  "links that grow a path without end",
		Proofs: []Proof{{"internal/agent", "TestChainsOfLinksEnd", Any}},
	},
}
