package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// tunnelProtocol is the name of the upgrade.
const tunnelProtocol = "berm-tunnel"

// Bounds of tunnels.
const (
	maxTunnels        = 1024
	tunnelDialTimeout = 10 * time.Second
	// tunnelLinger is how long a server inside may go on sending to a host that
	// is gone, so that it sees an end rather than a reset in mid-answer.
	tunnelLinger = 2 * time.Second
)

// tunnels are the open ones, from the host to ports inside. The zero value is
// ready; all methods may be called concurrently.
type tunnels struct {
	mu     sync.Mutex
	open   map[*tunnel]struct{}
	closed bool
	wg     sync.WaitGroup
}

// tunnel is one connection each way. Its dial ends with cancel.
type tunnel struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

// add takes a connection into the tunnel's care; a closed tunnel closes it.
func (t *tunnel) add(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = conn.Close()
	}
	t.conns = append(t.conns, conn)
}

func (t *tunnel) close() {
	t.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, conn := range t.conns {
		_ = conn.Close()
	}
}

// begin takes a place among the tunnels, 0 when that went well, else the status
// to answer with.
func (ts *tunnels) begin(cancel context.CancelFunc) (*tunnel, int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return nil, http.StatusBadGateway
	}
	if len(ts.open) >= maxTunnels && !defence.TunnelCount.Off() {
		return nil, http.StatusServiceUnavailable
	}
	if ts.open == nil {
		ts.open = make(map[*tunnel]struct{})
	}
	t := &tunnel{cancel: cancel}
	ts.open[t] = struct{}{}
	ts.wg.Add(1)
	return t, 0
}

func (ts *tunnels) end(t *tunnel) {
	t.close()
	ts.mu.Lock()
	delete(ts.open, t)
	ts.mu.Unlock()
	ts.wg.Done()
}

// close ends every tunnel and waits. Later ones are refused.
func (ts *tunnels) close() {
	ts.mu.Lock()
	ts.closed = true
	for t := range ts.open {
		t.close()
	}
	ts.mu.Unlock()
	ts.wg.Wait()
}

// serve answers GET /tunnel?port=N: 101 and then the bytes of a connection to
// that port on the inside's loopback. Failures are plain text for people.
func (ts *tunnels) serve(w http.ResponseWriter, r *http.Request) {
	port, err := tunnelPort(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), tunnelDialTimeout)
	defer cancel()
	t, status := ts.begin(cancel)
	if status != 0 {
		http.Error(w, "no room for another tunnel", status)
		return
	}
	defer ts.end(t)
	target, err := dialLoopback(ctx, port)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	t.add(target)
	host, buffered, err := takeOver(w)
	if err != nil {
		return
	}
	t.add(host)
	relay(host, target, buffered)
}

// tunnelPort checks the request and gives its port.
func tunnelPort(r *http.Request) (string, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), tunnelProtocol) || !hasToken(r.Header["Connection"], "upgrade") {
		return "", fmt.Errorf("a tunnel needs Upgrade: %s", tunnelProtocol)
	}
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		return "", errors.New("port is not a number from 1 to 65535")
	}
	return strconv.FormatUint(port, 10), nil
}

// hasToken looks for a token in the comma-separated values of a header.
func hasToken(values []string, token string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// dialLoopback tries IPv4 and then IPv6. Where both fail the first error is
// told, because most servers listen there.
func dialLoopback(ctx context.Context, port string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	if conn, err6 := dialer.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port)); err6 == nil {
		return conn, nil
	}
	return nil, err
}

// takeOver turns the request's connection into the tunnel's host side. What the
// host sent early is returned beside it. After an error it has been answered or
// closed.
func takeOver(w http.ResponseWriter) (net.Conn, []byte, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "no tunnel on this connection", http.StatusInternalServerError)
		return nil, nil, err
	}
	buffered, err := early(rw.Reader)
	if err == nil {
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tunnelProtocol+"\r\n\r\n")
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, buffered, nil
}

func early(r *bufio.Reader) ([]byte, error) {
	peeked, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), peeked...), nil
}

// relay copies both ways until both ends are done. An end of data on one side
// becomes a half-close of the other. The connections are passed to io.Copy as
// they are, so that the kernel moves the bytes where it can.
func relay(host, target net.Conn, buffered []byte) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := target.Write(buffered)
		if err == nil {
			_, err = io.Copy(target, host)
		}
		if err != nil {
			_ = target.Close()
			return
		}
		closeWrite(target)
		// The host has said its last word. When it is gone altogether, nobody
		// reads what the target still sends.
		awaitHangup(host)
		_ = target.SetReadDeadline(time.Now().Add(tunnelLinger))
	}()
	_, err := io.Copy(host, target)
	if err == nil {
		closeWrite(host)
	} else {
		_ = target.SetReadDeadline(time.Now().Add(tunnelLinger))
		// Only to let the target finish; what it sends goes nowhere.
		_, _ = io.Copy(io.Discard, target)
		_ = host.Close()
	}
	<-done
}

// closeWrite half-closes; a connection that cannot is closed.
func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = conn.Close()
}

// awaitHangup waits, after the end of the peer's data, until the peer has closed
// the other direction too or the connection is closed here. The poller wakes the
// function at each change. A connection that is no socket is not waited for: its
// writes fail when the peer is gone.
func awaitHangup(conn net.Conn) {
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	socket, err := raw.SyscallConn()
	if err != nil {
		return
	}
	_ = socket.Read(func(fd uintptr) bool {
		state := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // descriptors are small
		_, err := unix.Poll(state, 0)
		return err == nil && state[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
}
