package defence

// hostRows: the host as a client of its agent, and what it promises its caller.
var hostRows = [...]Entry{
	{
		Name: ClientMessageSize, Where: "internal/agentclient/client.go",
		Keeps:  "a message that uses up the host's memory",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientListing, Where: "internal/agentclient/codec.go",
		Keeps:  "a listing whose entries use up the host's memory",
		Proofs: []Proof{{"internal/agentclient", "TestOneEntryTooMany", Any}},
	},
	{
		Name: ClientRedirects, Where: "internal/agentclient/client.go",
		Keeps:  "an agent that sends the host elsewhere",
		Proofs: []Proof{{"internal/agentclient", "TestNoRedirectIsFollowed", Any}},
	},
	{
		Name: ClientCompression, Where: "internal/agentclient/bulk.go",
		Keeps:  "content that grows when it is read",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenTransfers", Any}},
	},
	{
		Name: ClientLength, Where: "internal/agentclient/bulk.go",
		Keeps:  "half a file that passes for a whole one",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenTransfers", Any}},
	},
	{
		Name: ClientRange, Where: "internal/agentclient/bulk.go",
		Keeps:  "another part of a file than was asked for",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenTransfers", Any}},
	},
	{
		Name: ClientDeadline, Where: "internal/agentclient/client.go",
		Keeps:  "a call that never ends",
		Proofs: []Proof{{"internal/agentclient", "TestEveryCallHasADeadline", Any}},
	},
	{
		Name: ClientEndGrace, Where: "internal/agentclient/process.go",
		Keeps:  "a stream that does not end with its command",
		Proofs: []Proof{{"internal/agentclient", "TestEndSurvivesAStreamThatDoesNotEnd", Any}},
	},
	{
		Name: ClientText, Where: "internal/agentclient/fault.go",
		Keeps:  "control characters of the agent's in errors",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientPaths, Where: "internal/agentclient/client.go",
		Keeps:  "relative paths, which the agent would resolve",
		Proofs: []Proof{{"internal/agentclient", "TestPathsAreChecked", Any}},
	},
	{
		Name: ClientFileMode, Where: "internal/agentclient/entry.go",
		Keeps:  "kinds of files that do not exist",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenAnswers", Any}},
	},
	{
		Name: ClientFileSize, Where: "internal/agentclient/entry.go",
		Keeps:  "files of less than no bytes",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenAnswers", Any}},
	},
	{
		Name: ClientFileName, Where: "internal/agentclient/entry.go",
		Keeps:  "names in a listing that lead out of it",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenAnswers", Any}},
	},
	{
		Name: ClientFilePath, Where: "internal/agentclient/entry.go",
		Keeps:  "paths in a listing that lead out of it",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenAnswers", Any}},
	},
	{
		Name: ClientEventOrder, Where: "internal/agentclient/event.go",
		Keeps:  "events that contradict each other",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientOneEnd, Where: "internal/agentclient/process.go",
		Keeps:  "a command that ends twice",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientPID, Where: "internal/agentclient/event.go",
		Keeps:  "numbers that are no process",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientSignal, Where: "internal/agentclient/event.go",
		Keeps:  "numbers that are no signal",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientExitCode, Where: "internal/agentclient/event.go",
		Keeps:  "numbers that are no exit status",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientDuration, Where: "internal/agentclient/event.go",
		Keeps:  "a time that overflows",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientLingering, Where: "internal/agentclient/event.go",
		Keeps:  "a list of processes without end",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenStreams", Any}},
	},
	{
		Name: ClientProbeSets, Where: "internal/agentclient/probe.go",
		Keeps:  "sets of capabilities that are none",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenAnswers", Any}},
	},
	{
		Name: ClientProbeAnswers, Where: "internal/agentclient/probe.go",
		Keeps:  "answers to what was not asked",
		Proofs: []Proof{{"internal/agentclient", "TestProbeAnswersOnly", Any}},
	},
	{
		Name: PostureRequired, Where: "sandbox.go",
		Keeps:  "a sandbox whose wall was not seen to hold",
		Proofs: []Proof{{"backend/process", "TestConformance/posture/failed-fact", Any}},
	},
	{
		Name: PostureWitness, Where: "posture/posture.go",
		Keeps:  "the sandbox as a witness of what only an outsider can tell",
		Proofs: []Proof{{"posture", "TestEveryClaimIsNeeded", Any}},
	},
	{
		Name: PostureSilence, Where: "posture/posture.go",
		Keeps:  "claims that nobody measured",
		Proofs: []Proof{{"posture", "TestEveryClaimIsNeeded", Any}},
	},
	{
		Name: PostureEachReport, Where: "posture/posture.go",
		Keeps:  "one good report that hides a bad one",
		Proofs: []Proof{{"posture", "TestEveryClaimIsNeeded", Any}},
	},
	{
		Name: PostureControls, Where: "posture/probe.go",
		Keeps:  "measurements that would come out well on a broken machine",
		Proofs: []Proof{{"posture", "TestProbeReports", Any}},
	},
	{
		Name: PostureSizes, Where: "posture/probe.go",
		Keeps:  "file systems without a bound, and sums that overflow",
		Proofs: []Proof{{"posture", "TestProbeReports", Any}},
	},
	{
		Name: OutputCap, Where: "exec.go",
		Keeps:  "output that uses up the host's memory",
		Proofs: []Proof{{"backend/fake", "TestConformance/streams/cap", Any}},
	},
	{
		Name: MuteAgent, Where: "exec.go",
		Keeps:  "an agent that does not carry out a timeout",
		Proofs: []Proof{{".", "TestTimeoutHoldsAgainstAMuteAgent", Any}},
	},
	{
		Name: StartedStaysStarted, Where: "exec.go",
		Keeps:  "a command that ran and is said not to have",
		Proofs: []Proof{{".", "TestARunningCommandCannotBeDenied", Any}},
	},
	{
		Name: DeclaredBound, Where: "open.go",
		Keeps:  "a driver that promises more than its backend declares",
		Proofs: []Proof{{".", "TestADriverDoesNotExceedItsDeclaration", Any}},
	},
	{
		Name: AgentStatic, Where: "agentprogram.go",
		Keeps:  "an agent that would need the sandbox's own loader",
		Proofs: []Proof{{".", "TestAgentProgramIsChecked", Any}},
	},
	{
		Name: DialLoopback, Where: "dial.go",
		Keeps:  "another address than the sandbox's own",
		Proofs: []Proof{{"backend/fake", "TestConformance/dial/faults", Any}},
	},
	{
		Name: DialHeaderSize, Where: "dial.go",
		Keeps:  "a server inside with an endless header",
		Proofs: []Proof{{"backend/fake", "TestServersInsideAreBounded", Any}},
	},
	{
		Name: StatePrivate, Where: "internal/state/state.go",
		Keeps:  "a state directory that another user can change",
		Proofs: []Proof{{"internal/state", "TestOpenRefusesWhatIsNotPrivate", Any}},
	},
	{
		Name: StateLock, Where: "internal/state/state.go",
		Keeps:  "the sweep of a living host program's sandboxes",
		Proofs: []Proof{{"internal/state", "TestOrphansAreOnlyTheDead", Any}},
	},
	{
		Name: StateRecord, Where: "provider.go",
		Keeps:  "sandboxes of a killed host program that nobody finds",
		Proofs: []Proof{{"backend/process", "TestConformance/host-killed/everything-ends", Root}},
	},
	{
		Name: StateDrafts, Where: "internal/state/state.go",
		Keeps:  "half records of killed host programs",
		Proofs: []Proof{{"internal/state", "TestDraftsOfTheDeadGo", Any}},
	},
	{
		Name: StateUnswept, Where: "internal/state/state.go",
		Keeps:  "records of sandboxes that could not be removed",
		Proofs: []Proof{{"internal/state", "TestUnsweptOrphansStay", Any}},
	},
	{
		Name: LayoutLinks, Where: "driver/layout.go",
		Keeps:  "a source that is, or lies behind, a link",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
	{
		Name: LayoutKernelFiles, Where: "driver/layout.go",
		Keeps:  "/proc, /sys and /dev as sources",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
	{
		Name: LayoutOwnState, Where: "driver/layout.go",
		Keeps:  "berm's own records as a source",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
	{
		Name: LayoutOverlap, Where: "driver/layout.go",
		Keeps:  "a read-only source that a writable one shares files with",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
	{
		Name: LayoutNesting, Where: "driver/layout.go",
		Keeps:  "mount points in somebody's files",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
	{
		Name: LayoutDestinations, Where: "driver/layout.go",
		Keeps:  "mounts over the sandbox's own system",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
	{
		Name: LayoutSkillNames, Where: "driver/layout.go",
		Keeps:  "paths in the name of a skill",
		Proofs: []Proof{{"driver", "TestResolveRefuses", Any}},
	},
}
