// Package egress has the whole-path test of the egress gate, and nothing else:
// sandboxes and their gates in one network namespace, and every server that they
// could reach, with its public address, in another. A cable of the test's own
// joins the two, and every packet on it is looked at.
package egress
