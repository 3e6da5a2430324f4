//go:build linux

package egress_test

import (
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEgress is one test, because there is one network: its parts share the
// cable, and what was on it is judged for all of them.
func TestEgress(t *testing.T) {
	w := newWorld(t)
	t.Run("cable", w.testCable)
	t.Run("beside", func(t *testing.T) {
		t.Run("clients", func(t *testing.T) { t.Parallel(); w.testClients(t) })
		t.Run("rows", func(t *testing.T) { t.Parallel(); w.testRows(t) })
		t.Run("attacks", func(t *testing.T) { t.Parallel(); w.testAttacks(t) })
		t.Run("clone-then-close", func(t *testing.T) { t.Parallel(); w.testCloneThenClose(t) })
	})
	t.Run("flood", w.testFlood)
	t.Run("nothing got out", w.testNothingGotOut)
}

// testCable: from the gate's machine there is a way to every address, so that it
// is the gate and the sandbox that hold, and what takes it is seen.
func (w *world) testCable(t *testing.T) {
	for _, address := range []string{
		webAddr, "[" + webAddr6 + "]", "169.254.169.254", "8.8.8.8", "10.0.0.1", "[fd00:ec2::254]", "[" + nat64Addr + "]", "127.0.0.1", bermAddr,
	} {
		res, err := http.Get("http://" + address + "/page") //nolint:noctx,gosec // it is the test's own network
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	if w.victim.Swap(0) != 2 {
		t.Error("the gate's own machine was not reached")
	}
	lookup, err := net.LookupHost("hosted.pkg.example.org") //nolint:noctx // see above
	if err != nil || !slices.Contains(lookup, "127.0.0.1") {
		t.Errorf("the hosts file has no trap: %v %v", lookup, err)
	}
	if lookup, err = net.LookupHost("api"); err != nil || !slices.Contains(lookup, webAddr) { //nolint:noctx // see above
		t.Errorf("the search list has no trap: %v %v", lookup, err)
	}
	seen := strings.Join(w.tap.unexpected(t), ", ")
	for _, want := range []string{"tcp 169.254.169.254:80", "tcp 8.8.8.8:80", "tcp 10.0.0.1:80", "tcp [fd00:ec2::254]:80"} {
		if !strings.Contains(seen, want) {
			t.Errorf("%s is not among what was seen: %s", want, seen)
		}
	}
	if strings.Contains(seen, webAddr) {
		t.Errorf("what is expected is not: %s", seen)
	}
	w.web.forget()
	uid := os.Getuid()
	t.Logf("as uid %d; on the cable: %s", uid, seen)
}

// testNothingGotOut judges all that was on the cable since testCable.
func (w *world) testNothingGotOut(t *testing.T) {
	if got := w.tap.unexpected(t); len(got) > 0 {
		t.Errorf("on the cable: %q", got)
	}
	if n := w.tap.lost(t); n > 0 {
		t.Errorf("%d packets were not looked at", n)
	}
	if n := w.victim.Load(); n > 0 {
		t.Errorf("the gate's own machine was reached %d times", n)
	}
	if n := w.dns.asked("evil.test"); n > 0 {
		t.Errorf("the name server was asked %d times about names that nobody allows", n)
	}
}
