// Package link is the path between the host and a sandbox's agent. A link
// carries HTTP requests from the host inwards, on two planes that never mix,
// and streams that the inside opened outwards, for the egress gate alone.
//
// Everything that comes out of a link is hostile. Implementations bound every
// queue, honour every deadline, and wait for each goroutine in Close.
package link

import (
	"context"
	"net"
	"net/http"
)

// The host part of a request's URL selects the plane. A server that forwards
// requests for others only ever builds URLs with DataHost.
const (
	// DataHost is the data plane: processes and files.
	DataHost = "data.berm"
	// ControlHost is the control plane: posture and tunnels. Its streams are
	// opened by the host for control alone.
	ControlHost = "control.berm"
)

// Link is one sandbox's link. All methods may be called concurrently.
type Link interface {
	// RoundTrip sends one request to the plane that the URL's host names and
	// obeys the request's context, also while a body is being written. An HTTP
	// upgrade (101) leaves the stream to the caller. Errors: Closed after Close,
	// TransportLost when the other side is gone, Protocol when it misbehaved.
	http.RoundTripper
	// Accept waits for a stream that the inside opened. Errors: Unsupported when
	// this link carries none, once the agent has answered also to a context that is
	// over; Closed after the end, the context's error.
	Accept(ctx context.Context) (net.Conn, error)
	// Done is closed when the link has ended, by either side.
	Done() <-chan struct{}
	// Err says why the link ended; nil while it lives and after a plain Close.
	Err() error
	// Close ends the link, resets every stream and waits for all goroutines of
	// the link. It does not end the sandbox. A second call returns nil.
	Close() error
}
