package drivertest

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
)

// client is a program that people reach the network with.
type client struct {
	name string
	// there succeeds where the program can be used inside.
	there string
	// script gets a base URL as $1; path is what it asks for, want what it has to
	// say.
	script, path, want string
	// plain: it also speaks plain HTTP on any port.
	plain bool
}

// clients are told of the gate by their environment alone, node's aside, which
// before version 24 knows no proxy: there the program is one.
func clients() []client {
	const page = "path /page"
	return []client{
		{name: "curl", there: "curl --version", script: `curl -sS --fail-with-body "$1/page"`, path: "/page", want: page, plain: true},
		{name: "wget", there: "wget --version", script: `wget -qO- --tries=1 "$1/page"`, path: "/page", want: page, plain: true},
		{name: "python", there: "python3 --version", path: "/page", want: page, plain: true,
			script: `python3 -c 'import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1] + "/page", timeout=20).read().decode())' "$1"`},
		{name: "pip", there: "python3 -m pip --version", path: "/simple/thing/", want: "1.2.3",
			script: `python3 -m pip --disable-pip-version-check --no-cache-dir --retries 0 index versions thing --index-url "$1/simple"`},
		{name: "git", there: "git --version", script: `git ls-remote "$1/repo.git"`, path: "/repo.git/info/refs", want: "refs/heads/main", plain: true},
		{name: "npm", there: "npm --version", path: "/thing", want: "1.2.3",
			script: `npm view thing version --fetch-retries=0 --no-update-notifier --registry "$1/"`},
		{name: "node", there: "node --version", script: `node -e "$NODE_CLIENT" "$1/page"`, path: "/page", want: page},
		{name: "java", there: "java --version && javac --version", path: "/page", want: page, plain: true,
			script: `printf %s "$JAVA_CLIENT" > Get.java && java -XX:TieredStopAtLevel=1 Get.java "$1/page"`},
	}
}

// The clients that are programs.
const (
	nodeClient = `
const http = require('http'), https = require('https'), tls = require('tls');
const target = new URL(process.argv[1]), proxy = new URL(process.env.HTTPS_PROXY);
const headers = proxy.username ? {'Proxy-Authorization': 'Basic ' + Buffer.from(proxy.username + ':' + proxy.password).toString('base64')} : {};
const agent = new https.Agent();
agent.createConnection = (options, done) => {
  const ask = http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: target.host, headers});
  ask.on('connect', (answer, socket) => {
    if (answer.statusCode !== 200) return done(new Error('refused: ' + answer.statusCode));
    const secure = tls.connect({socket, servername: target.hostname}, () => done(null, secure)).on('error', done);
  });
  ask.on('error', done).end();
};
https.get(target, {agent}, r => r.pipe(process.stdout)).on('error', e => { console.error(e.message); process.exit(1); });
`
	javaClient = `
public class Get {
  public static void main(String[] args) throws Exception {
    System.out.write(new java.net.URL(args[0]).openStream().readAllBytes());
    System.out.flush();
  }
}
`
)

// egressClients: what people use finds the gate by itself. Each has what is
// allowed, is refused the rest at once, and has its requests carry a token that
// is nowhere inside.
func egressClients(t *testing.T, s *suite) {
	w := newWorld(t)
	secret, at := unique(), webPlace(w.secure)
	// The plain server has the same name, and with a credential would be brokered.
	sb, _ := s.gatedSandbox(t, w, w.policy(w.webRule()))
	var found []client
	for _, c := range clients() {
		res, err := sb.Exec(bounded(t), shell(c.there))
		if err != nil {
			t.Fatal(err)
		}
		// A JVM has no way to be given a proxy's password.
		locked := c.name == "java" && !s.declared(t).Isolation.Network
		if res.Success() && !locked {
			found = append(found, c)
		}
	}
	for _, c := range found {
		if c.plain {
			s.visit(t, sb, c, "http://"+webPlace(w.web), true)
		}
		s.visit(t, sb, c, "https://secret.evil.example:8443", false)
	}
	policy := w.policy(at)
	policy.Credentials = []berm.Credential{{Host: serverName, Prefix: "Bearer ", Value: secret}}
	if err := sb.SetEgress(bounded(t), policy); err != nil {
		t.Fatal(err)
	}
	for _, c := range found {
		before := len(w.authorizations())
		s.visit(t, sb, c, "https://"+at, true)
		if got := w.authorizations()[before:]; len(got) == 0 || slices.ContainsFunc(got, func(a string) bool { return a != "Bearer "+secret }) {
			t.Errorf("%s: the server got %q", c.name, got)
		}
	}
	// The pattern does not match itself, where it stands in a command line.
	pattern := "[" + secret[:1] + "]" + secret[1:]
	places := `/proc/[0-9]*/environ /proc/[0-9]*/cmdline "$HOME" "$TMPDIR" .`
	if s.declared(t).ContainedPaths {
		places += " /run /dev/shm"
	}
	if out := sh(t, sb, `grep -rsal -D skip -e "$1" `+places+` || :`, pattern); out != "" {
		t.Errorf("the secret is inside, in %q", out)
	}
}

