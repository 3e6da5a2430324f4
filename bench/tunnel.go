package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
)

// clientOrder is what a client's process is told.
type clientOrder struct {
	URL, Proxy string
	Roots      []byte
	Requests   int
}

// beClient is this program as a client: requests over one connection, one after
// another. It prints their median in nanoseconds.
func beClient(ctx context.Context, text string) error {
	var order clientOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return fmt.Errorf("read the order of a client: %w", err)
	}
	r := &route{transport: &http.Transport{}}
	if order.Proxy != "" {
		// By an address of its own: the usual way passes over every proxy for a name
		// like the bench's.
		proxy, err := url.Parse(os.Getenv(order.Proxy))
		if err != nil {
			return err
		}
		r.transport.Proxy = http.ProxyURL(proxy)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(order.Roots)
	r.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	defer r.transport.CloseIdleConnections()
	var each sample
	for i := range order.Requests + warmups {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, order.URL, nil)
		if err != nil {
			return err
		}
		took, err := timed(func() error { return answered(r.transport, req, 2) })
		if err != nil {
			return err
		}
		if i >= warmups {
			each.took = append(each.took, took)
		}
	}
	fmt.Println(each.median().Nanoseconds())
	return nil
}

// tunnelRow is a tunnel from within a sandbox, through the gate in its host
// program, beside the same client outside.
func tunnelRow(ctx context.Context, b *bench) (out []verdict, err error) {
	w := &world{}
	defer func() { err = errors.Join(err, w.close()) }()
	roots, err := w.startServers(ctx)
	if err != nil {
		return nil, err
	}
	nameserver, err := w.startNames(ctx)
	if err != nil {
		return nil, err
	}
	order := clientOrder{URL: fmt.Sprintf("https://%s:%d/?n=2", upstreamHost, w.https), Roots: roots, Requests: burst}
	p, err := berm.Open(ctx, process.Config{}, berm.Config{
		Agent: berm.AgentProgram{Path: b.agent}, Nameservers: []string{nameserver},
		Egress: &berm.Egress{Allow: []string{fmt.Sprintf("%s:%d", upstreamHost, w.https)}, AllowInwardFor: []string{upstreamHost}},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	sb, err := p.Create(ctx, berm.CreateOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()
	direct, inside, err := tunnelClients(ctx, sb, order)
	if err != nil {
		return nil, err
	}
	if err := interleave(ctx, b.runs, direct, inside); err != nil {
		return nil, err
	}
	return []verdict{added(targetTunnel)("a request through a tunnel, from a sandbox", direct, inside)}, nil
}

// tunnelClients puts this program inside as well.
func tunnelClients(ctx context.Context, sb *berm.Sandbox, order clientOrder) (direct, inside *sample, err error) {
	own, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	image, err := os.Open(own)
	if err != nil {
		return nil, nil, err
	}
	defer image.Close()
	program := path.Join(sb.WorkDir(), "client")
	if err := sb.Files().Create(ctx, program, 0o755, image); err != nil {
		return nil, nil, err
	}
	plain, err := json.Marshal(order)
	if err != nil {
		return nil, nil, err
	}
	order.Proxy = "HTTPS_PROXY"
	proxied, err := json.Marshal(order)
	if err != nil {
		return nil, nil, err
	}
	direct = &sample{name: "direct", once: func(ctx context.Context) (time.Duration, error) {
		text, err := exec.CommandContext(ctx, own, "-client", string(plain)).Output()
		return nanoseconds(text, err)
	}}
	inside = &sample{name: "from a sandbox", once: func(ctx context.Context) (time.Duration, error) {
		text, err := sb.CommandContext(ctx, program, "-client", string(proxied)).Output()
		return nanoseconds(text, err)
	}}
	return direct, inside, nil
}

func nanoseconds(text []byte, err error) (time.Duration, error) {
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(n), err
}
