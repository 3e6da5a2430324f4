package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Targets of egress.
const (
	// targetTunnel is by how much a request through a tunnel may be slower, in
	// microseconds; targetEnded the same where the gate ends TLS and looks at each
	// request and response.
	targetTunnel = 100.0
	targetEnded  = 300.0
	// targetThroughput is the share of the direct one that a tunnel keeps.
	targetThroughput = 0.5
	// targetPeers is how fast ours is at least beside the better of the others.
	targetPeers = 1.0
)

const (
	// tunnelBytes are moved by each run of a bulk row.
	tunnelBytes = 64 << 20
	// longBody is what has to leave memory flat.
	longBody = 10 << 30
	// burst is how many requests follow each other in one run over a kept
	// connection; their median counts. A single one would measure how fast an idle
	// machine wakes up, four times over.
	burst = 50
	// microsecond is the unit of what is added.
	microsecond = float64(time.Microsecond)
)

// get is one request that gives n bytes.
func (r *route) get(ctx context.Context, transport *http.Transport, scheme string, port int, n int64) error {
	url := fmt.Sprintf("%s://%s:%d/?n=%d", scheme, r.host, port, n)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return answered(transport, req, n)
}

// post is one request that takes n bytes.
func (r *route) post(ctx context.Context, port int, n int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://%s:%d/", r.host, port), io.LimitReader(zeros{}, n))
	if err != nil {
		return err
	}
	req.ContentLength = n
	return answered(r.transport, req, int64(len(strconv.FormatInt(n, 10))))
}

// answered makes a request and wants a body of n bytes.
func answered(transport *http.Transport, req *http.Request, n int64) error {
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		why, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return errors.Join(fmt.Errorf("%s: %s", resp.Status, why), err, resp.Body.Close())
	}
	got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, make([]byte, min(n+1, blockBytes)))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("%d bytes of %d", got, n)
	}
	return nil
}

