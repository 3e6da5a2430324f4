//go:build linux

package egress_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/egress"
)

// client is a program that people reach the network with. Each finds the gate by
// the environment alone; node's http, which knows no proxy before version 24, is
// given an agent.
type client struct {
	name string
	// needs are programs that have to be there.
	needs []string
	// script gets what it is to reach as $1, which target makes of a host and
	// a scheme; nil is scheme://host/page.
	script string
	target func(scheme, host string) string
	// want is in the output when it worked; refused when it was refused, of a
	// plain request refusedPlain, empty where plain requests are not made.
	want, refused, refusedPlain string
	// slow programs have more to do before they ask than others.
	slow bool
	// opaque is more of the environment for hosts whose TLS the gate leaves alone.
	opaque map[string]string
	// unbrokered programs take no credential of the gate's.
	unbrokered bool
}

func below(path string) func(scheme, host string) string {
	return func(scheme, host string) string { return scheme + "://" + host + path }
}

func clients(payload string) []client {
	const page = "the page of"
	return []client{
		{name: "curl", needs: []string{"curl"}, script: `curl -sS --fail-with-body "$1"`, want: page,
			refused: "CONNECT tunnel failed, response 403", refusedPlain: `"reason":"no-rule"`},
		{name: "wget", needs: []string{"wget"}, script: `wget -nv -O- --content-on-error --server-response "$1"`, want: page,
			refused: "Proxy tunneling failed: Forbidden", refusedPlain: `"reason":"no-rule"`},
		{name: "python", needs: []string{"python3"}, script: `python3 -c "$CLIENT" "$1"`, want: page,
			refused: "Tunnel connection failed: 403 Forbidden", refusedPlain: "HTTP Error 403: Forbidden"},
		{name: "git-https", needs: []string{"git"}, script: `rm -rf clone && git clone -q "$1" clone && cat clone/program`, want: fileText, target: below("/git/repo.git"),
			refused: "CONNECT tunnel failed, response 403", refusedPlain: "The requested URL returned error: 403"},
		{name: "git-ssh", needs: []string{"git", "ssh", "sshd"}, script: `rm -rf clone && git clone -q "$1" clone && cat clone/program`, want: fileText,
			target: func(_, host string) string { return "ssh://" + sshUser + "@" + host + repository() }, refused: "refused: no-rule", unbrokered: true},
		{name: "npm", needs: []string{"npm"}, want: "the thing works", target: below("/npm/"), slow: true,
			script:  `rm -rf n && mkdir n && cd n && npm init -y >/dev/null && npm install thing --registry "$1" --no-audit --no-fund --no-update-notifier --fetch-retries=0 --loglevel=error && node -e 'require("thing")'`,
			refused: "403", refusedPlain: "403 Forbidden"},
		{name: "pip", needs: []string{"python3", "pip3"}, want: "the thing works", target: below("/simple"), slow: true,
			script: `rm -rf p && python3 -m pip --disable-pip-version-check --no-cache-dir --retries 1 install --no-input --target p thing --index-url "$1" && PYTHONPATH=p python3 -m thing`,
			// pip says why only when it tries again, and it takes plain HTTP for nobody.
			refused: "Tunnel connection failed: 403 Forbidden"},
		{name: "go", script: payload + ` get "$1"`, want: page, refused: "Forbidden", refusedPlain: `"reason":"no-rule"`},
		{name: "java-HttpClient", needs: []string{"java", "javac"}, script: `printf %s "$CLIENT" > Get.java && { test -e Get.class || javac Get.java; } && java -XX:TieredStopAtLevel=1 Get "$1" client`, want: page,
			refused: "403", refusedPlain: "status 403", slow: true},
		{name: "java-HttpURLConnection", needs: []string{"java", "javac"}, script: `printf %s "$CLIENT" > Get.java && { test -e Get.class || javac Get.java; } && java -XX:TieredStopAtLevel=1 Get "$1" connection`, want: page,
			refused: "Proxy returns \"HTTP/1.1 403 Forbidden\"", refusedPlain: "Server returned HTTP response code: 403", slow: true},
		{name: "node", needs: []string{"node"}, script: `node -e "$CLIENT" "$1"`, want: page, refused: "refused: 403", opaque: map[string]string{"NODE_OPTIONS": "--use-openssl-ca"}},
	}
}

