package defence

import "slices"

// Table gives every defence, in the order in which somebody from inside meets
// them. The caller may keep it and must not change what is behind its slices.
func Table() []Entry {
	return slices.Concat(filterRows[:], wallRows[:], launchRows[:], agentRows[:], sessionRows[:], archiveRows[:], linkRows[:], hostRows[:])
}
