package gate

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/screen"
)

// denial is a refusal on its way to the client and into the record.
type denial struct {
	reason egress.Reason
	// status is the HTTP answer; 0 for the reason's own.
	status int
	// err is for the record; it names no secret.
	err error
}

// Error gives the reason and its cause.
func (d *denial) Error() string {
	if d.err == nil {
		return "denied: " + string(d.reason)
	}
	return "denied: " + string(d.reason) + ": " + d.err.Error()
}

// Unwrap gives the cause.
func (d *denial) Unwrap() error { return d.err }

func deny(reason egress.Reason, err error) *denial { return &denial{reason: reason, err: err} }

// code is the HTTP status of the denial.
func (d *denial) code() int {
	if d.status != 0 {
		return d.status
	}
	switch d.reason { // all others are the policy's word
	case egress.ReasonMalformed:
		return http.StatusBadRequest
	case egress.ReasonAuth:
		return http.StatusProxyAuthRequired
	case egress.ReasonTimeout:
		return http.StatusRequestTimeout
	case egress.ReasonHost:
		return http.StatusMisdirectedRequest
	case egress.ReasonDial, egress.ReasonTLSVerify, egress.ReasonUpstream:
		return http.StatusBadGateway
	case egress.ReasonLimit, egress.ReasonAudit, egress.ReasonCredentialLost, egress.ReasonClosed:
		return http.StatusServiceUnavailable
	case egress.ReasonLoop:
		return http.StatusLoopDetected
	case egress.ReasonInternal:
		return http.StatusInternalServerError
	}
	return http.StatusForbidden
}

// ruling is the one decision record of one request. It is written once, whatever
// happens; the zero fields are filled in as they become known.
type ruling struct {
	g   *Gate
	rec egress.Record

	mu      sync.Mutex
	written bool
}

func (g *Gate) newRuling(number uint64, p egress.Protocol) *ruling {
	return &ruling{g: g, rec: egress.Record{
		Flow: number, Event: egress.EventDecision, Protocol: p,
		Generation: g.current.Load().generation(),
	}}
}

// judged takes over what a verdict says.
func (r *ruling) judged(v egress.Verdict) {
	r.rec.Rule, r.rec.Host, r.rec.Port = v.Rule, v.Host, v.Port
	r.rec.Reason, r.rec.Generation = v.Reason, v.Generation
}

// traced takes over how the upstream was found.
func (r *ruling) traced(t screen.Trace) {
	r.rec.Chain, r.rec.Addresses, r.rec.Dialled = t.Chain, t.Addrs, t.Dialled
}

// allow writes the decision. An error means that nothing may be sent.
func (r *ruling) allow(ctx context.Context) *denial {
	r.rec.Allow = true
	if err := r.once(ctx); err != nil {
		r.g.denied.Add(1)
		return deny(egress.ReasonAudit, err)
	}
	return nil
}

// deny writes the refusal; it does nothing when a decision was written before.
func (r *ruling) deny(ctx context.Context, d *denial) {
	r.mu.Lock()
	written := r.written
	r.mu.Unlock()
	if written {
		return
	}
	r.g.denied.Add(1)
	r.rec.Allow, r.rec.Reason = false, d.reason
	if d.err != nil {
		r.rec.Error = d.err.Error()
	}
	// It is denied already: a sink that fails changes nothing.
	_ = r.once(ctx)
}

// once writes the decision unless it was. A sink that breaks down has not written
// it: the break-down is what is written next.
func (r *ruling) once(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written {
		return nil
	}
	err := r.g.write(ctx, &r.rec)
	r.written = true
	return err
}

// end writes the last record of a flow that was allowed.
func (r *ruling) end(ctx context.Context, f *flow, otherwise egress.Reason, cause error) {
	rec := r.rec
	rec.Event, rec.Reason = egress.EventEnd, f.stopped(otherwise)
	rec.Sent, rec.Received = f.sent.Load(), f.received.Load()
	rec.Milliseconds = time.Since(f.start).Milliseconds()
	rec.Error = ""
	if cause != nil {
		rec.Error = cause.Error()
	}
	_ = r.g.write(ctx, &rec)
}

// write gives a record to the sink, whatever became of the client.
func (g *Gate) write(ctx context.Context, r *egress.Record) error {
	if g.config.Sink == nil {
		return nil
	}
	r.Time, r.Sandbox = time.Now(), g.config.Sandbox
	for _, s := range []*string{&r.Rule, &r.Asked, &r.Host, &r.Method, &r.SNI, &r.Error} {
		*s = short(*s)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.config.Timeouts.Sink)
	defer cancel()
	if err := g.config.Sink.Write(ctx, r); err != nil {
		g.log(ctx, "audit", err)
		return err
	}
	return nil
}

func short(s string) string {
	const most = 1024
	if len(s) > most {
		return s[:most]
	}
	return s
}
