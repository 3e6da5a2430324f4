// Package cgroup gives each sandbox control groups of its own: limits for its
// payloads, and a version 2 tree in which every command can be ended as a
// whole. It finds out by really trying what this host offers: version 2 with
// controllers (as root or delegated), version 1 (as root), both at once, or
// nothing.
//
// Below berm's own parent, named "berm", a sandbox has
//
//	version 2: berm-<id>/agent    the agent, outside of the payloads' limits
//	           berm-<id>/payload  the limits; one cgroup per command below it
//	version 1: berm-<id>          the limits; joined by the agent's forking thread
//
// The package never follows a name that a sandbox chose, except below the
// payload directory when it removes what is left there, and then by descriptor.
package cgroup
