package drivertest

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

func egressGroup() group {
	return group{name: "egress", behaviours: []behaviour{
		{"undeclared", egressUndeclared},
		{"without-a-gate", egressWithoutAGate},
		{"invalid", egressInvalid},
		{"rules", egressRules},
		{"deny-all", egressDenyAll},
		{"only-way", egressOnlyWay},
		{"locked", egressLocked},
		{"live-change", egressLiveChange},
		{"own-policy", egressOwnPolicy},
		{"credential", egressCredential},
		{"audit-fails", egressAuditFails},
		{"destroy", egressDestroy},
		{"stages", egressStages},
		{"clients", egressClients},
		{"connect", egressConnect},
	}}
}

// gates reports whether the backend has a network with a gate.
func (s *suite) gates(t *testing.T) bool {
	t.Helper()
	return slices.Contains(s.declared(t).Networks, driver.NetworkGated)
}

// gatedSandbox is one with the world behind its gate, and the payload in it.
func (s *suite) gatedSandbox(t *testing.T, w *outsideWorld, policy *berm.Egress) (sb *berm.Sandbox, payload string) {
	t.Helper()
	if !s.gates(t) {
		t.Skip("the backend declares no gate")
	}
	sb = create(t, s.open(t, w.configure(policy)), berm.CreateOptions{})
	return sb, s.install(t, sb)
}

// egressUndeclared: where no gate is declared, a policy is refused before
// anything starts; where one is, it is what a policy means.
func egressUndeclared(t *testing.T, s *suite) {
	p, err := s.tryOpen(t, func(c *berm.Config) { c.Egress = &berm.Egress{} })
	if !s.gates(t) {
		wantKind(t, err, errdefs.Unsupported)
		_, err = s.provider(t).Create(bounded(t), berm.CreateOptions{Egress: &berm.Egress{}})
		wantKind(t, err, errdefs.Unsupported)
		return
	}
	if err != nil {
		t.Fatalf("a gate is declared: %v", err)
	}
	sb := create(t, p, berm.CreateOptions{})
	if err := sb.SetEgress(bounded(t), &berm.Egress{AllowAny: true}); err != nil {
		t.Errorf("set egress: %v", err)
	}
	if sb.Posture().Achieved.Network != s.declared(t).Isolation.Network {
		t.Errorf("with a gate the network is isolated: %v, declared %v", sb.Posture().Achieved.Network, s.declared(t).Isolation.Network)
	}
	held := slices.ContainsFunc(sb.Posture().Findings, func(f posture.Finding) bool { return f.Claim == posture.EgressGate && f.Status == posture.Held })
	if held != s.declared(t).Isolation.Network {
		t.Errorf("the gate is among what was measured: %v", held)
	}
}

// egressWithoutAGate: a sandbox that was made without one never gets one.
func egressWithoutAGate(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, policy := range []*berm.Egress{nil, {}, {AllowAny: true}} {
		wantKind(t, sb.SetEgress(bounded(t), policy), errdefs.Unsupported)
	}
	for key := range environment(t, sb, nil) {
		if strings.Contains(strings.ToUpper(key), "PROXY") {
			t.Errorf("%s is set without a gate", key)
		}
	}
}

// egressInvalid: every fault of a policy is told at once, in Open and in Create,
// and a network that has no gate contradicts one.
func egressInvalid(t *testing.T, s *suite) {
	wrong := &berm.Egress{Allow: []string{"*.com", "a..b"}, AllowInwardFor: []string{".x"}, Credentials: []berm.Credential{{Host: "h"}}}
	_, err := s.tryOpen(t, func(c *berm.Config) { c.Egress = wrong })
	wantKind(t, err, errdefs.Invalid)
	var known *errdefs.Error
	if !errors.As(err, &known) || len(known.Reasons) < 4 {
		t.Errorf("not all faults are told: %v", err)
	}
	for _, network := range []driver.Network{driver.NetworkNone, driver.NetworkHost} {
		_, err = s.tryOpen(t, func(c *berm.Config) { c.Egress, c.Network = &berm.Egress{}, network })
		wantKind(t, err, errdefs.Invalid)
	}
	_, err = s.provider(t).Create(bounded(t), berm.CreateOptions{Egress: wrong})
	wantKind(t, err, errdefs.Invalid)
}

