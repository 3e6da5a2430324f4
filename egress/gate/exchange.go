package gate

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/egress/gate/internal/screen"
	"github.com/berm-dev/berm/egress/gate/internal/wire"
)

// exchange is one HTTP request on its way through the gate.
type exchange struct {
	*ruling
	session *session
	arrival *arrival

	snapshot *snapshot
	verdict  egress.Verdict
	query    egress.Query
	bound    *broker.Bound // nil for a host without a credential
	secure   bool          // goes out by TLS
	socket   bool          // a WebSocket is asked for
	slot     bool          // one of the gate's tunnels is held
	turn     bool          // one of the gate's requests is held

	cancel context.CancelCauseFunc
	writer http.ResponseWriter
	life   sync.Mutex
	over   bool  // the handler has ended; the writer is not to be used
	flow   *flow // nil until it was let through
	trace  screen.Trace
	cause  error // why the flow ended, for its record
	failed egress.Reason
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// ServeHTTP serves one request of any of the ways in by HTTP. It is called by the
// gate's own servers, with a context of theirs.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.requests.Add(1)
	s := sessionOf(r.Context())
	if s == nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	x := &exchange{ruling: g.newRuling(s.number, egress.HTTP), session: s, cancel: cancel}
	out := &responder{ResponseWriter: w, client: s.client}
	x.writer = w
	defer x.finish(ctx, out)
	if s.tunnel != nil && s.tunnel.secure {
		x.rec.Protocol = egress.Terminated
	}
	if d := x.serve(out, r.WithContext(context.WithValue(ctx, exchangeKey{}, x))); d != nil {
		x.refuse(ctx, out, d)
	}
}

// finish writes the end of what was let through, and the fault of what broke
// down.
func (x *exchange) finish(ctx context.Context, w *responder) {
	fault := recover()
	// A client need not wait for the last record.
	if fault == nil && x.flow != nil && !w.hijacked && w.ResponseWriter != nil && w.Header().Get("Content-Length") != "" {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
	x.life.Lock()
	x.over = true
	x.life.Unlock()
	if fault != nil && fault != http.ErrAbortHandler { //nolint:errorlint // recover gives the very value
		x.failed = egress.ReasonInternal
		x.cause = fmt.Errorf("broke down: %v", fault)
		x.g.broke(ctx, x.ruling, x.cause)
	}
	if x.flow != nil {
		x.g.flows.remove(x.flow)
		if x.failed == "" {
			x.failed = egress.ReasonDone
		}
		x.endQuietly(ctx)
	}
	x.cancel(nil)
	if x.slot {
		<-x.g.tunnels
	}
	if x.turn {
		<-x.g.answering
	}
	if w.client != nil {
		w.client.done()
		if w.hijacked {
			_ = w.client.Close()
			w.client.release()
		}
	}
	if fault != nil {
		panic(http.ErrAbortHandler)
	}
}

// endQuietly writes the end; a sink that breaks down must not break the clean-up.
func (x *exchange) endQuietly(ctx context.Context) {
	defer func() { _ = recover() }()
	x.end(ctx, x.flow, x.failed, x.cause)
}

// arrived takes what is known about the request's form.
func (x *exchange) arrived(r *http.Request) {
	if c := x.session.client; c != nil {
		x.arrival = c.next()
	} else {
		// HTTP/2, whose form net/http has checked, but for what a request line bears.
		x.arrival = &arrival{head: &wire.Request{Method: r.Method, Target: r.RequestURI, Host: r.Host, HasHost: true}}
		if fault := wire.CheckLine(r.Method, r.RequestURI); fault != nil {
			x.arrival.refused = malformed(fault)
		}
	}
	if x.arrival == nil {
		x.arrival = &arrival{refused: deny(egress.ReasonInternal, errors.New("a request that nobody announced"))}
	}
	if h := x.arrival.head; h != nil {
		x.rec.Method = h.Method
		if h.Method == http.MethodConnect && x.session.tunnel == nil {
			x.rec.Protocol = egress.Connect
		}
	}
	x.rec.Asked = x.arrival.authority
}

// serve judges the request and answers it, unless it returns a denial.
func (x *exchange) serve(w *responder, r *http.Request) *denial {
	x.arrived(r)
	if d := x.arrival.refused; d != nil {
		return d
	}
	if d := x.authorised(r); d != nil {
		return d
	}
	if x.arrival.head.Method == http.MethodConnect && x.session.tunnel == nil {
		return x.connect(w, r)
	}
	select {
	case x.g.answering <- struct{}{}:
		x.turn = true
	default:
		// Each may take a connection of its own, and HTTP/2 has many on one.
		return deny(egress.ReasonLimit, errors.New("too many requests at a time"))
	}
	if d := x.decideRequest(r); d != nil {
		return d
	}
	x.socket = x.arrival.head.Upgrade == "websocket"
	if !x.socket || x.bound != nil {
		x.stripUpgrade(r)
	}
	x.g.proxy.ServeHTTP(w, r)
	return nil
}

// stripUpgrade removes the wish to switch protocols: requests inside another
// protocol would be judged by nobody. A credential's host gets to see the refusal
// of the broker, so that the client learns why.
func (x *exchange) stripUpgrade(r *http.Request) {
	if x.bound != nil && x.socket {
		return
	}
	r.Header.Del("Upgrade")
	r.Header.Del("Http2-Settings")
}

// authorised checks the credential of the listener, where there is one.
func (x *exchange) authorised(r *http.Request) *denial {
	c := &x.g.config
	if c.Username == "" || x.session.tunnel != nil {
		return nil
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password))
	got := r.Header.Values("Proxy-Authorization")
	if len(got) != 1 || subtle.ConstantTimeCompare([]byte(got[0]), []byte(want)) != 1 {
		return deny(egress.ReasonAuth, nil)
	}
	return nil
}

