package agent_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/link"
)

// Envd's clients poll with these calls, in JSON.
func TestPolledWatchersForEnvdClients(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	rpc := func(method, body string) (int, string) {
		code, _, answer := ask(t, a, "POST", "/filesystem.Filesystem/"+method, "application/json", body)
		return code, answer
	}
	if err := os.Mkdir(home+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	var made struct{ WatcherID string }
	code, body := rpc("CreateWatcher", `{"path":"d","recursive":true,"includeEntry":true}`)
	if json.Unmarshal([]byte(body), &made) != nil || code != 200 || made.WatcherID == "" {
		t.Fatalf("%d %s", code, body)
	}
	if err := os.WriteFile(home+"/d/f", []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := `{"watcherId":"` + made.WatcherID + `"}`
	type event struct {
		Name, Type string
		Entry      *struct{ Path, Size string }
	}
	var got []event
	for deadline := time.Now().Add(10 * time.Second); len(got) < 2 && time.Now().Before(deadline); {
		var answer struct{ Events []event }
		if code, body = rpc("GetWatcherEvents", id); code != 200 || json.Unmarshal([]byte(body), &answer) != nil {
			t.Fatalf("%d %s", code, body)
		}
		got = append(got, answer.Events...)
	}
	if len(got) != 2 || got[0].Name != "f" || got[0].Type != "EVENT_TYPE_CREATE" || got[1].Type != "EVENT_TYPE_WRITE" || got[1].Entry == nil || got[1].Entry.Path != home+"/d/f" || got[1].Entry.Size != "3" {
		t.Errorf("%+v", got)
	}
	for _, test := range []struct {
		method, body, want string
		code               int
	}{
		{"GetWatcherEvents", id, `{}`, 200}, {"RemoveWatcher", id, `{}`, 200},
		{"GetWatcherEvents", id, "not_found", 404}, {"RemoveWatcher", id, "not_found", 404}, {"GetWatcherEvents", `{}`, "not_found", 404},
		{"CreateWatcher", `{"path":"none"}`, "not_found", 404}, {"CreateWatcher", `{"path":"d/f"}`, "invalid_argument", 400},
		{"CreateWatcher", `{"path":""}`, "invalid_argument", 400}, {"CreateWatcher", `{"path":"/proc"}`, "permission_denied", 403},
	} {
		if code, body := rpc(test.method, test.body); code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s %s: %d %s, want %d %s", test.method, test.body, code, body, test.code, test.want)
		}
	}
	// One whose directory goes says so once, and is not there any more.
	_, body = rpc("CreateWatcher", `{"path":"d"}`)
	if err := json.Unmarshal([]byte(body), &made); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(home + "/d"); err != nil {
		t.Fatal(err)
	}
	id, code = `{"watcherId":"`+made.WatcherID+`"}`, 200
	for deadline := time.Now().Add(10 * time.Second); code == 200 && time.Now().Before(deadline); {
		code, body = rpc("GetWatcherEvents", id)
	}
	if code != 404 || !strings.Contains(body, "the directory is gone") {
		t.Errorf("%d %s", code, body)
	}
	if _, body = rpc("GetWatcherEvents", id); !strings.Contains(body, "there is no watcher") {
		t.Errorf("after its end: %s", body)
	}
}

// TestWatchKeepsAlive: a silent stream says that it lives, as often as its client
// wants.
func TestWatchKeepsAlive(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	const message = `{"path":"` + "/" + `"}`
	body := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+link.DataHost+"/filesystem.Filesystem/WatchDir", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Keepalive-Ping-Interval", "1")
	res, err := in.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	seen := ""
	for buf := make([]byte, 512); !strings.Contains(seen, "keepalive"); {
		n, err := res.Body.Read(buf)
		if seen += string(buf[:n]); err != nil {
			t.Fatalf("%v after %q", err, seen)
		}
	}
	if !strings.Contains(strings.SplitAfter(seen, "}")[0], `"start"`) {
		t.Errorf("the first message is not the start: %q", seen)
	}
}

func TestArchiveRequests(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if err := os.WriteFile(home+"/f", []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, header, body := ask(t, a, "GET", "/archive?path=f", "", "")
	if code != 200 || header.Get("Content-Type") != "application/x-tar" || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("%d %v", code, header)
	}
	r := tar.NewReader(strings.NewReader(body))
	h, err := r.Next()
	if err != nil || h.Name != "f" {
		t.Fatalf("%+v, %v", h, err)
	}
	if content, err := io.ReadAll(r); err != nil || string(content) != "abc" {
		t.Errorf("%q, %v", content, err)
	}
	if code, _, answer := ask(t, a, "POST", "/archive?path=to", "application/x-tar", body); code != 200 || !strings.Contains(answer, `"entries":1,"bytes":3`) {
		t.Errorf("extract: %d %s", code, answer)
	}
	for _, test := range []struct {
		method, target, kind string
		code                 int
	}{
		{"GET", "/archive?path=none", "", 404}, {"GET", "/archive", "", 400}, {"GET", "/archive?path=f&path=f", "", 400}, {"GET", "/archive?path=f&signature=x", "", 400},
		{"GET", "/archive?path=f&username=else", "", 401}, {"GET", "/archive?path=/proc", "", 403}, {"PUT", "/archive?path=f", "application/x-tar", 404},
		{"POST", "/archive?path=x", "application/gzip", 415}, {"POST", "/archive?path=x", "", 415}, {"POST", "/archive?path=f", "application/x-tar", 400}, {"POST", "/archive", "application/x-tar", 400},
	} {
		if code, _, answer := ask(t, a, test.method, test.target, test.kind, body); code != test.code {
			t.Errorf("%s %s %s: %d %s, want %d", test.method, test.target, test.kind, code, answer, test.code)
		}
	}
	if _, err := os.Lstat(home + "/x"); err == nil {
		t.Error("a refused archive made its directory")
	}
}
