package audit

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

var (
	_ egress.Sink = Func(nil)
	_ egress.Sink = (*File)(nil)
	_ egress.Sink = (*Queue)(nil)
)

// Func is a function as a sink. It gets records as they are: what it writes down
// it escapes itself, or takes from Line. It is called from many goroutines. A nil
// Func fails.
type Func func(ctx context.Context, r *egress.Record) error

// Write implements egress.Sink.
func (f Func) Write(ctx context.Context, r *egress.Record) error {
	if f == nil {
		return errdefs.New(errdefs.Unavailable, "write audit record", "the sink is a nil function")
	}
	return f(ctx, r)
}

// Multi writes to all sinks in their order, also after one has failed; the errors
// are joined. Without sinks it fails: nothing would be kept.
func Multi(sinks ...egress.Sink) egress.Sink {
	return Func(func(ctx context.Context, r *egress.Record) error {
		if len(sinks) == 0 {
			return errdefs.New(errdefs.Unavailable, "write audit record", "there is no sink")
		}
		var errs []error
		for _, sink := range sinks {
			if sink == nil {
				errs = append(errs, errdefs.New(errdefs.Unavailable, "write audit record", "a sink is nil"))
				continue
			}
			errs = append(errs, sink.Write(ctx, r))
		}
		return errors.Join(errs...)
	})
}

// Slog writes to a logger's handler: at level Info what was allowed, at Warn what
// was denied, whatever the handler's own level is, since a record that is passed
// over is a record lost. Attributes have the names of the JSON fields; texts have
// printable ASCII only, the rest as in Go's string literals. A nil logger fails.
func Slog(logger *slog.Logger) egress.Sink {
	return Func(func(ctx context.Context, r *egress.Record) error {
		if logger == nil {
			return errdefs.New(errdefs.Unavailable, "write audit record", "the logger is nil")
		}
		level := slog.LevelInfo
		if !r.Allow {
			level = slog.LevelWarn
		}
		entry := slog.NewRecord(r.Time, level, "egress "+visible(string(r.Event)), 0)
		entry.AddAttrs(attributes(r)...)
		// The handler itself, because a Logger keeps its handler's errors to itself.
		return errdefs.Wrap(errdefs.Unavailable, "write audit record", logger.Handler().Handle(ctx, entry))
	})
}

// attributes are the fields of a record that are set.
func attributes(r *egress.Record) []slog.Attr {
	b := bound(r)
	out := []slog.Attr{
		slog.Uint64("flow", b.Flow), slog.Bool("allow", b.Allow), slog.String("reason", visible(string(b.Reason))), slog.Uint64("generation", b.Generation),
	}
	for _, text := range []struct{ name, value string }{
		{"sandbox", b.Sandbox}, {"protocol", string(b.Protocol)}, {"rule", b.Rule}, {"asked", b.Asked}, {"host", b.Host},
		{"method", b.Method}, {"sni", b.SNI}, {"dialled", b.Dialled}, {"credential", b.Credential}, {"error", b.Error},
		{"chain", strings.Join(b.Chain, " ")}, {"addresses", addresses(&b)},
	} {
		if text.value != "" {
			out = append(out, slog.String(text.name, visible(text.value)))
		}
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"ech", b.ECH}, {"ws", b.WebSocket}} {
		if flag.set {
			out = append(out, slog.Bool(flag.name, true))
		}
	}
	for _, number := range []struct {
		name  string
		value int64
	}{{"port", int64(b.Port)}, {"sent", b.Sent}, {"received", b.Received}, {"milliseconds", b.Milliseconds}} {
		if number.value != 0 {
			out = append(out, slog.Int64(number.name, number.value))
		}
	}
	return out
}

func addresses(r *egress.Record) string {
	var out []string
	for _, addr := range r.Addresses {
		out = append(out, addr.String())
	}
	return strings.Join(out, " ")
}

// visible escapes what is not printable ASCII. A handler of the host program may
// write texts to a terminal as they are.
func visible(s string) string {
	quoted := strconv.QuoteToASCII(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
