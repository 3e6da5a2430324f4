package defence

// launchRows: the root launcher, the leases of uids and the cgroups.
var launchRows = [...]Entry{
	{
		Name: LeasedUID, Where: "backend/process/launch/drop.go",
		Keeps:  "root's uid on the host",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}, {"backend/process", "TestWitnessTellsEveryHostClaim", Root}},
	},
	{
		Name: LaunchGID, Where: "backend/process/launch/drop.go",
		Keeps:  "root's group on the host",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchGroups, Where: "backend/process/launch/drop.go",
		Keeps:  "the caller's further groups",
		Proofs: []Proof{{"backend/process/launch", "TestNoGroupIsInherited", Root}},
	},
	{
		Name: LaunchBoundingSet, Where: "backend/process/launch/drop.go",
		Keeps:  "capabilities by way of a program",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchCapabilities, Where: "backend/process/launch/drop.go",
		Keeps:  "capabilities that a change of uid leaves",
		Proofs: []Proof{{"backend/process/launch", "TestNoCapabilityIsInherited", Root}},
	},
	{
		Name: LaunchNoNewPrivileges, Where: "backend/process/launch/drop.go",
		Keeps:  "set-id programs on the way to bubblewrap",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchParent, Where: "backend/process/launch/drop.go",
		Keeps:  "a sandbox whose driver has ended",
		Proofs: []Proof{{"backend/process/launch", "TestWrongParent", Root}},
	},
	{
		Name: LaunchDirectory, Where: "backend/process/launch/drop.go",
		Keeps:  "the caller's working directory",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchKeyring, Where: "backend/process/launch/drop.go",
		Keeps:  "the caller's keys",
		Proofs: []Proof{{"backend/process/launch", "TestNoKeyringIsInherited", Root}},
	},
	{
		Name: LaunchCores, Where: "backend/process/launch/drop.go",
		Keeps:  "core files and the program that the kernel pipes them to",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchEnvironment, Where: "backend/process/launch/launch.go",
		Keeps:  "the launcher's environment",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchDescriptors, Where: "backend/process/launch/launch.go",
		Keeps:  "open files of the caller",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchStandardStreams, Where: "backend/process/launch/launch.go",
		Keeps:  "the plan, on the standard input",
		Proofs: []Proof{{"backend/process/launch", "TestState", Root}},
	},
	{
		Name: LaunchPlan, Where: "backend/process/launch/plan.go",
		Keeps:  "a plan that leases root's uid or names files outside",
		Proofs: []Proof{{"backend/process/launch", "TestPlan", Any}},
	},
	{
		Name: LaunchOwnMounts, Where: "backend/process/launch/mount.go",
		Keeps:  "mounts in the host's namespace",
		Proofs: []Proof{{"backend/process/launch", "TestSharedMountsSeeNothing", Root}},
	},
	{
		Name: LaunchPrivateMounts, Where: "backend/process/launch/mount.go",
		Keeps:  "mounts that spread to the host",
		Proofs: []Proof{{"backend/process/launch", "TestSharedMountsSeeNothing", Root}},
	},
	{
		Name: LaunchIdentity, Where: "backend/process/launch/mount.go",
		Keeps:  "a directory that was exchanged since it was checked",
		Proofs: []Proof{{"backend/process/launch", "TestSources", Root}},
	},
	{
		Name: LaunchNoSUID, Where: "backend/process/launch/mount.go",
		Keeps:  "set-id programs in mounts",
		Proofs: []Proof{{"backend/process/launch", "TestSetID", Root}},
	},
	{
		Name: LaunchNoDev, Where: "backend/process/launch/mount.go",
		Keeps:  "device nodes in mounts",
		Proofs: []Proof{{"backend/process/launch", "TestSetID", Root}},
	},
	{
		Name: LaunchReadOnly, Where: "backend/process/launch/mount.go",
		Keeps:  "writing to a mount that is read-only",
		Proofs: []Proof{{"backend/process/launch", "TestReadOnly", Root}},
	},
	{
		Name: LaunchInnerMounts, Where: "backend/process/launch/mount.go",
		Keeps:  "a mount inside a source that has neither its flags nor its map",
		Proofs: []Proof{{"backend/process/launch", "TestNested", Root}},
	},
	{
		Name: LaunchOwnerMap, Where: "backend/process/launch/mount.go",
		Keeps:  "files that belong to nobody's uid on the host, and writing to those of others",
		Proofs: []Proof{{"backend/process/launch", "TestOwner", Root}},
	},
	{
		Name: LaunchUnmappedRefused, Where: "backend/process/launch/mount.go",
		Keeps:  "a writable mount whose files would belong to a stranger",
		Proofs: []Proof{{"backend/process/launch", "TestNoMap", Root}},
	},
	{
		Name: LeaseLock, Where: "backend/process/lease_linux.go",
		Keeps:  "one uid for two sandboxes",
		Proofs: []Proof{{"backend/process", "TestLeasesAreExclusiveAcrossDrivers", Any}},
	},
	{
		Name: LeaseOfEmptyUID, Where: "backend/process/lease_linux.go",
		Keeps:  "a uid under which something runs already",
		Proofs: []Proof{{"backend/process", "TestAUIDWithAProcessIsNotLeased", Root}},
	},
	{
		Name: LeaseSweep, Where: "backend/process/lease_linux.go",
		Keeps:  "leases of the dead",
		Proofs: []Proof{{"backend/process", "TestLocksOfTheDeadAreRemovedAndOthersKept", Any}},
	},
	{
		Name: LeasesPrivate, Where: "backend/process/lease_linux.go",
		Keeps:  "leases that another user can take away",
		Proofs: []Proof{{"backend/process", "TestLeasesWantAPrivatePlace", Any}},
	},
	{
		Name: CgroupMemory, Where: "backend/process/cgroup/limits_linux.go",
		Keeps:  "using up the host's memory",
		Proofs: []Proof{{"backend/process", "TestMemoryLimitKillsAndCounts", Root}},
	},
	{
		Name: CgroupProcesses, Where: "backend/process/cgroup/limits_linux.go",
		Keeps:  "using up the host's processes",
		Proofs: []Proof{{"backend/process", "TestForkBombIsCountedAndTheSandboxLives", Root}},
	},
	{
		Name: CgroupCPU, Where: "backend/process/cgroup/limits_linux.go",
		Keeps:  "using up the host's processors",
		Proofs: []Proof{{"backend/process/cgroup", "TestLimitsAreWritten", Root}},
	},
	{
		Name: CgroupBelow, Where: "backend/process/cgroup/group_linux.go",
		Keeps:  "cgroups without end below the payloads' own",
		Proofs: []Proof{{"backend/process/cgroup", "TestLimitsAreWritten", Root}},
	},
	{
		Name: CgroupAlone, Where: "backend/process/cgroup/group_linux.go",
		Keeps: "an agent that was taken over, and walks up from its cgroup to the host's root directory",
		Proofs: []Proof{
			{"backend/process/cgroup", "TestPayloadDirectoryIsNoWayUp", Root}, {"backend/process", "TestDelegatedCgroupIsNoWayUp", Root},
		},
	},
	{
		Name: CgroupSockets, Where: "backend/process/cgroup/limits_linux.go",
		Keeps:  "memory of TCP and UDP sockets beyond the limit, with cgroups of version 1",
		Proofs: []Proof{{"backend/process/attack", "TestMemoryIsBoundedOrSaidNotToBe/tcp", Root}},
	},
	{
		Name: CgroupNames, Where: "backend/process/cgroup/group_linux.go",
		Keeps:  "paths in the name of a sandbox",
		Proofs: []Proof{{"backend/process/cgroup", "TestOddNamesAreRefused", Any}},
	},
	{
		Name: CgroupSweep, Where: "backend/process/cgroup/remove_linux.go",
		Keeps:  "cgroups of killed host programs",
		Proofs: []Proof{{"backend/process/cgroup", "TestSweepEndsAndRemoves", Root}},
	},
	{
		Name: CgroupSweepKill, Where: "backend/process/cgroup/remove_linux.go",
		Keeps:  "processes of killed host programs",
		Proofs: []Proof{{"backend/process/cgroup", "TestSweepEndsAndRemoves", Root}},
	},
	{
		Name: CgroupTrialSweep, Where: "backend/process/cgroup/trial_linux.go",
		Keeps:  "trial cgroups of killed host programs",
		Proofs: []Proof{{"backend/process/cgroup", "TestTrialsOfTheDeadGo", Root}},
	},
}
