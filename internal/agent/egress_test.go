package agent_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link"
)

// gated is a boot message with a gate.
func gated(dir, address string) boot.Config {
	config := bootFor(dir)
	config.EgressAddress, config.TrustDir, config.Connector = address, filepath.Join(dir, "trust"), "/opt/connector"
	return config
}

// variables runs env with a command's own variables.
func (in *inside) variables(t *testing.T, own map[string]string) map[string]string {
	t.Helper()
	req := shell("env -0")
	req.Process.Envs = own
	out := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(in.mustRun(t, req).stdout), "\x00"), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		out[key] = value
	}
	return out
}

// post sends a body to the control plane and gives the status.
func (in *inside) post(t *testing.T, path, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+link.ControlHost+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := in.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// TestProxyVariables: commands are led to the listener that the host holds, and
// whoever names one of the variables, in either spelling, has the pair.
func TestProxyVariables(t *testing.T) {
	t.Parallel()
	config := gated(t.TempDir(), "127.0.0.1:0")
	config.EgressUser, config.EgressPassword = "us/er", "p@ss"
	in := open(t, config)
	got := in.variables(t, nil)
	proxy := got["HTTPS_PROXY"]
	if !strings.HasPrefix(proxy, "http://us%2Fer:p%40ss@127.0.0.1:") {
		t.Errorf("HTTPS_PROXY=%q", proxy)
	}
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"} {
		if got[name] != proxy {
			t.Errorf("%s=%q, want %q", name, got[name], proxy)
		}
	}
	if got["NO_PROXY"] != got["no_proxy"] || !strings.Contains(got["NO_PROXY"], "localhost,127.0.0.1") || strings.Contains(got["NO_PROXY"], "10.") {
		t.Errorf("NO_PROXY=%q", got["NO_PROXY"])
	}
	_, port, err := net.SplitHostPort(proxy[strings.LastIndex(proxy, "@")+1:])
	if err != nil || got["JAVA_TOOL_OPTIONS"] != "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort="+port+" -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort="+port {
		t.Errorf("JAVA_TOOL_OPTIONS=%q", got["JAVA_TOOL_OPTIONS"])
	}
	if got["NODE_USE_ENV_PROXY"] != "1" || !strings.Contains(got["GIT_SSH_COMMAND"], "ProxyCommand=/opt/connector connect %h %p") {
		t.Errorf("node %q, git %q", got["NODE_USE_ENV_PROXY"], got["GIT_SSH_COMMAND"])
	}
	own := in.variables(t, map[string]string{"https_proxy": "http://mine:1", "NO_PROXY": "mine", "JAVA_TOOL_OPTIONS": ""})
	if _, there := own["HTTPS_PROXY"]; there || own["https_proxy"] != "http://mine:1" || own["HTTP_PROXY"] != proxy {
		t.Errorf("with a proxy of the command's own: %q", own)
	}
	if _, there := own["no_proxy"]; there || own["NO_PROXY"] != "mine" || own["JAVA_TOOL_OPTIONS"] != "" {
		t.Errorf("with exceptions of the command's own: %q", own)
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := in.link.Accept(t.Context())
	if err != nil {
		t.Fatalf("the host does not hold the listener: %v", err)
	}
	_ = accepted.Close()
}

// TestEgressPortTaken: where the usual port is taken, which a namespace of the
// sandbox's own never has, another one does.
func TestEgressPortTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	proxy := open(t, gated(t.TempDir(), taken.Addr().String())).variables(t, nil)["HTTP_PROXY"]
	if !strings.HasPrefix(proxy, "http://127.0.0.1:") || proxy == "http://"+taken.Addr().String() {
		t.Errorf("HTTP_PROXY=%q, and %s is taken", proxy, taken.Addr())
	}
}

// TestNoGateNoVariables: without a gate nothing points to one.
func TestNoGateNoVariables(t *testing.T) {
	t.Parallel()
	for name := range open(t, bootFor(t.TempDir())).variables(t, nil) {
		if strings.Contains(strings.ToUpper(name), "PROXY") || strings.HasPrefix(name, "JAVA") || strings.HasPrefix(name, "GIT") {
			t.Errorf("%s is set", name)
		}
	}
}

