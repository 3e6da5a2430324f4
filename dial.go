package berm

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

const opDial = "dial"

// DialContext connects to a TCP port inside, on the sandbox's own loopback.
// network is "tcp", "tcp4" or "tcp6"; address is a port at localhost, 127.0.0.1
// or [::1]. The connection can be half-closed (CloseWrite) and obeys deadlines.
// Errors: Invalid for another address, Unavailable when nothing listens there.
func (s *Sandbox) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, portName, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &errdefs.Error{Kind: errdefs.Invalid, Op: opDial, Err: err}
	}
	var reasons []string
	if !slices.Contains([]string{"tcp", "tcp4", "tcp6"}, network) {
		reasons = append(reasons, fmt.Sprintf("network %q is not tcp", network))
	}
	if !slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, host) && !defence.DialLoopback.Off() {
		reasons = append(reasons, fmt.Sprintf("host %q is not the sandbox's loopback", host))
	}
	port, err := strconv.ParseUint(portName, 10, 16)
	if err != nil || port == 0 {
		reasons = append(reasons, fmt.Sprintf("port %q is not within 1 and 65535", portName))
	}
	if len(reasons) > 0 {
		return nil, &errdefs.Error{Kind: errdefs.Invalid, Op: opDial, Backend: s.provider.caps.Backend, Reasons: reasons}
	}
	if s.isGone() {
		return nil, s.failed(ctx, opDial, nil)
	}
	conn, err := s.client.Dial(ctx, int(port))
	if err != nil {
		return nil, s.failed(ctx, opDial, err)
	}
	return conn, nil
}

// maxServerHeader bounds what is read of an answer's header, in bytes.
func maxServerHeader() int64 {
	if defence.DialHeaderSize.Off() {
		return 1 << 30
	}
	return 64 << 10
}

// Transport is an HTTP transport to servers inside: http://localhost:8080/ is
// port 8080 of the sandbox. It uses no proxy and no compression, and bounds what
// it reads of headers, since the servers are hostile; the caller decides on
// redirects in its http.Client. Each call makes a new one, which the caller may
// change and should CloseIdleConnections of.
func (s *Sandbox) Transport() *http.Transport {
	return &http.Transport{
		DialContext:            s.DialContext,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxServerHeader(),
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        30 * time.Second,
		ResponseHeaderTimeout:  time.Minute,
	}
}
