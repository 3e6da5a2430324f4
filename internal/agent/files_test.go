package agent_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/internal/agent"
)

// handled gives an agent without a link, and its home.
func handled(tb testing.TB) (*agent.Agent, string) {
	tb.Helper()
	home, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	a, err := agent.New(agent.Config{Boot: bootFor(home), Executable: "/proc/self/exe"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(a.Close)
	return a, home
}

// ask sends one request to the data plane.
func ask(tb testing.TB, a *agent.Agent, method, target, kind, body string) (int, http.Header, string) {
	tb.Helper()
	req := httptest.NewRequestWithContext(tb.Context(), method, target, strings.NewReader(body))
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	rec := httptest.NewRecorder()
	a.Data().ServeHTTP(rec, req)
	return rec.Code, rec.Header(), rec.Body.String()
}

func filesURL(query ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	return "/files?" + values.Encode()
}

const octets = "application/octet-stream"

func TestFilesOverHTTP(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	code, _, body := ask(t, a, "POST", filesURL("path", "sub/a.txt", "mode", "600", "username", "user"), octets, "hello")
	want := fmt.Sprintf(`[{"name":"a.txt","type":"file","path":"%s/sub/a.txt"}]`, home)
	if code != http.StatusOK || body != want {
		t.Errorf("%d %s", code, body)
	}
	if info, err := os.Stat(home + "/sub/a.txt"); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	code, header, body := ask(t, a, "GET", filesURL("path", "~/sub/a.txt"), "", "")
	if code != http.StatusOK || body != "hello" || header.Get("Content-Length") != "5" || header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%d %v %q", code, header, body)
	}
	if code, header, _ = ask(t, a, "HEAD", filesURL("path", "sub/a.txt"), "", ""); code != http.StatusOK || header.Get("Content-Length") != "5" {
		t.Errorf("HEAD: %d %v", code, header)
	}
	if code, _, _ = ask(t, a, "POST", filesURL("path", home+"/empty"), octets, ""); code != http.StatusOK {
		t.Errorf("empty: %d", code)
	}
	if _, header, _ = ask(t, a, "GET", filesURL("path", home+"/empty"), "", ""); header.Get("Content-Length") != "0" {
		t.Errorf("empty: %v", header)
	}
	if code, _, _ = ask(t, a, "POST", filesURL("path", "sub/a.txt", "exclusive", "1"), octets, "x"); code != http.StatusConflict {
		t.Errorf("exclusive: %d", code)
	}
	if code, _, _ = ask(t, a, "POST", filesURL("path", "sub/new", "exclusive", "1"), octets, "x"); code != http.StatusOK {
		t.Errorf("exclusive: %d", code)
	}
}

func TestFilesRefusals(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if err := os.Symlink("nowhere", home+"/dangling"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		method, target, kind string
		want                 int
	}{
		"no path":         {"GET", "/files", "", 400},
		"two paths":       {"GET", "/files?path=a&path=b", "", 400},
		"NUL":             {"GET", filesURL("path", "a\x00"), "", 400},
		"other home":      {"GET", filesURL("path", "~root/x"), "", 400},
		"missing":         {"GET", filesURL("path", "none"), "", 404},
		"directory":       {"GET", filesURL("path", home), "", 400},
		"own environment": {"GET", filesURL("path", "/proc/self/environ"), "", 403},
		"user":            {"GET", filesURL("path", "x", "username", "root"), "", 401},
		"no type":         {"POST", filesURL("path", "x"), "", 400},
		"other type":      {"POST", filesURL("path", "x"), "text/plain", 400},
		"no boundary":     {"POST", filesURL("path", "x"), "multipart/form-data", 400},
		"no form":         {"POST", filesURL("path", "x"), "multipart/form-data; boundary=x", 400},
		"below a file":    {"POST", filesURL("path", "/etc/passwd/x"), octets, 400},
		"query":           {"GET", "/files?path=%zz", "", 400},
		"mode":            {"POST", filesURL("path", "x", "mode", "4755"), octets, 400},
		"exclusive":       {"POST", filesURL("path", "x", "exclusive", "yes"), octets, 400},
		"dangling":        {"POST", filesURL("path", "dangling", "exclusive", "1"), octets, 409},
		"other method":    {"DELETE", filesURL("path", "x"), "", 405},
	} {
		code, header, body := ask(t, a, test.method, test.target, test.kind, "x")
		if code != test.want {
			t.Errorf("%s: %d %s", name, code, body)
			continue
		}
		var answer struct {
			Code    int
			Message string
		}
		if code != 405 && (json.Unmarshal([]byte(body), &answer) != nil || answer.Code != code || answer.Message == "" || header.Get("Content-Type") != "application/json") {
			t.Errorf("%s: %v %s", name, header, body)
		}
	}
	if _, err := os.Lstat(home + "/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a refused upload wrote")
	}
}