// testAuthority is a certificate that signs itself.
func testAuthority(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func trustBody(t *testing.T, bundle string) string {
	t.Helper()
	body, err := json.Marshal(map[string]string{"caBundle": bundle})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestTrust: an authority is added to the system's roots in the files that the
// variables name; another one takes its place, and none takes it away.
func TestTrust(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := open(t, gated(dir, "127.0.0.1:0"))
	if got := in.variables(t, nil); got["SSL_CERT_FILE"] != "" || got["NODE_EXTRA_CA_CERTS"] != "" || strings.Contains(got["JAVA_TOOL_OPTIONS"], "trustStore") {
		t.Errorf("there is nothing to trust yet: %q", got)
	}
	first, second, session := testAuthority(t, "first"), testAuthority(t, "second"), testAuthority(t, "session")
	if status := in.post(t, "/trust", trustBody(t, first)); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	got := in.variables(t, map[string]string{"PIP_CERT": "/mine"})
	for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE"} {
		if got[name] != filepath.Join(dir, "trust", "ca-bundle.pem") {
			t.Errorf("%s=%q", name, got[name])
		}
	}
	if got["PIP_CERT"] != "/mine" || got["NODE_EXTRA_CA_CERTS"] != got["DENO_CERT"] || got["DENO_CERT"] == "" {
		t.Errorf("pip %q, node %q, deno %q", got["PIP_CERT"], got["NODE_EXTRA_CA_CERTS"], got["DENO_CERT"])
	}
	if !strings.HasPrefix(got["JAVA_TOOL_OPTIONS"], "-Dhttp.proxyHost=") || !strings.Contains(got["JAVA_TOOL_OPTIONS"], "-Djavax.net.ssl.trustStore="+dir) {
		t.Errorf("java %q", got["JAVA_TOOL_OPTIONS"])
	}
	trusted := func(name string) string {
		data, err := os.ReadFile(got[name])
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if bundle := trusted("SSL_CERT_FILE"); !strings.Contains(bundle, first) || trusted("DENO_CERT") != first {
		t.Errorf("the authority is not in a bundle of %d bytes, or not alone in its own file", len(bundle))
	}
	if roots, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt"); err == nil && !strings.HasPrefix(trusted("SSL_CERT_FILE"), string(roots)) {
		t.Error("the system's roots are not in the bundle")
	}
	// What a session brings is beside it, and does not go with it.
	if status := in.post(t, "/init", trustBody(t, session)); status != http.StatusNoContent {
		t.Fatalf("init: status %d", status)
	}
	if status := in.post(t, "/trust", trustBody(t, second)); status != http.StatusNoContent {
		t.Fatalf("status %d", status)
	}
	if bundle := trusted("SSL_CERT_FILE"); strings.Contains(bundle, first) || !strings.Contains(bundle, second) || !strings.Contains(bundle, session) {
		t.Error("the bundle has not changed, or lost the session's")
	}
	for _, path := range []string{"/trust", "/init"} {
		if status := in.post(t, path, trustBody(t, "")); status != http.StatusNoContent {
			t.Fatalf("status %d", status)
		}
	}
	if bundle := trusted("SSL_CERT_FILE"); strings.Contains(bundle, second) || strings.Contains(bundle, session) {
		t.Error("what was taken away is trusted")
	}
	if after := in.variables(t, nil); after["SSL_CERT_FILE"] != "" {
		t.Errorf("SSL_CERT_FILE=%q", after["SSL_CERT_FILE"])
	}
}

// TestTrustRefuses: what is no certificate is not taken, nothing is where there
// is no place, and a link in the place of a file is not written through.
func TestTrustRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := open(t, gated(dir, "127.0.0.1:0"))
	good := testAuthority(t, "good")
	for name, bundle := range map[string]string{
		"text": "hello", "a key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})),
		"junk before": "junk\n" + good, "junk behind": good + "junk\n", "broken": strings.Replace(good, "M", "N", 1),
		"not one": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})),
	} {
		for _, path := range []string{"/trust", "/init"} {
			if status := in.post(t, path, trustBody(t, bundle)); status != http.StatusBadRequest {
				t.Errorf("%s at %s: status %d", name, path, status)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "trust", "ca-bundle.pem")); err == nil {
		t.Error("a refused bundle was written")
	}
	other := filepath.Join(dir, "other")
	if err := os.MkdirAll(filepath.Join(dir, "trust"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "trust", "ca-bundle.pem")); err != nil {
		t.Fatal(err)
	}
	if status := in.post(t, "/trust", trustBody(t, good)); status != http.StatusNoContent {
		t.Errorf("status %d", status)
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("the link was followed")
	}
	if status := open(t, bootFor(t.TempDir())).post(t, "/trust", trustBody(t, good)); status != http.StatusBadRequest {
		t.Errorf("without a directory: status %d", status)
	}
}

// TestConnectMode runs the connect mode as ssh would, against a proxy that says
// yes or no.
func TestConnectMode(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			answerConnect(conn)
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-served })
	run := func(input string, args ...string) (string, string, int) {
		cmd := exec.CommandContext(t.Context(), ownProgram, append([]string{"connect"}, args...)...)
		cmd.Env = []string{"https_proxy=http://u:p@" + listener.Addr().String()}
		cmd.Stdin = strings.NewReader(input)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	big := strings.Repeat("line\n", 100_000)
	if stdout, stderr, exit := run(big, "good.example.com", "22"); exit != 0 || stdout != "early "+strconv.Itoa(len(big)) || stderr != "" {
		t.Errorf("exit %d, %q, %q", exit, stdout, stderr)
	}
	if stdout, stderr, exit := run("", "bad.example.com", "22"); exit != 1 || stdout != "" || !strings.Contains(stderr, "refused: no-rule: ask the operator?[31m") {
		t.Errorf("exit %d, %q, %q", exit, stdout, stderr)
	}
	for _, args := range [][]string{{}, {"a"}, {"a", "0"}, {"a", "65536"}, {"a", "22", "x"}, {"", "22"}, {"a\r\nX: y", "22"}, {"u@a", "22"}, {"a", "ssh"}} {
		if _, stderr, exit := run("", args...); exit != 2 || !strings.HasPrefix(stderr, "usage: ") {
			t.Errorf("%q: exit %d, %q", args, exit, stderr)
		}
	}
}

// answerConnect lets good.example.com in: it says "early" at once, and at the end
// of what comes how much that was.
func answerConnect(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	req, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	user, password, _ := (&http.Request{Header: http.Header{"Authorization": req.Header["Proxy-Authorization"]}}).BasicAuth()
	if req.Method != http.MethodConnect || user != "u" || password != "p" || req.Host != "good.example.com:22" {
		refusal := `{"error":"denied","reason":"no-rule","host":"x","hint":"ask the operator\u001b[31m"}`
		_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: "+strconv.Itoa(len(refusal))+"\r\n\r\n"+refusal)
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nearly ")
	n, _ := io.Copy(io.Discard, reader)
	_, _ = io.WriteString(conn, strconv.FormatInt(n, 10))
}
