package gate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/berm-dev/berm/errdefs"
)

// Listener is a gate on a socket of this machine, for containers that the host
// brings by itself. Every client needs its user name and password.
type Listener struct {
	gate     *Gate
	listener net.Listener
	done     chan struct{}
	err      error // of Serve, once done is closed
	stop     func() bool
}

// ListenUnix serves a gate on a Unix socket at a path where nothing is yet. The
// socket is the caller's alone (0600). The user name and password are random
// where the configuration has none. It goes on until Close, or until the context
// ends, which leaves Close to be called.
func ListenUnix(ctx context.Context, path string, c Config) (*Listener, error) {
	return listen(ctx, "unix", path, c)
}

// ListenLoopback is ListenUnix on a free TCP port of 127.0.0.1, which every
// process of this machine can reach: the credential is what keeps others out.
func ListenLoopback(ctx context.Context, c Config) (*Listener, error) {
	return listen(ctx, "tcp4", "127.0.0.1:0", c)
}

func listen(ctx context.Context, network, address string, c Config) (*Listener, error) {
	const op = "listen for egress"
	if c.Username == "" && c.Password == "" {
		c.Username, c.Password = "berm", rand.Text()
	}
	gate, err := New(c)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, errors.Join(errdefs.Wrap(errdefs.KindOf(err), op, err), gate.Close())
	}
	if network == "unix" {
		// Whoever was quicker than this still lacks the credential.
		if err := os.Chmod(address, 0o600); err != nil {
			return nil, errors.Join(errdefs.Wrap(errdefs.KindOf(err), op, err), listener.Close(), gate.Close())
		}
	}
	l := &Listener{gate: gate, listener: listener, done: make(chan struct{})}
	l.stop = context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		defer close(l.done)
		l.err = gate.Serve(ctx, func(context.Context) (net.Conn, error) { return listener.Accept() })
	}()
	return l, nil
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Username is what clients give as the user's name.
func (l *Listener) Username() string { return l.gate.config.Username }

// Password is what clients give as the password.
func (l *Listener) Password() string { return l.gate.config.Password }

// Gate is the gate behind it, for SetPolicy, CA and Stats. Close closes it.
func (l *Listener) Gate() *Gate { return l.gate }

// Close ends the listener and its gate and waits for both. A second call returns
// nil.
func (l *Listener) Close() error {
	l.stop()
	closed := l.listener.Close()
	if errors.Is(closed, net.ErrClosed) {
		closed = nil
	}
	err := l.gate.Close()
	<-l.done
	if l.err != nil && !errors.Is(l.err, net.ErrClosed) {
		err = errors.Join(err, fmt.Errorf("serve: %w", l.err))
	}
	return errors.Join(closed, err)
}
