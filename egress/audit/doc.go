// Package audit keeps the records of the egress gate: in a file of JSON lines, in
// a structured logger, through a function, in several places, behind a bounded
// queue. Every sink fails loudly: the gate denies what it cannot record.
//
// What a record has of the client's is made harmless here: control characters,
// terminal escapes and the marks that turn the direction of text are escaped, and
// no text is longer than MaxText.
package audit
