package drivertest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/posture"
)

func asNetError(err error, target *net.Error) bool { return errors.As(err, target) }

// listenOnHost opens a port on the host that takes connections until stop.
func listenOnHost(t *testing.T) (address string, stop func()) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String(), func() {
		_ = l.Close()
		<-done
	}
}

// openDriver opens the backend without package berm.
func (s *suite) openDriver(t *testing.T) driver.Driver {
	t.Helper()
	image, err := os.ReadFile(s.agent)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := s.harness.Backend(t).Open(bounded(t), driver.Host{
		Agent: driver.Agent{Image: image, Origin: s.agent}, StateDir: dir, Instance: specID(),
	})
	if err != nil {
		t.Fatalf("open the driver: %v", err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := d.Close(); err != nil {
				t.Errorf("close the driver: %v", err)
			}
		}
	})
	return d
}

// specID gives an id as package berm makes them.
func specID() string { return unique()[:20] }

func tableFor(caps driver.Capabilities) posture.Table { return posture.TableFor(string(caps.Tier)) }
