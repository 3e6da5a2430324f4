// Package attack is the attack corpus of the process backend: what hostile code
// tries from inside, each attempt with what has to become of it, run in real
// sandboxes as the caller that runs the tests, root or not.
//
// It has tests only. Command payload, beside it, makes the attempts inside and
// says what each gave; the tests judge that, and look from outside where the
// inside cannot be believed. An attempt that could fail by accident has a control:
// the same thing done where it is allowed, which has to work.
package attack
