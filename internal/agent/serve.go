package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/link/fdpass"
)

// headerTimeout bounds how long a stream may take to say what it wants.
const headerTimeout = 30 * time.Second

// Serve is an agent on the guest's side of an fdpass link. It owns control, a
// SEQPACKET socket, takes the boot message from it, and serves until the host's
// end is gone, the context ends, or the host breaks the protocol; only the last
// is an error. Every process of every command has ended when it returns.
// executable is the agent's program for its exec and probe modes. Nothing of the
// calling process as a whole is changed.
func Serve(ctx context.Context, control *os.File, executable string) error {
	return serve(ctx, control, Config{Executable: executable})
}

func serve(ctx context.Context, control *os.File, config Config) error {
	guest, payload, files, err := fdpass.Guest(control)
	if err != nil {
		return err
	}
	defer guest.Close()
	config.Boot, err = boot.Decode(payload)
	if err == nil {
		config.Files, err = nameFiles(config.Boot.Files, files)
	}
	if err != nil {
		for _, file := range files {
			_ = file.Close()
		}
		return errdefs.Wrap(errdefs.Protocol, "read boot packet", err)
	}
	if config.outlet, err = openOutlet(ctx, config.Boot.EgressAddress); err != nil {
		config.closeFiles()
		return err
	}
	agent, err := New(config)
	if err != nil {
		return errors.Join(errdefs.Wrap(errdefs.Invalid, "start agent", err), config.outlet.close())
	}
	defer agent.Close()
	if err := config.outlet.hello(guest); err != nil {
		return err
	}
	return agent.serveStreams(ctx, guest)
}

// nameFiles pairs the boot message's names with the descriptors that came.
func nameFiles(names []string, files []*os.File) (map[string]*os.File, error) {
	if len(names) != len(files) {
		return nil, fmt.Errorf("%d descriptors came for %d names", len(files), len(names))
	}
	out := make(map[string]*os.File, len(names))
	for i, name := range names {
		if out[name] != nil {
			return nil, fmt.Errorf("two descriptors are named %q", name)
		}
		out[name] = files[i]
	}
	return out, nil
}

// serveStreams serves both planes until the link's end.
func (a *Agent) serveStreams(ctx context.Context, guest *fdpass.GuestSide) error {
	stop := context.AfterFunc(ctx, func() { _ = guest.Close() })
	defer stop()
	var serving sync.WaitGroup
	servers := []*http.Server{newServer(a.Data()), newServer(a.Control())}
	for i, listener := range []net.Listener{guest.Data(), guest.Control()} {
		serving.Go(func() { _ = servers[i].Serve(listener) })
	}
	err := guest.Wait()
	if defence.AgentEndsWithLink.Off() {
		select {}
	}
	// A killed tree lets the handlers go before their streams are cut.
	a.Close()
	for _, server := range servers {
		_ = server.Close()
	}
	serving.Wait()
	if errors.Is(err, errdefs.Closed) {
		return nil
	}
	return err
}

// maxHeader bounds a request's header, in bytes.
func maxHeader() int {
	if defence.AgentHeaderSize.Off() {
		return 1 << 30
	}
	return 64 << 10
}

func newServer(handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader(),
		Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0),
	}
}
