package berm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/posture"
)

// now is the time of a measurement, in UTC.
func now() time.Time { return time.Now().UTC() }

// controlSocket is the positive control of the probe's connection attempt: an
// abstract unix socket belongs to a network namespace just as a port does, and
// needs none on the host.
type controlSocket struct {
	name     string
	listener net.Listener
	serving  sync.WaitGroup
}

func listenControl(ctx context.Context, instance string) (*controlSocket, error) {
	c := &controlSocket{name: "berm-probe-" + instance}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", "@"+c.name)
	if err != nil {
		return nil, fmt.Errorf("open the probe socket: %w", err)
	}
	c.listener = listener
	c.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// To be reached is all that it is for.
			_ = conn.Close()
		}
	})
	return c, nil
}

// reachable reports whether the host side can connect.
func (c *controlSocket) reachable(ctx context.Context) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", "@"+c.name)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Close stops listening and waits for the accepting goroutine.
func (c *controlSocket) Close() error {
	err := c.listener.Close()
	c.serving.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// The paths that a sandbox of a contained tier must not be able to write, and
// the one that it must.
const writableControl = "/tmp"

var protectedPaths = [...]string{
	"/", "/usr", "/etc", "/etc/passwd", "/dev", "/run", "/mnt", "/home", "/proc/sys/vm/swappiness", "/proc/sysrq-trigger", "/usr/bin/env",
}

// probeFor is what the probe of a sandbox with these mounts tries; nil for a tier
// that promises nothing.
func (p *Provider) probeFor(mounts []driver.Mount, network driver.Network) *driver.Probe {
	if len(posture.TableFor(string(p.caps.Tier))) == 0 {
		return nil
	}
	sizePaths := []string{"/tmp", "/home/user", "/dev/shm", "/run"}
	if network == driver.NetworkGated {
		sizePaths = append(sizePaths, driver.TrustPath)
	}
	for _, m := range mounts {
		if m.Source == "" {
			sizePaths = append(sizePaths, m.Dest)
		}
	}
	return &driver.Probe{
		WritePaths:      append(protectedPaths[:], writableControl),
		AbstractSockets: []string{p.control.name},
		SizePaths:       sizePaths,
	}
}

// probe runs the measuring child and judges what it saw.
func (s *Sandbox) probe(ctx context.Context) ([]posture.Fact, error) {
	order := s.spec.Probe
	want := posture.ProbeWant{
		WritableControl:  writableControl,
		OutsideReachable: s.provider.control.reachable(ctx),
		DiskBytes:        s.spec.Limits.DiskBytes,
		SizePaths:        len(order.SizePaths),
	}
	answer, err := s.client.Probe(ctx, &agentv1.ProbeRequest{
		WritePaths: order.WritePaths, AbstractSockets: order.AbstractSockets, SizePaths: order.SizePaths,
	})
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	report := posture.ProbeReport{
		Capabilities: [5]string{
			answer.GetCapInheritable(), answer.GetCapPermitted(), answer.GetCapEffective(), answer.GetCapBounding(), answer.GetCapAmbient(),
		},
		NoNewPrivileges: answer.GetNoNewPrivileges(),
		SeccompMode:     answer.GetSeccompMode(),
		Writable:        answer.GetWritable(),
		Routes:          answer.GetRoutes(),
		Connected:       answer.GetConnected(),
		Sizes:           answer.GetSizes(),
		AgentReadable:   answer.GetAgentReadable(),
	}
	return report.Judge(want), nil
}