// egressRules: what a rule allows is reached, what none does is refused clearly
// and at once, without a question to the name server, and both are on record.
func egressRules(t *testing.T, s *suite) {
	w := newWorld(t)
	at := webPlace(w.web)
	sb, payload := s.gatedSandbox(t, w, w.policy(w.webRule()))
	res := exited(t, sb, 0, berm.Command{Args: []string{payload, "get", "http://" + at + "/x"}})
	if status(res.Stdout) != http.StatusOK || !strings.Contains(string(res.Stdout), "path /x") {
		t.Fatalf("the allowed host: %q", clip(res.Stdout))
	}
	questions := len(w.asked())
	began := time.Now()
	for _, denied := range []string{"http://secret.evil.example/", "http://" + serverName + ":1/", "http://169.254.169.254/latest/meta-data/"} {
		res = exited(t, sb, 0, berm.Command{Args: []string{payload, "get", denied}})
		if status(res.Stdout) != http.StatusForbidden || !strings.Contains(string(res.Stdout), `"reason"`) {
			t.Errorf("%s: %q", denied, clip(res.Stdout))
		}
	}
	if took := time.Since(began); took > 3*liveness {
		t.Errorf("three refusals took %v", took)
	}
	if after := w.asked(); len(after) != questions {
		t.Errorf("the name server was asked about denied names: %q", after[questions:])
	}
	got := w.decisions(sb.ID())
	want := []egress.Reason{egress.ReasonRule, egress.ReasonNoRule, egress.ReasonPort, egress.ReasonLiteral}
	if len(got) != len(want) {
		t.Fatalf("%d decisions are on record: %+v", len(got), got)
	}
	for i, r := range got {
		if r.Reason != want[i] || r.Allow != (i == 0) {
			t.Errorf("decision %d: %v for %v, want %v", i, r.Reason, r.Allow, want[i])
		}
	}
}