// zeros gives as many as are read.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// egressRow is the gate beside no proxy and beside others, in one run.
func egressRow(ctx context.Context, b *bench) (out []verdict, err error) {
	w, err := b.newWorld(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	routes := w.routes()
	kinds := []struct {
		name  string
		runs  int
		burst int
		once  func(context.Context, *route) error
		// judge adds verdicts to the one beside the peers; nil for none.
		judge func(name string, direct, ours *sample) verdict
	}{
		{"HTTP keep-alive", b.runs, burst, func(ctx context.Context, r *route) error { return r.get(ctx, r.transport, "http", w.http, 2) }, nil},
		{"CONNECT keep-alive", b.runs, burst, func(ctx context.Context, r *route) error { return r.get(ctx, r.transport, "https", w.https, 2) }, nil},
		{"new connection and TLS", b.runs * 3, 1, func(ctx context.Context, r *route) error {
			fresh := r.transport.Clone()
			defer fresh.CloseIdleConnections()
			return r.get(ctx, fresh, "https", w.https, 2)
		}, nil},
		{"CONNECT, bytes down", b.bulkRuns(), 1, func(ctx context.Context, r *route) error {
			return r.get(ctx, r.transport, "https", w.https, tunnelBytes)
		}, share},
		{"CONNECT, bytes up", b.bulkRuns(), 1, func(ctx context.Context, r *route) error { return r.post(ctx, w.https, tunnelBytes) }, share},
		{"HTTP, bytes down", b.bulkRuns(), 1, func(ctx context.Context, r *route) error { return r.get(ctx, r.transport, "http", w.http, tunnelBytes) }, nil},
	}
	for _, kind := range kinds {
		samples := sampleRoutes(routes, kind.burst, kind.once)
		if err := interleave(ctx, kind.runs, samples...); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
		if kind.judge != nil {
			out = append(out, kind.judge(kind.name, samples[0], samples[1]))
		}
		out = append(out, besidePeers(kind.name, samples))
	}
	ended, err := w.ended(ctx, b, routes[0])
	return append(out, ended...), err
}

// sampleRoutes makes a run of so many requests, one after another.
func sampleRoutes(routes []*route, burst int, once func(context.Context, *route) error) []*sample {
	var out []*sample
	for _, r := range routes {
		out = append(out, &sample{name: r.name, once: func(ctx context.Context) (time.Duration, error) {
			var each sample
			for range burst {
				took, err := timed(func() error { return once(ctx, r) })
				if err != nil {
					return 0, err
				}
				each.took = append(each.took, took)
			}
			return each.median(), nil
		}})
	}
	return out
}

// ended is a request whose TLS the gate ends, and bytes on such a way.
func (w *world) ended(ctx context.Context, b *bench, direct *route) (out []verdict, err error) {
	routes := []*route{direct, w.brokered()}
	small := sampleRoutes(routes, burst, func(ctx context.Context, r *route) error { return r.get(ctx, r.transport, "https", w.https, 2) })
	if err := interleave(ctx, b.runs, small...); err != nil {
		return nil, fmt.Errorf("TLS ended: %w", err)
	}
	large := sampleRoutes(routes, 1, func(ctx context.Context, r *route) error {
		return r.get(ctx, r.transport, "https", w.https, tunnelBytes)
	})
	if err := interleave(ctx, b.bulkRuns(), large...); err != nil {
		return nil, fmt.Errorf("TLS ended: %w", err)
	}
	return []verdict{added(targetEnded)("TLS ended, keep-alive", small[0], small[1]), share("TLS ended, bytes down", large[0], large[1])}, nil
}

// added judges by how much the median is larger than without a proxy.
func added(target float64) func(string, *sample, *sample) verdict {
	return func(name string, direct, ours *sample) verdict {
		more := float64(ours.median()-direct.median()) / microsecond
		return atMost(name+", added", more, target, "us", direct.millis(), ours.millis())
	}
}

// share judges the throughput.
func share(name string, direct, ours *sample) verdict {
	return atLeast(name+", against direct", float64(direct.median())/float64(ours.median()), targetThroughput, "x", direct.rate(tunnelBytes), ours.rate(tunnelBytes))
}

// besidePeers judges ours, the second sample, beside the best of the others.
func besidePeers(name string, samples []*sample) verdict {
	v := verdict{Name: name + ", beside the better peer"}
	if len(samples) < 3 {
		v.Skipped = "no -peers was given; scripts/egress-peers builds them"
		return v
	}
	best := samples[2]
	for _, s := range samples[3:] {
		if s.median() < best.median() {
			best = s
		}
	}
	var figures []figure
	for _, s := range samples {
		figures = append(figures, s.millis())
	}
	return atLeast(v.Name, float64(best.median())/float64(samples[1].median()), targetPeers, "x", figures...)
}

// egressMemoryRow is what the gate's process holds for a long body and for tunnels
// that are open.
func egressMemoryRow(ctx context.Context, b *bench) (out []verdict, err error) {
	w, err := b.newWorld(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	ours := w.routes()[1]
	for _, long := range []struct {
		name   string
		way    *route
		scheme string
		port   int
	}{{"HTTP", ours, "http", w.http}, {"CONNECT", ours, "https", w.https}, {"TLS ended", w.brokered(), "https", w.https}} {
		// What a first request makes stays.
		if err := long.way.get(ctx, long.way.transport, long.scheme, long.port, tunnelBytes); err != nil {
			return nil, err
		}
		watch := watchProcesses([]int{long.way.pid}, nil)
		err := long.way.get(ctx, long.way.transport, long.scheme, long.port, longBody)
		grown, _ := watch.stop()
		if err != nil {
			return nil, fmt.Errorf("a long body, %s: %w", long.name, err)
		}
		out = append(out, atMost("most that the gate grew in 10 GiB, "+long.name, grown, targetFlat, "MiB"))
	}
	idle, err := w.idleTunnels(ctx)
	return append(out, idle), err
}

// idleTunnels opens tunnels with TLS in them through each proxy, and leaves them.
func (w *world) idleTunnels(ctx context.Context) (v verdict, err error) {
	var figures []figure
	for _, r := range w.routes()[1:] {
		grown, err := w.holdTunnels(ctx, r)
		if err != nil {
			return v, fmt.Errorf("idle tunnels, %s: %w", r.name, err)
		}
		figures = append(figures, figure{Name: r.name + ", growth", Value: grown, Unit: "MiB"})
	}
	return atMost(fmt.Sprintf("the gate with %d idle tunnels", tunnelCount), figures[0].Value, targetTunnels, "MiB", figures...), nil
}

func (w *world) holdTunnels(ctx context.Context, r *route) (grown float64, err error) {
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			// Its other end may have closed it first.
			_ = conn.Close()
		}
	}()
	before, err := proportional(r.pid)
	if err != nil {
		return 0, err
	}
	say := newProgress("idle tunnels", tunnelCount)
	for i := range tunnelCount {
		conn, err := r.tunnel(ctx, w.https)
		if err != nil {
			return 0, fmt.Errorf("tunnel %d: %w", i+1, err)
		}
		conns = append(conns, conn)
		say.at(i + 1)
	}
	after, err := proportional(r.pid)
	return after - before, err
}

// tunnel opens one by CONNECT and makes TLS in it.
func (r *route) tunnel(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.proxy)
	if err != nil {
		return nil, err
	}
	authority := net.JoinHostPort(r.host, strconv.Itoa(port))
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// The server speaks second in TLS: nothing comes after the header.
	answer := make([]byte, 4096)
	got := 0
	for !strings.Contains(string(answer[:got]), "\r\n\r\n") {
		n, err := conn.Read(answer[got:])
		if got += n; err != nil || got == len(answer) {
			return nil, errors.Join(fmt.Errorf("the proxy's answer: %q", answer[:got]), err, conn.Close())
		}
	}
	session := tls.Client(conn, &tls.Config{RootCAs: r.roots, ServerName: r.host, MinVersion: tls.VersionTLS12})
	if err := session.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return session, nil
}
