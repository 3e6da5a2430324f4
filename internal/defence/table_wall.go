package defence

// wallRows: what bubblewrap is told, and how it is started.
var wallRows = [...]Entry{
	{
		Name: PIDNamespace, Where: "backend/process/args_linux.go",
		Keeps:  "processes of the host, seen or signalled",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/processes", Any}},
	},
	{
		Name: IPCNamespace, Where: "backend/process/args_linux.go",
		Keeps:  "shared memory and queues of the host",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/ipc", Any}},
	},
	{
		Name: UTSNamespace, Where: "backend/process/args_linux.go",
		Keeps:  "the host's name and its change",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/name", Any}},
	},
	{
		Name: CgroupNamespace, Where: "backend/process/args_linux.go",
		Keeps:  "the names of the host's cgroups",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/cgroup", Any}},
	},
	{
		Name: NetworkNamespace, Where: "backend/process/args_linux.go",
		Keeps:  "every network of the host, and its abstract sockets",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/network", Any}},
	},
	{
		Name: NestedNamespaces, Where: "backend/process/args_linux.go",
		Keeps:  "user namespaces inside, and the kernel code that they open",
		With:   []Defence{FilterNamespaces},
		Proofs: []Proof{{"backend/process", "TestWallFromInside/nested", Any}},
	},
	{
		Name: HostName, Where: "backend/process/args_linux.go",
		Keeps:  "the host's name",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/name", Any}},
	},
	{
		Name: DieWithParent, Where: "backend/process/args_linux.go",
		Keeps:  "a sandbox that outlives its host program, frozen so that it cannot end itself",
		Proofs: []Proof{{"backend/process", "TestKilledHostTakesItsSandboxWithIt", Root}},
	},
	{
		Name: DriverSession, Where: "backend/process/spawn_linux.go",
		Keeps:  "keys of the caller's terminal, which would end sandboxes",
		Proofs: []Proof{{"backend/process", "TestWallFromOutside/session", Any}},
	},
	{
		Name: NewSession, Where: "backend/process/args_linux.go",
		Keeps:  "the caller's terminal as the sandbox's own",
		With:   []Defence{DriverSession},
		Proofs: []Proof{{"backend/process", "TestWallFromOutside/inner-session", Any}},
	},
	{
		Name: SystemReadOnly, Where: "backend/process/args_linux.go",
		Keeps:  "writing below /usr where the owner is the sandbox's uid",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/system", Any}},
	},
	{
		Name: RootReadOnly, Where: "backend/process/args_linux.go",
		Keeps:  "files made beside the mounts",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/closed", Any}},
	},
	{
		Name: RunReadOnly, Where: "backend/process/args_linux.go",
		Keeps:  "files made below /run",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/closed", Any}},
	},
	{
		Name: DevReadOnly, Where: "backend/process/args_linux.go",
		Keeps:  "files made below /dev",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/closed", Any}},
	},
	{
		Name: DevMinimal, Where: "backend/process/args_linux.go",
		Keeps:  "devices of the host",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/devices", Any}},
	},
	{
		Name: NoSysfs, Where: "backend/process/args_linux.go",
		Keeps:  "what /sys tells about the machine, and its settings",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/sys", Any}},
	},
	{
		Name: ProcReadOnly, Where: "backend/process/args_linux.go",
		Keeps:  "settings of the kernel below /proc",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/proc-settings", Any}},
	},
	{
		Name: ProcFiles, Where: "backend/process/args_linux.go",
		Keeps:  "what files of /proc tell about the host: keys, timers, interrupts, memory",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/proc-files", Any}},
	},
	{
		Name: ProcDirs, Where: "backend/process/args_linux.go",
		Keeps:  "what directories of /proc tell about the host's devices",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/proc-dirs", Any}},
	},
	{
		Name: TmpfsSizes, Where: "backend/process/args_linux.go",
		Keeps:  "in-memory file systems that fill the host's memory",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/sizes", Any}},
	},
	{
		Name: LayoutReadOnly, Where: "backend/process/args_linux.go",
		Keeps:  "writing to a mount that is read-only",
		Proofs: []Proof{{"backend/process", "TestMountsShowTheLayout", User}},
	},
	{
		Name: EtcSelection, Where: "backend/process/args_linux.go",
		Keeps:  "the host's /etc: its users, identity and configuration",
		Proofs: []Proof{{"backend/process", "TestWallFromInside/etc", Any}},
	},
	{
		Name: EtcUncovered, Where: "backend/process/machine_linux.go",
		Keeps:  "a mount over the sandbox's own /etc",
		Proofs: []Proof{{"backend/process", "TestUnmountable", Any}},
	},
	{
		Name: EtcSecrets, Where: "backend/process/etc_linux.go",
		Keeps:  "private keys in what is shown of /etc",
		Proofs: []Proof{{"backend/process", "TestKitHasWhatIsNeededAndNothingSecret", Any}},
	},
	{
		Name: EtcWorldReadable, Where: "backend/process/etc_linux.go",
		Keeps:  "files in /etc that not everybody may read",
		Proofs: []Proof{{"backend/process", "TestKitHasWhatIsNeededAndNothingSecret", Root}},
	},
	{
		Name: EtcLinks, Where: "backend/process/etc_linux.go",
		Keeps:  "closed files behind links in /etc",
		Proofs: []Proof{{"backend/process", "TestKitHasWhatIsNeededAndNothingSecret", Root}},
	},
	{
		Name: KitPlace, Where: "backend/process/etc_linux.go",
		Keeps:  "a shared directory in which another user could exchange the sandboxes' /etc",
		Proofs: []Proof{{"backend/process", "TestKitPlaceIsTrusted", Any}},
	},
	{
		Name: KitLock, Where: "backend/process/etc_linux.go",
		Keeps:  "the sweep of another driver while this one lives",
		Proofs: []Proof{{"backend/process", "TestKitHasWhatIsNeededAndNothingSecret", Any}},
	},
	{
		Name: KitElsewhere, Where: "backend/process/etc_linux.go",
		Keeps:  "another user of the host who fills shared memory",
		Proofs: []Proof{{"backend/process", "TestFullSharedMemoryStopsNobody", Root}},
	},
	{
		Name: KitSweep, Where: "backend/process/etc_linux.go",
		Keeps:  "memory that killed drivers leave used",
		Proofs: []Proof{{"backend/process", "TestKitsOfTheDeadAreSwept", Any}},
	},
	{
		Name: OptionsOnPipe, Where: "backend/process/spawn_linux.go",
		Keeps:  "host paths in the process list",
		Proofs: []Proof{{"backend/process", "TestWallFromOutside/arguments", Any}},
	},
	{
		Name: OptionsWithoutNUL, Where: "backend/process/args_linux.go",
		Keeps:  "options of bubblewrap in a name",
		Proofs: []Proof{{"backend/process", "TestArgumentsWithNULAreRefused", Any}},
	},
	{
		Name: EmptyEnvironment, Where: "backend/process/spawn_linux.go",
		Keeps:  "the host program's environment, in the sandbox's processes",
		Proofs: []Proof{{"backend/process", "TestHostEnvironmentStaysOutside", Any}},
	},
	{
		Name: SourceWithoutLinks, Where: "backend/process/launch/source.go",
		Keeps:  "a planted link that the next mount would follow",
		Proofs: []Proof{{"backend/process", "TestALinkAsSourceIsRefusedAndNothingIsLeft", User}, {"backend/process/launch", "TestSources", Root}},
	},
	{
		Name: SealedAgent, Where: "backend/process/memfile_linux.go",
		Keeps:  "a change of the agent's program while it runs",
		Proofs: []Proof{{"backend/process", "TestTheAgentsProgramIsSealed", Any}},
	},
	{
		Name: DriverKeyring, Where: "backend/process/forker_linux.go",
		Keeps:  "the caller's keys",
		Proofs: []Proof{{"backend/process", "TestForkedProcessesHaveAKeyringOfTheirOwn", Any}},
	},
	{
		Name: BubblewrapWithoutSetuid, Where: "backend/process/bwrap_linux.go",
		Keeps:  "a setuid bubblewrap, and its privileges",
		Proofs: []Proof{{"backend/process", "TestFindings", Any}},
	},
	{
		Name: BubblewrapVersion, Where: "backend/process/bwrap_linux.go",
		Keeps:  "a bubblewrap that lacks half of the options",
		Proofs: []Proof{{"backend/process", "TestFindings", Any}},
	},
	{
		Name: NoiseQuoted, Where: "backend/process/child_linux.go",
		Keeps:  "control characters from inside in errors",
		Proofs: []Proof{{"backend/process", "TestTailKeepsTheEnd", Any}},
	},
	{
		Name: NoiseBound, Where: "backend/process/child_linux.go",
		Keeps:  "a start that fails with endless words",
		Proofs: []Proof{{"backend/process", "TestTailKeepsTheEnd", Any}},
	},
	{
		Name: LimitsRefused, Where: "backend/process/machine_linux.go",
		Keeps:  "a sandbox without the limit that was asked for",
		Proofs: []Proof{{"backend/process", "TestWhatCannotBeEnforcedIsRefused", Any}},
	},
	{
		Name: LaterMounts, Where: "backend/process/open_linux.go",
		Keeps:  "what the host mounts later below a source or /usr",
		Proofs: []Proof{{"backend/process/attack", "TestLaterMountsStayOut", Root}},
	},
	{
		Name: DefaultPriority, Where: "backend/process/forker_linux.go",
		Keeps:  "payloads that come before the host's own programs",
		Proofs: []Proof{{"backend/process", "TestPriorityIsNotHandedOn", Root}},
	},
	{
		Name: FailedCreateUndone, Where: "backend/process/machine_linux.go",
		Keeps:  "what a failed start leaves",
		Proofs: []Proof{{"backend/process", "TestALinkAsSourceIsRefusedAndNothingIsLeft", Root}},
	},
	{
		Name: WitnessNamespaces, Where: "backend/process/witness_linux.go",
		Keeps:  "a sandbox in the host's own namespaces that passes for one",
		Proofs: []Proof{{"backend/process", "TestWitnessTellsEveryHostClaim", Any}},
	},
	{
		Name: WitnessUID, Where: "backend/process/witness_linux.go",
		Keeps:  "a sandbox with a uid of the host's that passes for one",
		Proofs: []Proof{{"backend/process", "TestJudgeUIDs", Any}},
	},
	{
		Name: WitnessAlive, Where: "backend/process/witness_linux.go",
		Keeps:  "facts about another process, which got the number of a dead one",
		Proofs: []Proof{{"backend/process", "TestDestroyWorksAfterTheSandboxEndedByItself", Any}},
	},
}
