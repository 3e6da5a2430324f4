package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
)

// plain is a handler that writes texts as they are, as a host program's may.
type plain struct {
	slog.Handler
	out *bytes.Buffer
	err error
}

func (p plain) Handle(_ context.Context, r slog.Record) error {
	p.out.WriteString(r.Level.String() + " " + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		p.out.WriteString(" " + a.Key + "=" + a.Value.String())
		return true
	})
	p.out.WriteByte('\n')
	return p.err
}

func TestSlog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	// A level above everything: a record is not passed over.
	sink := audit.Slog(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelError + 1})))
	if err := sink.Write(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(out.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"level": "INFO", "msg": "egress end", "allow": true, "reason": "rule", "asked": "API.example.com", "host": "api.example.com", "port": 443.0, "ech": true, "ws": true,
		"chain": "a.example.net b.example.net", "addresses": "192.0.2.1 2001:db8::1", "dialled": "192.0.2.1:443", "credential": "id", "error": "none", "sent": 1.0, "received": 2.0,
		"milliseconds": 3.0, "sandbox": "sandbox", "protocol": "connect", "rule": ".example.com", "method": "CONNECT", "sni": "api.example.com", "flow": 7.0, "generation": 3.0,
		"time": "2026-11-30T01:02:03.000000004Z",
	} {
		if fields[name] != want {
			t.Errorf("%s: %v, want %v", name, fields[name], want)
		}
	}
	out.Reset()
	denied := &egress.Record{Event: "decision\nforged", Asked: "evil\r\n\x1b[2J\u009b\u202e\"quoted\".test", Reason: egress.ReasonNoRule}
	if err := audit.Slog(slog.New(plain{out: &out})).Write(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	want := `WARN egress decision\nforged flow=0 allow=false reason=no-rule generation=0 asked=evil\r\n\x1b[2J\u009b\u202e"quoted".test` + "\n"
	if out.String() != want {
		t.Errorf("Y06: %q, want %q", out.String(), want)
	}
}

// TestY05FailuresAreTold: no sink takes a record that it cannot keep.
func TestY05FailuresAreTold(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	kept := 0
	good := audit.Func(func(context.Context, *egress.Record) error { kept++; return nil })
	bad := audit.Func(func(context.Context, *egress.Record) error { return broken })
	for name, c := range map[string]struct {
		sink egress.Sink
		want error
	}{
		"Y05/function":     {bad, broken},
		"Y05/nil function": {audit.Func(nil), nil},
		"Y05/slog":         {audit.Slog(slog.New(plain{out: &bytes.Buffer{}, err: broken})), broken},
		"Y05/nil slog":     {audit.Slog(nil), nil},
		"Y05/no sinks":     {audit.Multi(), nil},
		"Y05/nil sink":     {audit.Multi(good, nil), nil},
		"Y05/one of many":  {audit.Multi(bad, good), broken},
		"Y05/the last":     {audit.Multi(good, bad), broken},
	} {
		err := c.sink.Write(t.Context(), full())
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if kept != 3 {
		t.Errorf("the good sink has %d records", kept)
	}
	if err := audit.Multi(good, good).Write(t.Context(), full()); err != nil || kept != 5 {
		t.Errorf("%v, %d", err, kept)
	}
	if err := bad.Write(t.Context(), full()); strings.Contains(err.Error(), "audit") {
		t.Errorf("a function's error is its own: %v", err)
	}
}
