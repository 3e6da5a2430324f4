// Package archtest holds the rules of the house as tests: which way imports
// point and why, what is documented, how large a file may grow, what the agent
// may depend on. It has no code of its own; the rules are data in the tests, a
// reason beside each.
package archtest
