package defence

// archiveRows: watchers, and trees on their way in and out.
var archiveRows = [...]Entry{
	{
		Name: WatchCount, Where: "internal/agent/files_watch_queue.go",
		Keeps:  "watchers without number",
		Proofs: []Proof{{"internal/agent", "TestWatchBounds", Any}},
	},
	{
		Name: WatchDirectories, Where: "internal/agent/files_watch_tree.go",
		Keeps:  "a tree that uses up the kernel's watches, which all sandboxes of a user share",
		Proofs: []Proof{{"internal/agent", "TestWatchBounds", Any}},
	},
	{
		Name: WatchQueue, Where: "internal/agent/files_watch_queue.go",
		Keeps:  "events that pile up for a client that does not take them",
		Proofs: []Proof{{"internal/agent", "TestWatchBounds", Any}},
	},
	{
		Name: WatchIdle, Where: "internal/agent/files_watch_queue.go",
		Keeps:  "watchers whose client is gone",
		Proofs: []Proof{{"internal/agent", "TestIdleWatchersAreForgotten", Any}},
	},
	{
		Name: WatchLinks, Where: "internal/agent/files_watch_tree.go",
		Keeps:  "a directory that is swapped for a link, and watched where that leads",
		Proofs: []Proof{{"internal/agent", "TestWatchFollowsNoLinks", Any}},
	},
	{
		Name: ArchiveLinks, Where: "internal/agent/archive_unpack.go",
		Keeps:  "an archive that leaves its destination through a link",
		Proofs: []Proof{{"internal/agent", "TestExtractStaysInside", Any}},
	},
	{
		Name: ArchiveNames, Where: "internal/agent/archive_unpack.go",
		Keeps:  "an archive that leaves its destination by its names",
		Proofs: []Proof{{"internal/agent", "TestExtractStaysInside", Any}},
	},
	{
		Name: ArchiveModes, Where: "internal/agent/archive.go",
		Keeps:  "set-id bits from an archive",
		Proofs: []Proof{{"internal/agent", "TestExtractLeavesOut", Any}},
	},
	{
		Name: ArchiveKinds, Where: "internal/agent/archive_unpack.go",
		Keeps:  "FIFOs and devices from an archive",
		Proofs: []Proof{{"internal/agent", "TestExtractLeavesOut", Any}},
	},
	{
		Name: ArchiveSize, Where: "internal/agent/archive_unpack.go",
		Keeps:  "an archive without end",
		Proofs: []Proof{{"internal/agent", "TestExtractIsBounded", Any}},
	},
	{
		Name: ArchiveWhole, Where: "internal/agent/archive_unpack.go",
		Keeps:  "half an archive that passes for one",
		Proofs: []Proof{{"internal/agent", "TestHalfAnArchiveIsNone", Any}},
	},
	{
		Name: ArchiveProcfs, Where: "internal/agent/archive_pack.go",
		Keeps:  "what belongs to the agent in /proc, by way of an archive",
		Proofs: []Proof{{"internal/agent", "TestArchivesHaveNoProcfs", Any}},
	},
	{
		Name: ClientWatchOrder, Where: "internal/agentclient/watch.go",
		Keeps:  "a watch that says what cannot be",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenWatches", Any}},
	},
	{
		Name: ClientWatchName, Where: "internal/agentclient/watch.go",
		Keeps:  "events under names that leave the watched directory",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenWatches", Any}},
	},
	{
		Name: ClientKeepalives, Where: "internal/agentclient/watch.go",
		Keeps:  "signs of life that keep the host busy",
		Proofs: []Proof{{"internal/agentclient", "TestBrokenWatches", Any}},
	},
	{
		Name: ClientArchiveNames, Where: "internal/agentclient/tree.go",
		Keeps:  "names that leave the directory of whoever extracts",
		Proofs: []Proof{{"internal/agentclient", "TestHostileArchives", Any}},
	},
	{
		Name: ClientArchiveOrder, Where: "internal/agentclient/tree.go",
		Keeps:  "entries that pass through a link of the archive, and names that come twice",
		Proofs: []Proof{{"internal/agentclient", "TestHostileArchives", Any}},
	},
	{
		Name: ClientArchiveKinds, Where: "internal/agentclient/tree.go",
		Keeps:  "devices, FIFOs, hard links, holes and extended attributes in an archive",
		Proofs: []Proof{{"internal/agentclient", "TestHostileArchives|TestArchivesAreBounded", Any}},
	},
	{
		Name: ClientArchiveModes, Where: "internal/agentclient/tree.go",
		Keeps:  "set-id bits in an archive",
		Proofs: []Proof{{"internal/agentclient", "TestArchiveModesAndLinks", Any}},
	},
	{
		Name: ClientArchiveLinks, Where: "internal/agentclient/tree.go",
		Keeps:  "links that lead out of the tree",
		Proofs: []Proof{{"internal/agentclient", "TestArchiveModesAndLinks", Any}},
	},
	{
		Name: ClientArchiveSize, Where: "internal/agentclient/tree.go",
		Keeps:  "a tree that fills the host's disk",
		Proofs: []Proof{{"internal/agentclient", "TestHostileArchives", Any}},
	},
	{
		Name: ClientArchiveEnd, Where: "internal/agentclient/tree.go",
		Keeps:  "half a tree that passes for one",
		Proofs: []Proof{{"internal/agentclient", "TestHostileArchives", Any}},
	},
}
