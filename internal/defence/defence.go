// Package defence names what keeps hostile code out, one name for each thing that
// could be left out by itself, and gives each a switch for a test build.
//
// In every build but that one Off is a constant false: the compiler drops the
// branch, and neither the switch nor its name is in the program. With the build
// tag berm_mutants the linker's -X says which defences are off; nothing that a
// running program reads, no environment and no file, can change that. `make
// mutants` turns each off in turn and wants the tests that the table names to
// fail: a defence that nobody misses is no defence, or nobody tests it.
//
// A switch sits where the defence is decided, once if that is possible.
package defence

// Defence is the name of one defence.
type Defence string

// Entry is one row of the table.
type Entry struct {
	Name Defence
	// Where is the file with the switch, or the first of them.
	Where string
	// Keeps says what the defence keeps out.
	Keeps string
	// With are other defences that are turned off together with this one, because
	// each of them holds alone; nil for none.
	With []Defence
	// Proofs are the tests of which at least one fails without the defence.
	Proofs []Proof
	// Hangs: without the defence the tests do not end, which counts as a failure.
	Hangs bool
}

// Proof is tests of one package.
type Proof struct {
	// Package is a folder of the module, Run a pattern as for go test -run.
	Package, Run string
	// As says who has to run them.
	As Caller
}

// Caller says who runs a test.
type Caller string

// The callers.
const (
	// Any is whoever runs all of it, preferably root.
	Any Caller = ""
	// Root has to be it: the defence is not there for others, or its absence is
	// seen by root alone.
	Root Caller = "root"
	// User is a user without privileges.
	User Caller = "user"
)
