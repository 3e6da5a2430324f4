package agent_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/link"
)

// TestRequestsAreBounded: a server may forward requests of others to the agent.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	for name, c := range map[string]struct {
		header, body string
		want         int
	}{
		"small":   {"x", `{"processes":[]}`, http.StatusOK},
		"header":  {strings.Repeat("h", 100<<10), "{}", http.StatusRequestHeaderFieldsTooLarge},
		"message": {"x", `{"unknown":"` + strings.Repeat("m", 17<<20) + `"}`, http.StatusTooManyRequests},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+link.DataHost+"/process.Process/List", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Extra", c.header)
		res, err := in.client.Do(req)
		if err != nil {
			// The server's own refusal has no length, which the link does not take.
			if c.want == http.StatusOK {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, res.Status, c.want)
		}
	}
}

// TestInheritedDescriptorsStayOut: what whoever starts the agent has left open
// reaches neither it nor its commands.
func TestInheritedDescriptorsStayOut(t *testing.T) {
	t.Parallel()
	// A shell passes on what has no close-on-exec flag.
	prefix := []string{"sh", "-c", `exec 7</etc/passwd && exec "$@"`, "sh"}
	in := openOwn(t, bootFor(t.TempDir()), prefix)
	if out := in.mustRun(t, shell("readlink /proc/self/fd/7; exit 0")); len(out.stdout) > 0 {
		t.Errorf("a command has %q", out.stdout)
	}
	if to, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(in.agent), "fd", "7")); err == nil && strings.HasPrefix(to, "/etc/") {
		t.Errorf("the agent has %s", to)
	}
}

// TestCommandsHaveSessionsOfTheirOwn: a signal to all of one command's group
// reaches no other, and not the agent.
func TestCommandsHaveSessionsOfTheirOwn(t *testing.T) {
	t.Parallel()
	in := openOwn(t, bootFor(t.TempDir()), nil)
	own, err := unix.Getsid(in.agent)
	if err != nil {
		t.Fatal(err)
	}
	first := strings.TrimSpace(string(in.mustRun(t, shell("cut -d' ' -f6 /proc/$$/stat")).stdout))
	second := strings.TrimSpace(string(in.mustRun(t, shell("cut -d' ' -f6 /proc/$$/stat")).stdout))
	if first == second || first == strconv.Itoa(own) || second == strconv.Itoa(own) {
		t.Errorf("sessions %s and %s, the agent's is %d", first, second, own)
	}
}