// visit runs a client, which has to have what it wants or to be refused.
func (s *suite) visit(t *testing.T, sb *berm.Sandbox, c client, base string, allowed bool) {
	t.Helper()
	command := shell(c.script, base)
	command.Env = map[string]string{"NODE_CLIENT": nodeClient, "JAVA_CLIENT": javaClient}
	began := time.Now()
	res, err := sb.Exec(bounded(t), command)
	if err != nil {
		t.Fatal(err)
	}
	has := strings.Contains(string(res.Stdout), c.want)
	if allowed && (!res.Success() || !has) {
		t.Errorf("%s does not reach %s: %v, %q, %q", c.name, base, res, clip(res.Stdout), clip(res.Stderr))
	}
	if !allowed && (res.Success() || has) {
		t.Errorf("%s reaches %s: %q", c.name, base, clip(res.Stdout))
	}
	// A JVM has to start, and to compile.
	if took := time.Since(began); !allowed && took > 15*liveness {
		t.Errorf("%s was refused after %v", c.name, took)
	}
}

// egressConnect: a program that knows no proxy reaches what a rule for any
// protocol allows through the agent's connect mode, which is how git is told to
// use ssh.
func egressConnect(t *testing.T, s *suite) {
	w := newWorld(t)
	at := place(w.lines.Addr().String())
	sb, _ := s.gatedSandbox(t, w, w.policy("tcp://"+at))
	_, after, found := strings.Cut(environment(t, sb, nil)["GIT_SSH_COMMAND"], "ProxyCommand=")
	program, _, ends := strings.Cut(after, " connect %h %p")
	if !found || !ends {
		t.Fatal("git is not told how to use ssh")
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, sb, `echo over there | "$1" connect "$2" "$3"`, program, host, port); got != "over there\n" {
		t.Errorf("it gave %q", got)
	}
	for _, wrong := range [][2]string{{"secret.evil.example", "22"}, {host, "1"}, {"127.0.0.1", port}} {
		began := time.Now()
		res := exited(t, sb, 1, shell(`"$1" connect "$2" "$3" < /dev/null`, program, wrong[0], wrong[1]))
		if !strings.Contains(string(res.Stderr), "refused: ") || len(res.Stdout) > 0 {
			t.Errorf("%v: %q, %q", wrong, clip(res.Stdout), clip(res.Stderr))
		}
		if took := time.Since(began); took > 3*liveness {
			t.Errorf("%v: refused after %v", wrong, took)
		}
	}
}

// egressStages: a stage that needs a token fetches something, ends with all that
// it left running, and what it fetched then runs without any way out.
func egressStages(t *testing.T, s *suite) {
	w := newWorld(t)
	secret, at := unique(), webPlace(w.secure)
	policy := w.policy(at)
	policy.Credentials = []berm.Credential{{Host: serverName, Prefix: "Bearer ", Value: secret}}
	sb, payload := s.gatedSandbox(t, w, policy)
	// It fetches, and leaves something behind that goes on.
	stage, err := sb.Start(bounded(t), shell(`"$1" get "$2/page" > fetched
		(while :; do "$1" get "$2/late"; sleep 0.1; done) > /dev/null 2>&1 &`, payload, "https://"+at))
	if err != nil {
		t.Fatal(err)
	}
	res, err := stage.Wait(bounded(t))
	if err != nil || !res.Success() {
		t.Fatalf("the first stage: %v, %v", res, err)
	}
	eventually(t, patience, "what the first stage left asks again", func() bool { return len(w.authorizations()) > 2 })
	if err := stage.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetEgress(bounded(t), nil); err != nil {
		t.Fatal(err)
	}
	for _, got := range w.authorizations() {
		if got != "Bearer "+secret {
			t.Fatalf("the server got %q", got)
		}
	}
	decisions := len(w.decisions(sb.ID()))
	before := len(w.authorizations())
	out := sh(t, sb, `cat fetched; "$1" get "$2/second" 2>&1 || :; "$1" get http://secret.evil.example/ || :; env`, payload, "https://"+at)
	if !strings.Contains(out, "path /page") || !strings.Contains(out, "403") {
		t.Errorf("the second stage: %q", clip([]byte(out)))
	}
	// Two of the second stage's, and none of anybody else.
	if after := w.decisions(sb.ID())[decisions:]; len(after) != 2 || after[0].Allow || after[1].Allow {
		t.Errorf("decisions of the second stage: %+v", after)
	}
	if strings.Contains(out, secret) || len(w.authorizations()) > before {
		t.Errorf("the second stage has the token, or reached its server: %q", clip([]byte(out)))
	}
}
