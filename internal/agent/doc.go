// Package agent is the program inside a sandbox: it runs commands, does file
// work and answers the host's control calls. Two handlers keep the planes apart.
// Data serves processes and files, in envd's wire format with berm's additions;
// Control serves what only the host itself may ask for.
//
// Everything that it runs is hostile. A command gets a fresh environment, the
// descriptors 0 to 2 and a tree of its own (a cgroup, or a mark that its
// descendants cannot shed), by which all of it can be ended at once.
//
// The agent may be a host process's guest (tests) or a process of its own; only
// Run changes anything that belongs to the whole process.
package agent