// egressDenyAll: a gate with an empty policy, and one without any, let nothing
// through.
func egressDenyAll(t *testing.T, s *suite) {
	w := newWorld(t)
	sb, payload := s.gatedSandbox(t, w, &berm.Egress{})
	check := func() {
		t.Helper()
		res := exited(t, sb, 0, berm.Command{Args: []string{payload, "get", "http://" + webPlace(w.web) + "/"}})
		if status(res.Stdout) != http.StatusForbidden {
			t.Errorf("answered %q", clip(res.Stdout))
		}
	}
	check()
	if err := sb.SetEgress(bounded(t), w.policy(w.webRule())); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetEgress(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	check()
	named := create(t, s.open(t, func(c *berm.Config) { c.Network = driver.NetworkGated }), berm.CreateOptions{})
	payload = s.install(t, named)
	res := exited(t, named, 0, berm.Command{Args: []string{payload, "get", "http://" + webPlace(w.web) + "/"}})
	if status(res.Stdout) != http.StatusForbidden {
		t.Errorf("network gated by name alone: %q", clip(res.Stdout))
	}
	if n := len(w.authorizations()); n > 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// egressOnlyWay: where the network is isolated, nothing but the gate is reached,
// whoever is asked for directly and by whatever socket.
func egressOnlyWay(t *testing.T, s *suite) {
	w := newWorld(t)
	sb, payload := s.gatedSandbox(t, w, w.policy(w.webRule(), "tcp://"+place(w.lines.Addr().String())))
	if !s.declared(t).Isolation.Network {
		t.Skip("the backend does not isolate the network")
	}
	proxy := environment(t, sb, nil)["HTTPS_PROXY"]
	if proxy == "" {
		t.Fatal("nothing leads to the gate")
	}
	_, listener, _ := strings.Cut(proxy, "://")
	exited(t, sb, 0, berm.Command{Args: []string{payload, "dial", "tcp", listener}})
	for _, address := range []string{
		w.lines.Addr().String(), w.dns.LocalAddr().String(), "169.254.169.254:80", "192.0.2.1:443", "[2001:db8::1]:443", "[fe80::1%lo]:443",
	} {
		exited(t, sb, 1, berm.Command{Args: []string{payload, "dial", "tcp", address}})
		exited(t, sb, 1, berm.Command{Args: []string{payload, "ask", address}})
	}
	exited(t, sb, 0, berm.Command{Args: []string{payload, "raw"}})
	// Without the variables there is nothing but loopback.
	bare := map[string]string{"HTTP_PROXY": "", "HTTPS_PROXY": "", "ALL_PROXY": "", "NO_PROXY": "*"}
	exited(t, sb, 1, berm.Command{Args: []string{payload, "get", "http://" + webPlace(w.web) + "/"}, Env: bare})
}

// egressLocked: a gate that others of the host can reach asks for what only the
// sandbox was told.
func egressLocked(t *testing.T, s *suite) {
	w := newWorld(t)
	sb, _ := s.gatedSandbox(t, w, w.policy(w.webRule()))
	if s.declared(t).Isolation.Network {
		t.Skip("nobody else reaches the gate's listener")
	}
	proxy, err := url.Parse(environment(t, sb, nil)["HTTP_PROXY"])
	if err != nil {
		t.Fatal(err)
	}
	through := func(user *url.Userinfo) int {
		at := *proxy
		at.User = user
		transport := &http.Transport{Proxy: http.ProxyURL(&at), DisableKeepAlives: true}
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://" + webPlace(w.web) + "/") //nolint:noctx // it has a time-out
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	for _, user := range []*url.Userinfo{nil, url.User(proxy.User.Username()), url.UserPassword(proxy.User.Username(), "wrong")} {
		if got := through(user); got != http.StatusProxyAuthRequired {
			t.Errorf("status %d without the password", got)
		}
	}
	if got := through(proxy.User); got != http.StatusOK {
		t.Errorf("status %d with the password", got)
	}
}

// egressLiveChange: a policy that does not allow an open connection any more ends
// it, an invalid one changes nothing, and a wider one counts at once.
func egressLiveChange(t *testing.T, s *suite) {
	w := newWorld(t)
	at := place(w.lines.Addr().String())
	sb, payload := s.gatedSandbox(t, w, w.policy("tcp://"+at))
	lines := newLineWriter()
	cmd := sb.CommandContext(bounded(t), payload, "tunnel", at)
	cmd.Stdout = lines
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines.wait(t, "hello")
	wantKind(t, sb.SetEgress(bounded(t), &berm.Egress{Allow: []string{"*.com"}}), errdefs.Invalid)
	if err := sb.SetEgress(bounded(t), w.policy("tcp://"+at, w.webRule())); err != nil {
		t.Fatal(err)
	}
	res := exited(t, sb, 0, berm.Command{Args: []string{payload, "get", "http://" + webPlace(w.web) + "/"}})
	if status(res.Stdout) != http.StatusOK {
		t.Errorf("what was added: %q", clip(res.Stdout))
	}
	if lines.has("closed") {
		t.Fatal("the tunnel that every policy allowed was closed")
	}
	if err := sb.SetEgress(bounded(t), w.policy(w.webRule())); err != nil {
		t.Fatal(err)
	}
	within(t, time.Second, "the tunnel that is not allowed any more", func() { _ = cmd.Wait() })
	if !lines.has("closed") {
		t.Errorf("the tunnel gave %q", lines.text())
	}
	exited(t, sb, 1, berm.Command{Args: []string{payload, "tunnel", at}})
}

// egressOwnPolicy: a sandbox's policy is its own, and what it is told says
// nothing about others'.
func egressOwnPolicy(t *testing.T, s *suite) {
	w := newWorld(t)
	if !s.gates(t) {
		t.Skip("the backend declares no gate")
	}
	p := s.open(t, w.configure(&berm.Egress{}))
	wide, narrow := create(t, p, berm.CreateOptions{Egress: w.policy(w.webRule())}), create(t, p, berm.CreateOptions{})
	for sb, want := range map[*berm.Sandbox]int{wide: http.StatusOK, narrow: http.StatusForbidden} {
		payload := s.install(t, sb)
		res := exited(t, sb, 0, berm.Command{Args: []string{payload, "get", "http://" + webPlace(w.web) + "/"}})
		if status(res.Stdout) != want {
			t.Errorf("want %d: %q", want, clip(res.Stdout))
		}
	}
	// Whoever names a proxy of his own has it.
	env := environment(t, wide, map[string]string{"https_proxy": "http://mine:1"})
	if _, both := env["HTTPS_PROXY"]; both || env["https_proxy"] != "http://mine:1" {
		t.Errorf("HTTPS_PROXY=%q, https_proxy=%q", env["HTTPS_PROXY"], env["https_proxy"])
	}
}

// egressCredential: the secret arrives where it belongs and is nowhere inside:
// not in the environment, not in an answer that repeats it, not on record.
func egressCredential(t *testing.T, s *suite) {
	w := newWorld(t)
	secret, at := unique(), webPlace(w.secure)
	policy := w.policy(at)
	policy.Credentials = []berm.Credential{{Host: serverName, Prefix: "Bearer ", Value: secret}}
	sb, payload := s.gatedSandbox(t, w, policy)
	res := exited(t, sb, 0, berm.Command{Args: []string{payload, "get", "https://" + at + "/y", "Authorization: mine"}})
	if status(res.Stdout) != http.StatusOK || !strings.Contains(string(res.Stdout), "path /y") {
		t.Fatalf("answered %q", clip(res.Stdout))
	}
	if got := w.authorizations(); len(got) != 1 || got[0] != "Bearer "+secret {
		t.Errorf("the server got %q", got)
	}
	if strings.Contains(string(res.Stdout), secret) {
		t.Errorf("the answer has the secret: %q", clip(res.Stdout))
	}
	for key, value := range environment(t, sb, nil) {
		if strings.Contains(value, secret) {
			t.Errorf("%s has the secret", key)
		}
	}
	for _, r := range w.decisions(sb.ID()) {
		if strings.Contains(strings.Join([]string{r.Asked, r.Error, r.Credential, r.Rule, r.Method}, " "), secret) {
			t.Errorf("a record has the secret: %+v", r)
		}
	}
	// With the credential goes its authority: others are seen as they are.
	if err := sb.SetEgress(bounded(t), w.policy(at)); err != nil {
		t.Fatal(err)
	}
	if file := environment(t, sb, nil)["SSL_CERT_FILE"]; file != "" {
		t.Errorf("SSL_CERT_FILE=%q without a credential", file)
	}
	exited(t, sb, 1, berm.Command{Args: []string{payload, "get", "https://" + at + "/"}})
}

// egressAuditFails: what cannot be put on record does not happen.
func egressAuditFails(t *testing.T, s *suite) {
	w := newWorld(t)
	w.failing = errors.New("the disk is full")
	sb, payload := s.gatedSandbox(t, w, w.policy(w.webRule()))
	res := exited(t, sb, 0, berm.Command{Args: []string{payload, "get", "http://" + webPlace(w.web) + "/"}})
	if code := status(res.Stdout); code < 400 {
		t.Errorf("answered %q", clip(res.Stdout))
	}
	if n := len(w.authorizations()); n > 0 {
		t.Errorf("%d requests arrived without a record", n)
	}
}

// egressDestroy: with the sandbox its gate ends, and each connection with it.
func egressDestroy(t *testing.T, s *suite) {
	w := newWorld(t)
	var config net.ListenConfig
	silent, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	at := place(silent.Addr().String())
	policy := w.policy("tcp://" + at)
	policy.AllowInwardFor = append(policy.AllowInwardFor, at)
	sb, payload := s.gatedSandbox(t, w, policy)
	cmd := sb.CommandContext(bounded(t), payload, "tunnel", at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	within(t, patience, "destroy", func() { destroyNow(t, sb) })
	_ = conn.SetReadDeadline(time.Now().Add(liveness))
	var timeout net.Error
	for err == nil {
		_, err = conn.Read(make([]byte, 64))
	}
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("a connection outlives the sandbox that it came from")
	}
	_ = cmd.Wait()
	wantKind(t, sb.SetEgress(bounded(t), nil), errdefs.Closed)
}
