// Command testlist runs the tests and holds what ran against a committed list,
// so that a test that disappears, or is skipped where it ran before, is a
// failure and not a silence.
//
// Tests run as each caller that matters: as whoever calls and, where that is
// root, once more for the packages in testdata/user-packages.txt as a user
// without privileges. For that user the test programs are compiled first, then
// run in a copy of the tree, because root's caches and folders are closed to it.
//
// The last line is `N passed, N failed, N skipped`.
package main
