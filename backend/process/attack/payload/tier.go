//go:build linux

package main

// tierFamilies are the attacks on what is around a sandbox: its mounts and the
// host behind them, its limits, its commands' ends, its neighbours and its agent.
func tierFamilies() []map[string]attack {
	return []map[string]attack{
		{
			"fork-bomb": forkBomb, "vfork-storm": vforkStorm, "chain-storm": chainStorm, "daemons": daemonTree,
			"stopped": stoppedTree, "headless": headlessTree, "zombies": zombies, "zombie-tree": zombieTree, "churn": churn, "flakes": flakes,
		},
		{"hog": hog, "fill": fill, "inodes": inodes, "in-flight": inFlight},
		plantFamily(), mountFamily(), sharingFamily(), liarFamily(),
	}
}