// program is the source of those clients that are given as one.
func (c client) program() string {
	switch {
	case c.name == "python":
		return `import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=20).read().decode())`
	case c.name == "node":
		return nodeClient
	case strings.HasPrefix(c.name, "java"):
		return javaClient
	}
	return ""
}

const (
	nodeClient = `
const http = require('http'), https = require('https'), tls = require('tls');
const target = new URL(process.argv[1]), proxy = new URL(process.env.HTTPS_PROXY);
const agent = new https.Agent();
agent.createConnection = (options, done) => {
  const ask = http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: target.hostname + ':443'});
  ask.on('connect', (answer, socket) => {
    if (answer.statusCode !== 200) return done(new Error('refused: ' + answer.statusCode));
    const secure = tls.connect({socket, servername: target.hostname}, () => done(null, secure)).on('error', done);
  });
  ask.on('error', done).end();
};
https.get(target, {agent}, r => {
  console.log(r.headers);
  r.pipe(process.stdout);
}).on('error', e => { console.error(e.message); process.exit(1); });
`
	javaClient = `
import java.net.*;
import java.net.http.*;
public class Get {
  public static void main(String[] args) throws Exception {
    if (args[1].equals("connection")) {
      System.out.write(new URL(args[0]).openStream().readAllBytes());
      System.out.flush();
      return;
    }
    HttpResponse<String> r = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(args[0])).build(), HttpResponse.BodyHandlers.ofString());
    System.out.println(r.headers().map() + r.body());
    if (r.statusCode() != 200) { System.err.println("status " + r.statusCode()); System.exit(1); }
  }
}
`
)

// at is what the client is to reach on a host.
func (c client) at(scheme, host string) string {
	if c.target == nil {
		return below("/page")(scheme, host)
	}
	return c.target(scheme, host)
}

// testClients: each client has what is allowed, is refused the rest clearly and
// at once, and has its requests carry a token that is nowhere inside.
func (w *world) testClients(t *testing.T) {
	for _, c := range clients("./payload") {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			token := newToken()
			b := w.box(t, policy(token))
			c.present(t, b, w)
			t.Run("allowed", func(t *testing.T) { w.clientAllowed(t, b, c) })
			t.Run("denied", func(t *testing.T) { w.clientDenied(t, b, c) })
			if !c.unbrokered {
				t.Run("token", func(t *testing.T) { w.clientToken(t, b, c, token) })
			}
			w.isNowhere(t, b, token)
		})
	}
}

// present skips a client that this machine has not; scripts/setup --ci installs
// them all.
func (c client) present(t *testing.T, b *box, w *world) {
	t.Helper()
	for _, program := range c.needs {
		if program == "sshd" {
			if w.ssh.program == "" {
				t.Skip("sshd is not installed")
			}
			b.logIn(w)
			continue
		}
		if !b.sh(`command -v "$1"`, program).Success() {
			t.Skipf("%s is not installed", program)
		}
	}
}

// logIn gives the sandbox what ssh needs to log in and to know the server.
func (b *box) logIn(w *world) {
	b.t.Helper()
	b.write("key", w.ssh.clientKey, 0o600)
	b.write("known", w.ssh.known, 0o600)
	res := b.sh(`umask 077; mkdir -p ~/.ssh && mv key ~/.ssh/id_ed25519 && mv known ~/.ssh/known_hosts`)
	if !res.Success() {
		b.t.Fatalf("%v: %s", res, clip(res.Stderr))
	}
}

// visit runs the client; it has to end well or not, with a text in what it wrote.
func (b *box) visit(t *testing.T, c client, target, want string, well bool, env map[string]string) string {
	t.Helper()
	command := shell(c.script, target)
	command.Env = map[string]string{"CLIENT": c.program()}
	for key, value := range env {
		command.Env[key] = value
	}
	began := time.Now()
	res, err := b.Exec(bounded(t), command)
	if err != nil {
		t.Fatal(err)
	}
	said := string(res.Stdout) + string(res.Stderr)
	if res.Success() != well || !strings.Contains(said, want) {
		t.Errorf("%s: %v, want %q\nstdout %s\nstderr %s", target, res, want, clip(res.Stdout), clip(res.Stderr))
	}
	bound := 5 * liveness
	if c.slow {
		bound *= 3
	}
	if took := time.Since(began); !well && took > bound {
		t.Errorf("%s: refused after %v", target, took)
	}
	return said
}