// decideRequest judges a request other than CONNECT.
func (x *exchange) decideRequest(r *http.Request) *denial {
	x.query = egress.Query{Protocol: x.rec.Protocol, Port: 80}
	if t := x.session.tunnel; t != nil {
		if d := x.matchesTunnel(r, t); d != nil {
			return d
		}
		x.query.Host, x.query.Port = t.host, t.port
	} else {
		host, port, err := egress.SplitAuthority(x.arrival.authority)
		if err != nil {
			return deny(egress.ReasonMalformed, err)
		}
		x.query.Host = host
		if port != 0 {
			x.query.Port = port
		}
		if d := x.looped(r); d != nil {
			return d
		}
	}
	x.rec.Asked = x.query.Host
	x.snapshot, x.verdict = x.g.decide(r.Context(), x.query)
	x.judged(x.verdict)
	if !x.verdict.Allow {
		return deny(x.verdict.Reason, nil)
	}
	return x.broker()
}

// broker settles by which way an allowed request goes out.
func (x *exchange) broker() *denial {
	inTLS := x.session.tunnel != nil && x.session.tunnel.secure
	switch {
	case !x.verdict.Brokered && inTLS:
		return deny(egress.ReasonUnterminated, errors.New("the host has no credential any more"))
	case !x.verdict.Brokered && x.verdict.Port != 80 && !x.verdict.Opaque:
		return deny(egress.ReasonNotTLS, errors.New("a plain request to another port than 80"))
	case !x.verdict.Brokered:
		return nil
	case !inTLS && x.verdict.Port != 80:
		return deny(egress.ReasonNotTLS, errors.New("a plain request to a host with a credential"))
	case !inTLS:
		// The credential never goes out in clear: the request is upgraded, and has
		// to be allowed as that.
		x.query.Port = 443
		x.verdict = x.snapshot.rules.Decide(x.query)
		x.judged(x.verdict)
		if !x.verdict.Allow || !x.verdict.Brokered {
			return deny(x.verdict.Reason, nil)
		}
	}
	x.secure = true
	x.bound = x.snapshot.credentials.For(x.verdict.Host)
	if x.bound == nil {
		return deny(egress.ReasonUnterminated, errors.New("the host's credential is not there"))
	}
	x.rec.Credential = x.bound.ID()
	return nil
}

// matchesTunnel holds a request inside a tunnel against the tunnel's target.
func (x *exchange) matchesTunnel(r *http.Request, t *tunnel) *denial {
	x.rec.SNI = t.sni
	if t.secure {
		if reason, err := broker.CheckTarget(r, t.host, t.port); err != nil {
			x.rec.Asked = r.Host
			return deny(reason, err)
		}
		return nil
	}
	x.rec.Asked = r.Host
	if r.Method == http.MethodConnect {
		return deny(egress.ReasonMalformed, errors.New("CONNECT within a tunnel for plain requests"))
	}
	for _, authority := range []string{r.Host, r.URL.Host} {
		if authority != "" && !sameTarget(authority, t) {
			return deny(egress.ReasonHost, errors.New("the request is for another host than the tunnel"))
		}
	}
	if r.Host == "" {
		return deny(egress.ReasonMalformed, errors.New("no host"))
	}
	return nil
}

