// Package wire reads HTTP/1 messages more strictly than net/http does, so that
// the gate, net/http and the far end cannot disagree about where a message ends
// or whom it is for. It checks and hands the same bytes on; it rewrites nothing.
package wire
