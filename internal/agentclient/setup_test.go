package agentclient_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agent"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link/fdpass"
)

// TestMain is also the agent's own program in the modes that the agent starts.
func TestMain(m *testing.M) {
	switch mode := append(os.Args, "")[1]; mode {
	case "exec":
		os.Exit(agent.Exec(os.Args[2:]))
	case "probe":
		if err := agent.RunProbe(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The HTTP server's connections linger half a second after a refused upload,
	// which nobody can wait for.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// started gives a client of a real agent over a real link, and the agent's home.
func started(tb testing.TB) (*agentclient.Client, string) {
	tb.Helper()
	home, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	host, guest, err := fdpass.Pair()
	if err != nil {
		tb.Fatal(err)
	}
	config := boot.Config{User: "user", Home: home, Dir: home, Path: os.Getenv("PATH"), TempDir: home, Shared: true}
	payload, err := config.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	l, err := fdpass.New(host, payload, nil, fdpass.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- agent.Serve(context.Background(), guest, "/proc/self/exe") }()
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("close link: %v", err)
		}
		if err := <-done; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	if err := l.Ready(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return agentclient.New(l), home
}

// hostile gives a client of whatever handler, over unix sockets.
func hostile(tb testing.TB, handler http.Handler) *agentclient.Client {
	tb.Helper()
	socket := filepath.Join(tb.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	var dialer net.Dialer
	transport := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}
	tb.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return agentclient.New(transport)
}

// wantKind fails the test for an error of another kind and gives its text.
func wantKind(tb testing.TB, err error, kind errdefs.Kind) string {
	tb.Helper()
	if errdefs.KindOf(err) != kind {
		tb.Fatalf("error %v has kind %q, want %q", err, errdefs.KindOf(err), kind)
	}
	for _, r := range err.Error() {
		if r < ' ' || r == 0x7f || r == 0x202e {
			tb.Fatalf("error has a control character: %q", err)
		}
	}
	return err.Error()
}

func write(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// leftovers lists temporary files in a directory.
func leftovers(tb testing.TB, dir string) []string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".berm-") {
			out = append(out, e.Name())
		}
	}
	return out
}
