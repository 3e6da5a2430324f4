//go:build linux

package egress_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// brokeredHost has a credential in most policies here; its server answers nobody
// without one.
const brokeredHost = "api.example.com"

// visit is one request that arrived.
type visit struct{ host, method, path, authorization, at string }

// web is all HTTP servers out there: plain and TLS, on every address.
type web struct {
	git http.Handler

	mu     sync.Mutex
	visits []visit
}

func serveWeb(t *testing.T, p *pki, plain, secure net.Listener) *web {
	t.Helper()
	s := &web{git: gitBackend(t)}
	serve(t, s, func(server *http.Server) error { return server.Serve(plain) })
	serve(t, s, func(server *http.Server) error {
		server.TLSConfig = p.config()
		return server.ServeTLS(secure, "", "")
	})
	return s
}

func serve(t *testing.T, handler http.Handler, run func(*http.Server) error) {
	t.Helper()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan error, 1)
	go func() { ended <- run(server) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("a server ended: %v", err)
		}
	})
}

// ServeHTTP implements http.Handler.
func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := ""
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		at, _, _ = net.SplitHostPort(local.String())
	}
	host, _, _ := strings.Cut(r.Host, ":")
	s.mu.Lock()
	s.visits = append(s.visits, visit{host, r.Method, r.URL.Path, r.Header.Get("Authorization"), at})
	s.mu.Unlock()
	if host == brokeredHost && !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		http.Error(w, "a token, please", http.StatusUnauthorized)
		return
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	switch path := r.URL.Path; {
	case strings.HasPrefix(path, "/git/"):
		s.git.ServeHTTP(w, r)
	case path == "/simple/thing/":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><a href="%s://%s/files/%s">%s</a>`, scheme, r.Host, wheelName, wheelName)
	case path == "/files/"+wheelName:
		_, _ = w.Write(wheel())
	case path == "/npm/thing":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(packument(scheme + "://" + r.Host))
	case path == "/npm/thing/-/thing-1.2.3.tgz":
		_, _ = w.Write(tarball())
	case strings.HasPrefix(path, "/echo"):
		echo(w, r)
	case strings.HasPrefix(path, "/page"):
		fmt.Fprintf(w, "the page of %s\n", host)
	case path == "/full":
		// More than the sockets on the way take, for clients that do not read.
		_, _ = w.Write(make([]byte, 256<<10))
		<-r.Context().Done()
	case path == "/held":
		// An answer that goes on until the client, or the gate, has enough.
		echo(w, r)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "more\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	default:
		http.NotFound(w, r)
	}
}

// echo gives back all that came, in every spelling that a server might choose.
func echo(w http.ResponseWriter, r *http.Request) {
	token := r.Header.Get("Authorization")
	_, bare, _ := strings.Cut(token, " ")
	w.Header().Set("X-Token", token)
	http.SetCookie(w, &http.Cookie{Name: "token", Value: bare})
	w.Header().Set("Location", "/?token="+url.QueryEscape(token))
	fmt.Fprintf(w, "echo of %s %s\n", r.Method, r.URL.Path)
	_ = r.Header.Write(w)
	for _, form := range []string{
		token, bare, url.QueryEscape(bare), base64.StdEncoding.EncodeToString([]byte(bare)),
		base64.StdEncoding.EncodeToString([]byte(token)), base64.StdEncoding.EncodeToString([]byte("user:" + bare)),
	} {
		fmt.Fprintf(w, "said %s\n", form)
	}
	_, _ = io.Copy(w, io.LimitReader(r.Body, 1<<20))
}

// carrying lists the requests that brought a token.
func (s *web) carrying(token string) (out []visit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.visits {
		if v.authorization == "Bearer "+token {
			out = append(out, v)
		}
	}
	return out
}

// to lists the requests for a host.
func (s *web) to(host string) (out []visit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.visits {
		if v.host == host {
			out = append(out, v)
		}
	}
	return out
}

// forget leaves out what came so far.
func (s *web) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits = nil
}

// repository is where the servers have theirs, with one commit.
func repository() string { return filepath.Join(mountPoint, "git", "repo.git") }

// fileText is in the repository's only file.
const fileText = "this was cloned"

// gitBackend makes the repository and serves it as git's own server does.
func gitBackend(t *testing.T) http.Handler {
	t.Helper()
	work := filepath.Join(mountPoint, "work")
	for _, dir := range []string{work, filepath.Dir(repository())} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// What was cloned is a program: it says what it can reach, and what it knows.
	program := "#!/bin/sh\n# " + fileText + "\ncurl -sS -m 10 https://api.example.com/echo 2>&1\ncurl -sS -m 10 https://pkg.example.org/page 2>&1\nenv\n"
	if err := os.WriteFile(filepath.Join(work, "program"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	commit := []string{"-c", "user.name=test", "-c", "user.email=test@example.org"}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "."}, {"add", "."}, append(commit, "commit", "-q", "-m", "first"),
		{"clone", "-q", "--bare", ".", repository()},
	} {
		hostGit(t, work, args...)
	}
	exec := strings.TrimSpace(hostGit(t, work, "--exec-path"))
	return &cgi.Handler{
		Path: filepath.Join(exec, "git-http-backend"), Root: "/git", Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repository()), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + mountPoint},
	}
}

func hostGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+mountPoint)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}

const wheelName = "thing-1.2.3-py3-none-any.whl"

// wheel is a Python package of one module.
func wheel() []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range [][2]string{
		{"thing.py", "print('the thing works')\n"},
		{"thing-1.2.3.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.2.3\n"},
		{"thing-1.2.3.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"thing-1.2.3.dist-info/RECORD", "thing.py,,\nthing-1.2.3.dist-info/METADATA,,\nthing-1.2.3.dist-info/WHEEL,,\nthing-1.2.3.dist-info/RECORD,,\n"},
	} {
		if part, err := w.Create(f[0]); err == nil {
			_, _ = io.WriteString(part, f[1])
		}
	}
	_ = w.Close()
	return out.Bytes()
}

// tarball is a Node package of one module.
func tarball() []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, f := range [][2]string{
		{"package/package.json", `{"name":"thing","version":"1.2.3","main":"index.js"}`},
		{"package/index.js", "console.log('the thing works')\n"},
	} {
		_ = w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1]))})
		_, _ = io.WriteString(w, f[1])
	}
	_ = w.Close()
	_ = z.Close()
	return out.Bytes()
}

// packument is what a registry says about the package.
func packument(base string) map[string]any {
	sum := sha512.Sum512(tarball())
	version := map[string]any{
		"name": "thing", "version": "1.2.3", "main": "index.js",
		"dist": map[string]any{
			"tarball":   base + "/npm/thing/-/thing-1.2.3.tgz",
			"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
		},
	}
	return map[string]any{"name": "thing", "dist-tags": map[string]string{"latest": "1.2.3"}, "versions": map[string]any{"1.2.3": version}}
}
