package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
	"github.com/berm-dev/berm/egress/gate"
)

// upstreamHost is the servers' name. Everybody resolves it; our gate asks the
// bench's own name server.
const upstreamHost = "localhost"

// gateOrder is what a gate's process is told.
type gateOrder struct {
	Nameserver  string
	HTTP, HTTPS int
	Roots       []byte
	Audit       string
}

// gateReport is what it says when it listens.
type gateReport struct {
	// Opaque leaves TLS alone, Brokered ends it and puts a credential on.
	Opaque, Brokered string
	CA               []byte
}

// serveGates is this program as the process of two gates, so that they are apart
// from the client and the server as the peers are. It ends with its input.
func serveGates(ctx context.Context) (err error) {
	var order gateOrder
	if err := json.NewDecoder(os.Stdin).Decode(&order); err != nil {
		return fmt.Errorf("read the order of a gate: %w", err)
	}
	sink, err := audit.OpenFile(order.Audit, audit.FileOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(order.Roots)
	https := fmt.Sprintf("%s:%d", upstreamHost, order.HTTPS)
	// Plain HTTP elsewhere than at port 80, which not everybody may listen on, has to
	// be named.
	policy := egress.Policy{Allow: []string{https, fmt.Sprintf("tcp://%s:%d", upstreamHost, order.HTTP)}, AllowInwardFor: []string{upstreamHost}}
	brokered := egress.Policy{
		Allow: []string{https}, AllowInwardFor: []string{upstreamHost},
		Credentials: []egress.Credential{{Host: upstreamHost, Prefix: "Bearer ", Value: "a-token-of-the-usual-length-0123456789"}},
	}
	var report gateReport
	for _, one := range []struct {
		policy  *egress.Policy
		address *string
	}{{&policy, &report.Opaque}, {&brokered, &report.Brokered}} {
		g, err := gate.New(gate.Config{Sandbox: "bench", Policy: one.policy, Sink: sink, Nameservers: []string{order.Nameserver}, Roots: roots})
		if err != nil {
			return err
		}
		stop, err := listenGate(ctx, g, one.address)
		if err != nil {
			return errors.Join(err, g.Close())
		}
		defer func() { err = errors.Join(err, stop(), g.Close()) }()
		if ca := g.CA(); ca != nil {
			report.CA = ca
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// listenGate feeds a gate from a port on loopback, as a sandbox's listener does.
func listenGate(ctx context.Context, g *gate.Gate, address *string) (stop func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	*address = listener.Addr().String()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- g.Serve(ctx, func(context.Context) (net.Conn, error) { return listener.Accept() })
	}()
	return func() error {
		cancel()
		// Serve ends with the context, its accept with the listener.
		return errors.Join(listener.Close(), <-done)
	}, nil
}

// startGates runs serveGates in a process of its own.
func (w *world) startGates(ctx context.Context, order gateOrder) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-gate")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return errors.Join(err, stdin.Close())
	}
	w.atEnd(func() error { return errors.Join(stdin.Close(), cmd.Wait()) })
	w.gatePID = cmd.Process.Pid
	if err := json.NewEncoder(stdin).Encode(order); err != nil {
		return err
	}
	if err := json.NewDecoder(stdout).Decode(&w.gates); err != nil {
		return fmt.Errorf("the gate does not say where it listens: %w", err)
	}
	return nil
}
