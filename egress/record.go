package egress

import (
	"context"
	"net/netip"
	"time"
)

// Event says what a Record is about.
type Event string

// The events.
const (
	// EventDecision: one request was judged. Each request has exactly one.
	EventDecision Event = "decision"
	// EventEnd: a flow that was allowed has ended.
	EventEnd Event = "end"
)

// Record is one line of the audit. Strings are as the client sent them, up to
// 1,024 bytes each; whoever writes them down escapes them. No field ever holds a
// secret.
type Record struct {
	Time       time.Time    `json:"time"`
	Sandbox    string       `json:"sandbox,omitempty"`
	Flow       uint64       `json:"flow"` // the connection, from 1 up, per gate
	Event      Event        `json:"event"`
	Protocol   Protocol     `json:"protocol,omitempty"` // empty where it was not understood
	Allow      bool         `json:"allow"`
	Reason     Reason       `json:"reason"`
	Rule       string       `json:"rule,omitempty"`
	Generation uint64       `json:"generation"`
	Asked      string       `json:"asked,omitempty"` // host as the client wrote it
	Host       string       `json:"host,omitempty"`  // canonical
	Port       uint16       `json:"port,omitempty"`
	Method     string       `json:"method,omitempty"`
	SNI        string       `json:"sni,omitempty"`
	ECH        bool         `json:"ech,omitempty"`
	WebSocket  bool         `json:"ws,omitempty"`
	Chain      []string     `json:"chain,omitempty"`     // CNAMEs, in order
	Addresses  []netip.Addr `json:"addresses,omitempty"` // all that the name resolved to
	Dialled    string       `json:"dialled,omitempty"`   // address and port
	Credential string       `json:"credential,omitempty"`
	Error      string       `json:"error,omitempty"`
	// Sent and Received count bytes, seen from the sandbox; Milliseconds is the
	// flow's life. Of EventEnd only.
	Sent         int64 `json:"sent,omitempty"`
	Received     int64 `json:"received,omitempty"`
	Milliseconds int64 `json:"milliseconds,omitempty"`
}

// Sink keeps records. Write returns when the record is safe by the sink's own
// measure; an error denies what the record is about. The gate calls it from many
// goroutines, with a context that ends after a few seconds. r is not used after
// Write returned.
type Sink interface {
	Write(ctx context.Context, r *Record) error
}