func (w *world) clientAllowed(t *testing.T, b *box, c client) {
	host := hostOf(c)
	b.visit(t, c, c.at("https", host), c.want, true, c.opaque)
	if c.refusedPlain != "" {
		b.visit(t, c, c.at("http", host), c.want, true, nil)
	}
	if c.name != "git-ssh" && len(w.web.to(host)) == 0 {
		t.Errorf("no request arrived for %s", host)
	}
	for _, r := range w.records.decisions(b.ID()) {
		if r.Host == host && !r.Allow {
			t.Errorf("denied: %+v", r)
		}
	}
}

// hostOf is a name of the client's own, so that what arrives for it is its.
func hostOf(c client) string {
	if c.name == "git-ssh" {
		return sshHost
	}
	return strings.ToLower(c.name) + ".pkg.example.org"
}

func (w *world) clientDenied(t *testing.T, b *box, c client) {
	host := strings.ToLower(c.name) + ".evil.test"
	before := len(w.records.decisions(b.ID()))
	b.visit(t, c, c.at("https", host), c.refused, false, c.opaque)
	if c.refusedPlain != "" {
		b.visit(t, c, c.at("http", host), c.refusedPlain, false, nil)
	}
	denials := w.records.decisions(b.ID())[before:]
	if len(denials) == 0 {
		t.Error("no refusal is on record")
	}
	for _, r := range denials {
		if r.Allow || r.Reason != egress.ReasonNoRule || r.Host != host {
			t.Errorf("on record: %+v", r)
		}
	}
}

func (w *world) clientToken(t *testing.T, b *box, c client, token string) {
	b.visit(t, c, c.at("https", brokeredHost), c.want, true, nil)
	arrived := w.web.carrying(token)
	if len(arrived) == 0 {
		t.Fatal("no request with the token arrived")
	}
	// With the client's own header in the secret's place, and a server that gives
	// back all that it gets.
	said := ""
	if c.target == nil {
		said = b.visit(t, c, "https://"+brokeredHost+"/echo", "said ", true, nil)
	}
	lacks(t, token, "what the client wrote", said)
	for _, v := range w.web.to(brokeredHost) {
		if !strings.HasPrefix(v.authorization, "Bearer tok_") {
			t.Errorf("a request without a token arrived: %+v", v)
		}
	}
}

// isNowhere looks for the secret in all that a payload can read, and on record,
// while a request that carries it is being answered, with all that the server was
// told.
func (w *world) isNowhere(t *testing.T, b *box, token string) {
	t.Helper()
	before := len(w.web.carrying(token))
	running, err := b.Start(bounded(t), shell(`curl -sS -N -H 'Authorization: mine' "$1" > held`, "https://"+brokeredHost+"/held"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := running.Kill(bounded(t)); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "a request with the token is being answered", func() bool { return len(w.web.carrying(token)) > before })
	w.isNotInside(t, b, token)
}

// isNotInside is isNowhere while nothing is being answered.
func (w *world) isNotInside(t *testing.T, b *box, token string) {
	t.Helper()
	found, looked := b.seek(spellings(token)...)
	if found != "" {
		t.Errorf("the secret is inside: %s", found)
	}
	var files, processes, memories int
	if _, err := fmt.Sscanf(looked, "looked at %d files, %d processes, %d memories", &files, &processes, &memories); err != nil {
		t.Fatalf("%q: %v", looked, err)
	}
	if files < 20 || processes < 2 {
		t.Errorf("it looked at %d files, %d processes and %d memories only", files, processes, memories)
	}
	lacks(t, token, "the audit", w.records.text())
}

// seek looks for texts inside, and gives the places and what was looked at.
func (b *box) seek(texts ...string) (found, looked string) {
	b.t.Helper()
	var lines strings.Builder
	for _, text := range texts {
		masked := []byte(text)
		for i := range masked {
			masked[i] ^= 0x5a
		}
		lines.WriteString(hex.EncodeToString(masked) + "\n")
	}
	res := b.exec(berm.Command{Args: []string{b.payload, "seek"}, Stdin: strings.NewReader(lines.String())})
	if !res.Success() {
		b.t.Fatalf("seek: %v: %s", res, clip(res.Stderr))
	}
	at := strings.LastIndex(strings.TrimSpace(string(res.Stdout)), "\n") + 1
	return string(res.Stdout[:at]), string(res.Stdout[at:])
}