// An upload that stops short of its length leaves nothing.
func TestShortUpload(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	server := httptest.NewServer(a.Data())
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: 100\r\n\r\nshort", filesURL("path", home+"/f"), octets)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(home)
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// Envd's clients see envd's names, in JSON.
func TestFilesystemForEnvdClients(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if err := errors.Join(os.MkdirAll(home+"/d/e/f", 0o755), os.WriteFile(home+"/d/a", []byte("123"), 0o640), os.Symlink("a", home+"/d/l"),
		os.Symlink("loop", home+"/loop"), os.WriteFile(home+"/over", []byte("longer"), 0o644)); err != nil {
		t.Fatal(err)
	}
	rpc := func(method, body string) (int, string) {
		code, _, answer := ask(t, a, "POST", "/filesystem.Filesystem/"+method, "application/json", body)
		return code, answer
	}
	var list struct {
		Entries []struct {
			Name, Type, Path, Permissions, SymlinkTarget string
			Size                                         string
			Mode                                         int
		}
	}
	code, body := rpc("ListDir", `{"path":"d","depth":2}`)
	if code != 200 || json.Unmarshal([]byte(body), &list) != nil {
		t.Fatalf("%d %s", code, body)
	}
	var got []string
	for _, e := range list.Entries {
		got = append(got, strings.TrimPrefix(e.Path, home+"/d/")+" "+strings.TrimPrefix(e.Type, "FILE_TYPE_")+" "+e.Permissions+" "+strconv.Itoa(e.Mode))
	}
	want := "a FILE -rw-r----- 416,e DIRECTORY drwxr-xr-x 493,e/f DIRECTORY drwxr-xr-x 493,l FILE Lrwxrwxrwx 416"
	if strings.Join(got, ",") != want || list.Entries[3].SymlinkTarget != home+"/d/a" || list.Entries[0].Size != "3" {
		t.Errorf("%v\n%s", got, body)
	}
	for _, test := range []struct {
		method, body, want string
		code               int
	}{
		{"Stat", `{"path":"none"}`, "not_found", 404},
		{"Stat", `{"path":"/"}`, `"owner":"root","group":"root"`, 200},
		{"ListDir", `{"path":"d/a"}`, "invalid_argument", 400},
		{"ListDir", `{"path":"d","depth":1000}`, "invalid_argument", 400},
		{"MakeDir", `{"path":"d/e"}`, "already_exists", 409},
		{"MakeDir", `{"path":"d/a"}`, "invalid_argument", 400},
		{"Move", `{"source":"none","destination":"x"}`, "not_found", 404},
		{"MakeDir", `{"path":"d/a/b"}`, "invalid_argument", 400},
		{"MakeDir", `{"path":""}`, "invalid_argument", 400},
		{"ListDir", `{"path":"none"}`, "not_found", 404},
		{"ListDir", `{"path":"loop"}`, "failed_precondition", 400},
		{"ListDir", `{"path":"d/e/f"}`, "{}", 200},
		{"Stat", `{"path":"loop"}`, `"symlinkTarget":"loop"`, 200},
		{"Move", `{"source":"d/a","destination":"d/a/b"}`, "failed_precondition", 400},
		{"Move", `{"source":"d/e","destination":"d/a"}`, "failed_precondition", 400},
		{"Move", `{"source":"d/e","destination":"d"}`, "failed_precondition", 400},
		{"Move", `{"source":"d/a","destination":"d/moved"}`, `"name":"moved"`, 200},
		{"Move", `{"source":"d/moved","destination":"over"}`, `"size":"3"`, 200},
		{"Remove", `{"path":"none"}`, "{}", 200},
		{"Remove", `{"path":"none/below"}`, "{}", 200},
		{"Remove", `{"path":"d"}`, "{}", 200},
		{"MakeDir", `{"path":"p/q/r"}`, "drwxr-xr-x", 200},
		{"Move", `{"source":"p","destination":"s/t"}`, `"name":"t"`, 200},
	} {
		if code, body := rpc(test.method, test.body); code != test.code || !strings.Contains(strings.ReplaceAll(body, " ", ""), test.want) {
			t.Errorf("%s %s: %d %s", test.method, test.body, code, body)
		}
	}
}

// Neither plane serves the other's paths.
func TestPlanesAreApart(t *testing.T) {
	t.Parallel()
	a, _ := handled(t)
	for _, target := range []string{"/berm.agent.v1.Control/Probe", "/tunnel?port=1", "/init", "/filesystem.Filesystem/../berm.agent.v1.Control/Probe"} {
		code, _, body := ask(t, a, "POST", target, "application/json", "{}")
		if code == 200 || code == 101 {
			t.Errorf("%s: %d %s", target, code, body)
		}
	}
	rec := httptest.NewRecorder()
	a.Control().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", filesURL("path", "/etc/passwd"), nil))
	if rec.Code != 404 {
		t.Errorf("files on the control plane: %d", rec.Code)
	}
}

// dialTunnel opens a tunnel by hand, with bytes right behind the request.
func dialTunnel(tb testing.TB, server *httptest.Server, port int, early string) (net.Conn, *bufio.Reader, *http.Response) {
	tb.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	_, _ = fmt.Fprintf(conn, "GET /tunnel?port=%d HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: berm-tunnel\r\n\r\n%s", port, early)
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return conn, r, res
}

func TestTunnelsEndWithTheAgent(t *testing.T) {
	t.Parallel()
	a, _ := handled(t)
	server := httptest.NewServer(a.Control())
	defer server.Close()
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	}
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	var inside []net.Conn
	for range 8 {
		_, _, res := dialTunnel(t, server, port, "early")
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status %d", res.StatusCode)
		}
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		got := make([]byte, 5)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "early" {
			t.Fatalf("%q %v", got, err)
		}
		inside = append(inside, conn)
	}
	closed := make(chan struct{})
	go func() {
		a.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("Close does not return")
	}
	for _, conn := range inside {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a tunnel outlives the agent")
		}
	}
	if _, _, res := dialTunnel(t, server, port, ""); res.StatusCode != http.StatusBadGateway {
		t.Errorf("a tunnel after Close: %d", res.StatusCode)
	}
}

func TestTunnelRefusals(t *testing.T) {
	t.Parallel()
	a, _ := handled(t)
	for _, port := range []string{"", "0", "-1", "65536", "http", "1x"} {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/tunnel?port="+port, nil)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "berm-tunnel")
		rec := httptest.NewRecorder()
		a.Control().ServeHTTP(rec, req)
		if rec.Code != http.StatusBadRequest {
			t.Errorf("port %q: %d", port, rec.Code)
		}
	}
	rec := httptest.NewRecorder()
	a.Control().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "/tunnel?port=80", nil))
	if rec.Code != http.StatusBadRequest {
		t.Errorf("without an upgrade: %d", rec.Code)
	}
}
