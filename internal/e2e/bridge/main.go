// Command bridge is what scripts/e2e-sdk drives E2B's own SDKs through. It puts
// both of their addresses, the control plane and the sandboxes, on one port of
// the loopback, in front of sandboxes of the process backend.
//
// It is a test's tool and no server: it answers create, connect, kill, info and
// timeout, and routes everything else into the sandbox that the request names.
// No reply of a process or a file call is made here.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
)

func main() {
	// A small disk, so that a full one is soon there.
	config := berm.Config{Limits: berm.Limits{DiskBytes: 256 << 20}}
	flag.StringVar(&config.Agent.Path, "agent", "", "the agent's program; empty looks for it as berm does")
	flag.StringVar(&config.StateDir, "state", "", "folder for berm's records; empty for the default")
	flag.Parse()
	if err := run(context.Background(), config, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bridge:", err)
		os.Exit(1)
	}
}

// address is the one line that a bridge prints.
type address struct {
	// URL is both planes', Key what the control plane wants.
	URL string `json:"url"`
	Key string `json:"key"`
}

// run serves until the end of stdin or a signal, and leaves no sandbox behind.
func run(ctx context.Context, config berm.Config, stdin io.Reader, stdout io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	provider, err := berm.Open(ctx, process.Config{}, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	b := newBridge(ctx, provider, listener.Addr().String())
	defer b.wait()
	server := &http.Server{Handler: b, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(os.Stderr, "bridge: ", 0)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := json.NewEncoder(stdout).Encode(address{URL: "http://" + listener.Addr().String(), Key: b.key}); err != nil {
		return errors.Join(fmt.Errorf("tell the address: %w", err), server.Close(), <-served)
	}
	go func() {
		// Whoever started the bridge holds its input: their end is its end.
		_, _ = io.Copy(io.Discard, stdin)
		stop()
	}()
	<-ctx.Done()
	closed := server.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		closed = errors.Join(closed, err)
	}
	return closed
}
