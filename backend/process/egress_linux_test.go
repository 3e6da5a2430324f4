package process

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// gatedSpec is a spec with a gate.
func gatedSpec(d *bubble, mounts ...driver.Mount) *driver.Spec {
	spec := plainSpec(d, mounts...)
	spec.Network = driver.NetworkGated
	return spec
}

// TestGatedSandbox: with a gate there is no route either, the proxy's port leads
// to the host of this sandbox alone, and what payloads need beside it is there and
// read-only, however it gets there.
func TestGatedSandbox(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own    bool
		mounts []driver.Mount
	}{
		"from the kit": {}, "a copy of its own": {own: true},
		"with a mount":             {mounts: []driver.Mount{{Name: "workdir", Source: t.TempDir(), Dest: driver.WorkspacePath, Writable: true}}},
		"a mount and its own copy": {own: true, mounts: []driver.Mount{{Name: "workdir", Source: t.TempDir(), Dest: driver.WorkspacePath, Writable: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, _ := opened(t)
			d.ownConnectors = d.ownConnectors || c.own
			m := created(t, d, gatedSpec(d, c.mounts...))
			script := connectorPath + " version; true >> " + connectorPath + " || echo read-only; rm " + connectorPath + " || echo stays"
			if out, _ := run(t, m, script+"; "+connectorPath+" version > /dev/null && echo works"); !strings.Contains(out, "berm-agent ") ||
				!strings.Contains(out, "read-only\n") || !strings.Contains(out, "stays\n") || !strings.HasSuffix(out, "works\n") {
				t.Errorf("the connector: %q", out)
			}
			if out, _ := run(t, m, "ls -A /run/berm; tail -n +2 /proc/net/route; cat /proc/net/ipv6_route | grep -v ' lo$'"); out != "berm-agent\ntrust\n" {
				t.Errorf("below /run/berm, and routes: %q", out)
			}
			out, _ := run(t, m, "stat -f -c '%b %S' "+driver.TrustPath)
			blocks, size, _ := strings.Cut(strings.TrimSpace(out), " ")
			n, err := strconv.ParseInt(blocks, 10, 64)
			unit, unitErr := strconv.ParseInt(size, 10, 64)
			if err = errors.Join(err, unitErr); err != nil || n*unit != m.disk[driver.TrustPath] {
				t.Errorf("%s has %q, want %d bytes: %v", driver.TrustPath, out, m.disk[driver.TrustPath], err)
			}
			var sum int64
			for _, bytes := range m.disk {
				sum += bytes
			}
			if limit := gatedSpec(d).Limits.DiskBytes; sum > limit {
				t.Errorf("file systems have %d bytes together, more than %d", sum, limit)
			}
			leadsHome(t, d, m)
		})
	}
}

// leadsHome connects inside to the proxy's port: this sandbox's host has it, and
// another's does not.
func leadsHome(t *testing.T, d *bubble, m *machine) {
	t.Helper()
	other := created(t, d, gatedSpec(d))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	strangers := make(chan net.Conn, 1)
	elsewhere, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := other.link.Accept(elsewhere); err == nil {
			strangers <- conn
		}
	}()
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if conn, err := m.link.Accept(ctx); err == nil {
			_, _ = conn.Write([]byte("home\n"))
			accepted <- conn
			_ = conn.Close()
		}
	}()
	out, _ := run(t, m, `exec 3<>/dev/tcp/127.0.0.1/3128 && head -n 1 <&3`)
	if strings.Contains(out, "not found") || strings.Contains(out, "cannot create") {
		// This shell has no such paths.
		out, _ = run(t, m, `bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128 && head -n 1 <&3'`)
	}
	if _, ok := <-accepted; !ok || out != "home\n" {
		t.Errorf("inside it said %q", out)
	}
	stop()
	<-done
	select {
	case conn := <-strangers:
		_ = conn.Close()
		t.Error("another sandbox's host was reached")
	default:
	}
}

// TestUngatedSandboxHasNoGate: without the network there is no listener, and no
// directory for what it would need.
func TestUngatedSandboxHasNoGate(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.link.Accept(over); !errors.Is(err, errdefs.Unsupported) {
		t.Errorf("accept: %v", err)
	}
	if out, _ := run(t, m, "ls -A /run; env | grep -i proxy"); out != "" {
		t.Errorf("inside: %q", out)
	}
}