func sameTarget(authority string, t *tunnel) bool {
	host, port, err := egress.SplitAuthority(authority)
	if err != nil || port != 0 && port != t.port || port == 0 && t.port != 80 {
		return false
	}
	name, err := egress.CanonicalHost(host)
	return err == nil && name == t.host
}

// looped refuses a request that this gate has seen, or that has passed too many.
func (x *exchange) looped(r *http.Request) *denial {
	const mostHops = 16
	hops := 0
	for _, value := range r.Header.Values(egress.HopHeader) {
		for hop := range strings.SplitSeq(value, ",") {
			hops++
			if strings.TrimSpace(hop) == x.g.nonce || hops > mostHops {
				return deny(egress.ReasonLoop, nil)
			}
		}
	}
	return nil
}

// refuse writes the denial down and tells the client.
func (x *exchange) refuse(ctx context.Context, w *responder, d *denial) {
	x.deny(ctx, d)
	if w.hijacked {
		return
	}
	if c := w.client; c != nil && (d.code() == http.StatusBadRequest || x.lastOfItsConnection()) {
		w.Header().Set("Connection", "close")
		c.stayBriefly()
	}
	// A client that never reads its denials must not keep its handler for ever.
	rc := http.NewResponseController(w.ResponseWriter)
	if x.flow == nil {
		_ = rc.SetWriteDeadline(time.Now().Add(x.g.config.Timeouts.Idle))
	}
	writeDenial(w, d, x.rec.Rule, x.host(), x.verdict)
	if x.flow == nil && rc.Flush() == nil {
		_ = rc.SetWriteDeadline(time.Time{})
	}
}

// lastOfItsConnection reports whether no request can follow: what comes next was
// not checked as one, or the time for writing has run out.
func (x *exchange) lastOfItsConnection() bool {
	a := x.arrival
	return a == nil || a.head == nil || a.head.Upgrade != "" || x.rec.Protocol == egress.Connect ||
		x.flow != nil && x.flow.stopped("") != ""
}

func (x *exchange) host() string {
	if x.rec.Host != "" {
		return x.rec.Host
	}
	return short(x.rec.Asked)
}

// writeDenial tells a client why, in JSON.
func writeDenial(w http.ResponseWriter, d *denial, rule, host string, v egress.Verdict) {
	hint := hintOf(d.reason)
	if !v.Allow && v.Reason == d.reason {
		hint = v.Hint()
	}
	body, err := json.Marshal(struct {
		Error  string        `json:"error"`
		Reason egress.Reason `json:"reason"`
		Rule   string        `json:"rule,omitempty"`
		Host   string        `json:"host,omitempty"`
		Hint   string        `json:"hint,omitempty"`
	}{"refused by the egress gate", d.reason, rule, host, hint})
	if err != nil {
		body = []byte(`{"error":"refused by the egress gate"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("Cache-Control", "no-store")
	if d.code() == http.StatusProxyAuthRequired {
		h.Set("Proxy-Authenticate", `Basic realm="egress gate"`)
	}
	w.WriteHeader(d.code())
	_, _ = w.Write(append(body, '\n'))
}

// hintOf says what to do about a denial that is not the rules' own.
func hintOf(reason egress.Reason) string {
	switch reason { // the others speak for themselves
	case egress.ReasonMalformed:
		return "send an absolute http:// URL, or CONNECT host:port, with a plain host name"
	case egress.ReasonInward, egress.ReasonSelf:
		return "the name leads to an address that is not public; the policy can exempt it by AllowInwardFor"
	case egress.ReasonMetadata:
		return "link-local and metadata addresses are never reached"
	case egress.ReasonNotTLS:
		return "use TLS on this port, or plain HTTP on port 80; other protocols need a tcp:// rule"
	case egress.ReasonMethod, egress.ReasonPath:
		return "the credential's rules do not have this method or path"
	case egress.ReasonPlaceholder:
		return "the placeholder is valid in its declared header only"
	case egress.ReasonUpgrade:
		return "a host with a credential takes no protocol upgrades"
	case egress.ReasonHost:
		return "the request's host has to be the tunnel's"
	}
	return ""
}

// responder knows whether the connection was taken from net/http.
type responder struct {
	http.ResponseWriter
	client   *client // nil for HTTP/2
	hijacked bool
}

// Unwrap is for http.ResponseController.
func (w *responder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack gives the connection, with what net/http has read ahead still in it.
func (w *responder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil || w.client == nil {
		return conn, rw, err
	}
	w.hijacked = true
	w.client.arrest(rw.Reader)
	return w.client, bufio.NewReadWriter(bufio.NewReader(w.client), rw.Writer), nil
}
