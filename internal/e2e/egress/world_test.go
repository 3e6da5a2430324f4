//go:build linux

package egress_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/drivertest"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
)

// world is everything on both sides of the cable.
type world struct {
	tap     *tap
	dns     *nameserver
	web     *web
	ssh     *sshServer
	pki     *pki
	records *records
	// victim counts the connections to the gate's own machine.
	victim   atomic.Int64
	provider *berm.Provider
	payload  string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if reason := os.Getenv(reasonName); reason != "" {
		t.Skip(reason)
	}
	p, err := loadPKI(filepath.Join(mountPoint, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	// Sockets first: what is not taken over yet would go on to children.
	w := &world{pki: p, records: &records{}, tap: openTap(t)}
	unserved := inheritedListener(t, "odd")
	t.Cleanup(func() { _ = unserved.Close() })
	victim := inheritedListener(t, "victim")
	plain, secure, login := inheritedListener(t, "http"), inheritedListener(t, "https"), inheritedListener(t, "ssh")
	w.dns = serveDNS(t)
	w.web = serveWeb(t, p, plain, secure)
	w.ssh = serveSSH(t, login)
	serve(t, http.NotFoundHandler(), func(server *http.Server) error { return server.Serve(counting{victim, &w.victim}) })
	w.payload = drivertest.Binary(t, "BERM_TEST_EGRESS_PAYLOAD", "egress-payload", "github.com/berm-dev/berm/internal/e2e/egress/payload")
	state := filepath.Join(os.Getenv(stateName), "state")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.provider, err = berm.Open(ctx, process.Config{}, berm.Config{
		Agent: berm.AgentProgram{Path: drivertest.AgentBinary(t)}, StateDir: state, Audit: w.records,
		UpstreamRoots: p.pool(), Egress: &berm.Egress{},
		// Name servers are those of /etc/resolv.conf.
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.provider.Close(); err != nil {
			t.Errorf("close the provider: %v", err)
		}
	})
	return w
}

// records keeps what the audit gets, and what a file would have of it.
type records struct {
	mu    sync.Mutex
	all   []egress.Record
	lines bytes.Buffer
}

// Write implements egress.Sink.
func (r *records) Write(_ context.Context, rec *egress.Record) error {
	line, err := audit.Line(rec)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, *rec)
	r.lines.Write(line)
	return nil
}

// decisions are those of one sandbox.
func (r *records) decisions(sandbox string) (out []egress.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.all {
		if rec.Event == egress.EventDecision && rec.Sandbox == sandbox {
			out = append(out, rec)
		}
	}
	return out
}

func (r *records) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines.String()
}

// counting counts what it accepts.
type counting struct {
	net.Listener
	n *atomic.Int64
}

// Accept implements net.Listener.
func (l counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return conn, err
}

// newToken is a secret that nothing else looks like.
func newToken() string { return "tok_" + rand.Text() }

// policy allows what these tests allow; token is the credential of brokeredHost,
// empty for none.
func policy(token string) *berm.Egress {
	p := &berm.Egress{Allow: []string{".pkg.example.org", "tcp://" + sshHost + ":22"}}
	if token != "" {
		p.Credentials = []berm.Credential{{ID: "api", Host: brokeredHost, Prefix: "Bearer ", Value: token}}
	}
	return p
}

// box is a sandbox with the payload in it.
type box struct {
	*berm.Sandbox
	t       *testing.T
	payload string
}

func (w *world) box(t *testing.T, p *berm.Egress) *box {
	t.Helper()
	sb, err := w.provider.Create(bounded(t), berm.CreateOptions{Egress: p})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close the sandbox: %v", err)
		}
	})
	data, err := os.ReadFile(w.payload)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Sandbox: sb, t: t, payload: path.Join(sb.WorkDir(), "payload")}
	b.write("payload", data, 0o755)
	return b
}

func (b *box) write(name string, data []byte, mode fs.FileMode) {
	b.t.Helper()
	if err := b.Files().Create(bounded(b.t), path.Join(b.WorkDir(), name), mode, bytes.NewReader(data)); err != nil {
		b.t.Fatalf("write %s: %v", name, err)
	}
}

// exec runs a command and gives what it did.
func (b *box) exec(command berm.Command) *berm.Result {
	b.t.Helper()
	res, err := b.Exec(bounded(b.t), command)
	if err != nil {
		b.t.Fatalf("exec %q: %v", command.Args, err)
	}
	return res
}

// sh runs a script, whose arguments are $1 and so on.
func (b *box) sh(script string, args ...string) *berm.Result {
	b.t.Helper()
	return b.exec(shell(script, args...))
}

func shell(script string, args ...string) berm.Command {
	return berm.Command{Args: append([]string{"sh", "-c", script, "sh"}, args...)}
}

// run runs the payload, which has to succeed.
func (b *box) run(args ...string) string {
	b.t.Helper()
	res := b.exec(berm.Command{Args: append([]string{b.payload}, args...)})
	if !res.Success() {
		b.t.Fatalf("payload %q: %v\n%s%s", args, res, clip(res.Stdout), clip(res.Stderr))
	}
	return string(res.Stdout)
}

// probe asks the gate for a host and port in every way that it speaks.
type probe struct{ HTTP, Connect, SOCKS string }

func (b *box) probe(target string) (p probe) {
	b.t.Helper()
	if err := json.Unmarshal([]byte(b.run("probe", target)), &p); err != nil {
		b.t.Fatal(err)
	}
	return p
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// clip shortens what a program wrote, for a message.
func clip(text []byte) string {
	const most = 1200
	if len(text) > most {
		return string(text[:most]) + "..."
	}
	return string(text)
}

// spellings are the forms in which a secret could be seen.
func spellings(token string) []string {
	out := []string{token}
	for _, before := range []string{"", "x", "xx"} {
		text := base64.StdEncoding.EncodeToString([]byte(before + token))
		// The first and last groups have something of their neighbours.
		out = append(out, text[4:len(text)-4])
	}
	return out
}

// lacks fails the test where a text has the secret.
func lacks(t *testing.T, token, what, text string) {
	t.Helper()
	for _, form := range spellings(token) {
		if i := strings.Index(text, form); i >= 0 {
			t.Errorf("the secret is in %s: %q", what, clip([]byte(text[max(0, i-60):])))
		}
	}
}

// safeText keeps what is written to it, by whomever.
type safeText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (s *safeText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *safeText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
