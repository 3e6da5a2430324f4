package agent_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/internal/agent"
)

const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// call sends one request to a plane, with headers "name: value".
func call(tb testing.TB, plane http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	req := httptest.NewRequestWithContext(tb.Context(), method, target, strings.NewReader(body))
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Add(name, value)
	}
	rec := httptest.NewRecorder()
	plane.ServeHTTP(rec, req)
	return rec
}

// settle sends /init.
func settle(tb testing.TB, a *agent.Agent, body string) int {
	tb.Helper()
	rec := call(tb, a.Control(), "POST", "/init", body)
	if rec.Header().Get("X-Envd-Version") != "0.6.13" {
		tb.Errorf("header: %v", rec.Header())
	}
	return rec.Code
}

func TestInit(t *testing.T) {
	t.Parallel()
	a, _ := handled(t)
	envs := func() string {
		rec := call(t, a.Data(), "GET", "/envs", "", "X-Access-Token: "+token)
		return strconv.Itoa(rec.Code) + rec.Body.String()
	}
	open := func() bool { return call(t, a.Data(), "GET", "/envs", "").Code == 200 }
	for i, step := range []struct {
		body string
		want int
		envs string
		open bool
	}{
		{"", 204, `200{}`, true},
		{`{"envVars":{"A":"1","B":"2"},"unknown":[1]}`, 204, `200{"A":"1","B":"2"}`, true},
		{`{"envVars":{"A":"3"},"accessToken":"` + token + `"}`, 204, `200{"A":"3"}`, false},
		// Another token is refused, and nothing of that body is taken.
		{`{"envVars":{"A":"4"},"accessToken":"other"}`, 401, `200{"A":"3"}`, false},
		{`{"accessToken":"` + token + `","timestamp":"2026-01-02T00:00:00Z"}`, 204, `200{"A":"3"}`, false},
		// What is older than that is passed over, a wrong token too.
		{`{"envVars":{},"timestamp":"2026-01-01T00:00:00Z"}`, 204, `200{"A":"3"}`, false},
		{`{"envVars":{"C":"x"},"accessToken":"` + token + `","timestamp":"2026-01-02T00:00:00Z"}`, 204, `200{"C":"x"}`, false},
		{`{"envVars":null,"accessToken":"` + token + `","defaultUser":"user"}`, 204, `200{"C":"x"}`, false},
		{`{"envVars":{},"timestamp":"2026-01-03T00:00:00+01:00"}`, 204, `200{}`, true},
		{`{"accessToken":"other"}`, 204, `401{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`, false},
		{`{`, 400, "", false},
		{`[]`, 400, "", false},
		{`{"timestamp":"yesterday"}`, 400, "", false},
		{`{"envVars":{"A=B":"1"}}`, 400, "", false},
		{`{"envVars":{"A":"\u0000"}}`, 400, "", false},
		{`{"accessToken":"\u00e4"}`, 400, "", false},
		{`{"defaultUser":"root"}`, 400, "", false},
		{`{"defaultWorkdir":"/\u0000"}`, 400, "", false},
		{`{"volumeMounts":[{"path":"/x"}]}`, 400, "", false},
		{`{"caBundle":"x"}`, 400, "", false},
		{`{"accessToken":"` + strings.Repeat("x", 2<<20) + `"}`, 400, "", false},
		{`{"volumeMounts":[],"caBundle":""}`, 204, `200{}`, true},
	} {
		if code := settle(t, a, step.body); code != step.want {
			t.Errorf("%d: %d", i, code)
		}
		if got := envs(); step.envs != "" && got != step.envs {
			t.Errorf("%d: %s", i, got)
		}
		if open() != step.open {
			t.Errorf("%d: open: %t", i, open())
		}
	}
}

// stream sends a streaming call in JSON and gives the messages of the answer,
// with the last one behind a "!".
func stream(tb testing.TB, server *httptest.Server, method string, headers []string, messages ...string) []string {
	tb.Helper()
	var body bytes.Buffer
	for _, m := range messages {
		body.WriteByte(0)
		_ = binary.Write(&body, binary.BigEndian, uint32(len(m)))
		body.WriteString(m)
	}
	req, err := http.NewRequestWithContext(tb.Context(), "POST", server.URL+method, &body)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	res, err := server.Client().Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if kind := res.Header.Get("Content-Type"); kind != "application/connect+json" {
		data, _ := io.ReadAll(res.Body)
		return []string{fmt.Sprintf("%d %s %s", res.StatusCode, kind, data)}
	}
	var out []string
	for r := bufio.NewReader(res.Body); ; {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if len(out) == 0 || !strings.HasPrefix(out[len(out)-1], "!") {
				tb.Fatalf("%s: the stream has no end: %v, %q", method, err, out)
			}
			return out
		}
		data := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(r, data); err != nil {
			tb.Fatal(err)
		}
		// The encoder puts a space in at random.
		text := strings.ReplaceAll(string(data), ": ", ":")
		text = strings.ReplaceAll(text, ", ", ",")
		if head[0]&2 != 0 {
			text = "!" + text
		}
		out = append(out, text)
	}
}

// Every method of both services speaks JSON, by envd's names.
func TestEveryMethodInJSON(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	server := httptest.NewServer(a.Data())
	defer server.Close()
	unary := func(method, body string) string {
		rec := call(t, a.Data(), "POST", "/process.Process/"+method, body, "Content-Type: application/json")
		return strconv.Itoa(rec.Code) + strings.ReplaceAll(rec.Body.String(), `": `, `":`)
	}
	start := make(chan []string, 1)
	go func() {
		start <- stream(t, server, "/process.Process/Start", nil, `{"process":{"cmd":"/bin/sh","args":["-c","read a; read b; echo $a $b; echo e >&2; exit 3"]},"tag":"t","unknown":{}}`)
	}()
	var pid string
	for deadline := time.Now().Add(20 * time.Second); pid == ""; {
		var list struct{ Processes []struct{ PID int } }
		if text := unary("List", "{}"); json.Unmarshal([]byte(text[3:]), &list) != nil || time.Now().After(deadline) {
			t.Fatal(text)
		}
		if len(list.Processes) > 0 {
			pid = strconv.Itoa(list.Processes[0].PID)
		}
	}
	followed := make(chan []string, 1)
	go func() {
		followed <- stream(t, server, "/process.Process/Connect", nil, `{"process":{"tag":"t"}}`)
	}()
	one, two := base64.StdEncoding.EncodeToString([]byte("one\n")), base64.StdEncoding.EncodeToString([]byte("two\n"))
	if got := unary("SendInput", `{"process":{"pid":`+pid+`},"input":{"stdin":"`+one+`"}}`); got != "200{}" {
		t.Error(got)
	}
	if got := unary("Update", `{"process":{"pid":`+pid+`},"pty":{"size":{"cols":1,"rows":2}}}`); !strings.HasPrefix(got, `500{"code":"internal"`) {
		t.Error(got)
	}
	if got := unary("SendInput", `{"process":{"pid":`+pid+`},"input":{"pty":"`+one+`"}}`); !strings.HasPrefix(got, `500{"code":"internal"`) {
		t.Error(got)
	}
	fed := stream(t, server, "/process.Process/StreamInput", nil, `{"start":{"process":{"pid":`+pid+`}}}`, `{"keepalive":{}}`, `{"data":{"input":{"stdin":"`+two+`"}}}`)
	if strings.Join(fed, " ") != "{} !{}" {
		t.Error(fed)
	}
	out, err := base64.StdEncoding.EncodeToString([]byte("one two\n")), base64.StdEncoding.EncodeToString([]byte("e\n"))
	got := <-start
	for _, want := range []string{`"start":{"pid":` + pid, `"data":{"stdout":"` + out + `"`, `"data":{"stderr":"` + err + `"`, `"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"`} {
		if !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	if got[len(got)-1] != "!{}" {
		t.Error(got)
	}
	if got := <-followed; !strings.Contains(got[0], `{"event":{"start":{"pid":`+pid) || !strings.Contains(strings.Join(got, ""), `"end":{"exitCode":3`) {
		t.Error(got)
	}
	for method, body := range map[string]string{
		"SendSignal": `{"process":{"pid":4000000},"signal":"SIGNAL_SIGKILL"}`, "CloseStdin": `{"process":{"tag":"none"}}`,
		"Update": `{"process":{"pid":4000000}}`, "SendInput": `{"process":{"pid":4000000},"input":{}}`,
	} {
		if got := unary(method, body); !strings.HasPrefix(got, `404{"code":"not_found"`) {
			t.Errorf("%s: %s", method, got)
		}
	}
	if got := stream(t, server, "/process.Process/Connect", nil, `{"process":{"pid":4000000}}`); len(got) != 1 || !strings.HasPrefix(got[0], `!{"error":{"code":"not_found"`) {
		t.Error(got)
	}
	if got := stream(t, server, "/process.Process/Start", nil, `{"process":{"cmd":"sh","cwd":"/none"}}`); len(got) != 1 || !strings.HasPrefix(got[0], `!{"error":{"code":"invalid_argument","message":"cwd '/none' does not exist"`) {
		t.Error(got)
	}
	if _, err := os.Stat(home); err != nil {
		t.Error(err)
	}
}

// The session's variables and directory are below a request's own.
func TestInitReachesCommands(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	server := httptest.NewServer(a.Data())
	defer server.Close()
	if err := os.MkdirAll(home+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if code := settle(t, a, `{"envVars":{"A":"session","B":"session","LANG":"C"},"defaultWorkdir":"~/sub"}`); code != 204 {
		t.Fatal(code)
	}
	run := func(extra string) string {
		script := `{"cmd":"sh","args":["-c","echo $A $B $LANG $USER $PWD"]` + extra + `}`
		for _, message := range stream(t, server, "/process.Process/Start", nil, `{"process":`+script+`,"stdin":false}`) {
			_, data, found := strings.Cut(message, `"stdout":"`)
			data, _, _ = strings.Cut(data, `"`)
			if text, err := base64.StdEncoding.DecodeString(data); found && err == nil {
				return strings.TrimSpace(string(text))
			}
		}
		return ""
	}
	for extra, want := range map[string]string{
		"":                      "session session C user " + home + "/sub",
		`,"envs":{"B":"own"}`:   "session own C user " + home + "/sub",
		`,"cwd":"` + home + `"`: "session session C user " + home,
	} {
		if got := run(extra); got != want {
			t.Errorf("%s: %s", extra, got)
		}
	}
	if code := settle(t, a, `{"envVars":{}}`); code != 204 {
		t.Fatal(code)
	}
	if got := run(""); got != "C.UTF-8 user "+home+"/sub" {
		t.Error(got)
	}
}

// With a token the data plane wants it; health, signed files and a browser's
// question before its request do not.
func TestAccessToken(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	server := httptest.NewServer(a.Data())
	defer server.Close()
	if err := os.WriteFile(home+"/f", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := settle(t, a, `{"accessToken":"`+token+`"}`); code != 204 {
		t.Fatal(code)
	}
	connect, plain := `{"code":"unauthenticated","message":`, `{"code":401,"message":`
	for _, test := range []struct{ method, target, refused string }{
		{"POST", "/process.Process/List", connect},
		{"POST", "/process.Process/Start", connect},
		{"POST", "/filesystem.Filesystem/Stat", connect},
		{"POST", "/berm.agent.v1.Process/List", connect},
		{"POST", "/berm.agent.v1.Filesystem/Stat", connect},
		{"GET", "/envs", plain},
		{"GET", "/metrics", plain},
		{"POST", "/files/compose", plain},
		{"GET", "/files?path=f", plain},
		{"POST", "/files?path=f", plain},
		{"HEAD", "/files?path=f", ""},
		{"PUT", "/files?path=f", plain},
		{"POST", "/health", plain},
		{"POST", "/init", plain},
		{"GET", "/none", plain},
		{"OPTIONS", "/envs", plain},
	} {
		for _, header := range []string{"X-Other: x", "X-Access-Token: wrong", "X-Access-Token: " + token + "x", "Authorization: Bearer " + token} {
			rec := call(t, a.Data(), test.method, test.target, "{}", "Content-Type: application/json", header)
			if rec.Code != 401 || !strings.HasPrefix(rec.Body.String(), test.refused) || rec.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s %s with %s: %d %s", test.method, test.target, header, rec.Code, rec.Body)
			}
		}
		rec := call(t, a.Data(), test.method, test.target, "{}", "Content-Type: application/json", "X-Access-Token: "+token)
		if rec.Code == 401 {
			t.Errorf("%s %s with the token: %d %s", test.method, test.target, rec.Code, rec.Body)
		}
	}
	for _, headers := range [][]string{nil, {"X-Access-Token: wrong"}} {
		if rec := call(t, a.Data(), "GET", "/health", "", headers...); rec.Code != 204 || rec.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("health: %d %v", rec.Code, rec.Header())
		}
	}
	if got := stream(t, server, "/process.Process/Start", nil, `{}`); len(got) != 1 || !strings.HasPrefix(got[0], "401 application/json "+connect) {
		t.Error(got)
	}
	rec := call(t, a.Data(), "OPTIONS", "/process.Process/List", "", "Origin: https://x.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: x-access-token,content-type")
	if rec.Code != 204 || rec.Header().Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(rec.Header().Get("Access-Control-Allow-Headers"), "x-access-token") {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	rec = call(t, a.Data(), "GET", "/envs", "", "Origin: https://x.example", "X-Access-Token: "+token)
	if rec.Code != 200 || rec.Header().Get("Access-Control-Allow-Origin") != "*" || rec.Header().Get("Access-Control-Expose-Headers") == "" || rec.Header().Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
}

// Requests name the one user or none.
func TestBasicUser(t *testing.T) {
	t.Parallel()
	a, _ := handled(t)
	basic := func(user string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user))
	}
	for header, want := range map[string]int{
		basic("user:"): 200, basic(":"): 200, basic("user:anything"): 200, "Authorization: Bearer x": 200, "X: y": 200,
		basic("root:"): 401, basic("user"): 401, "Authorization: Basic %": 401, "authorization: basic " + base64.StdEncoding.EncodeToString([]byte("User:")): 401,
	} {
		rec := call(t, a.Data(), "POST", "/process.Process/List", "{}", "Content-Type: application/json", header)
		if rec.Code != want || want == 401 && !strings.HasPrefix(rec.Body.String(), `{"code":"unauthenticated"`) {
			t.Errorf("%s: %d %s", header, rec.Code, rec.Body)
		}
	}
}

// sign is the signature of a request for a file, by the letter of the wire.
func sign(path, operation, user, key string, expiration ...int64) string {
	text := path + ":" + operation + ":" + user + ":" + key
	for _, seconds := range expiration {
		text += ":" + strconv.FormatInt(seconds, 10)
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
}

func TestSignedFiles(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if err := os.WriteFile(home+"/hello.txt", []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := settle(t, a, `{"accessToken":"`+token+`"}`); code != 204 {
		t.Fatal(code)
	}
	const vector = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := sign("hello.txt", "read", "user", token); got != vector {
		t.Fatal(got)
	}
	future, past := time.Now().Unix()+100, time.Now().Unix()-100
	ends := func(seconds int64) string { return strconv.FormatInt(seconds, 10) }
	missing, invalid := "missing signature query parameter", "invalid signature"
	for name, test := range map[string]struct {
		method, target, header string
		code                   int
		message                string
	}{
		"vector":            {"GET", filesURL("path", "hello.txt", "username", "user", "signature", vector), "", 200, ""},
		"head":              {"HEAD", filesURL("path", "hello.txt", "username", "user", "signature", vector), "", 200, ""},
		"no user":           {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", token)), "", 200, ""},
		"limited":           {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", token, future), "signature_expiration", ends(future)), "", 200, ""},
		"header":            {"GET", filesURL("path", "hello.txt"), token, 200, ""},
		"header and more":   {"GET", filesURL("path", "hello.txt", "signature", "v1_x"), token, 200, ""},
		"wrong header":      {"GET", filesURL("path", "hello.txt", "username", "user", "signature", vector), "x", 401, "access token present in header but does not match"},
		"none":              {"GET", filesURL("path", "hello.txt"), "", 401, missing},
		"none to write":     {"POST", filesURL("path", "hello.txt"), "", 401, missing},
		"other operation":   {"POST", filesURL("path", "hello.txt", "username", "user", "signature", vector), "", 401, invalid},
		"other path":        {"GET", filesURL("path", "./hello.txt", "username", "user", "signature", vector), "", 401, invalid},
		"other user":        {"GET", filesURL("path", "hello.txt", "signature", vector), "", 401, invalid},
		"end taken off":     {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", token, future)), "", 401, invalid},
		"end moved":         {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", token, past), "signature_expiration", ends(future)), "", 401, invalid},
		"expired":           {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", token, past), "signature_expiration", ends(past)), "", 401, "signature is already expired"},
		"padding":           {"GET", filesURL("path", "hello.txt", "username", "user", "signature", vector+"="), "", 401, invalid},
		"empty":             {"GET", filesURL("path", "hello.txt", "signature", ""), "", 401, invalid},
		"other token":       {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", "x")), "", 401, invalid},
		"colon":             {"GET", filesURL("path", "a", "username", "read:user", "signature", sign("a:read", "read", "user", token)), "", 401, invalid},
		"unknown user":      {"GET", filesURL("path", "hello.txt", "username", "root", "signature", sign("hello.txt", "read", "root", token)), "", 401, `unknown user "root"`},
		"two signatures":    {"GET", filesURL("path", "hello.txt", "username", "user", "signature", vector) + "&signature=x", "", 400, "more than one signature"},
		"two paths":         {"GET", filesURL("path", "hello.txt", "username", "user", "signature", vector) + "&path=/etc/passwd", "", 400, "more than one path"},
		"odd end":           {"GET", filesURL("path", "hello.txt", "signature", sign("hello.txt", "read", "", token, future), "signature_expiration", "+"+ends(future)), "", 400, "signature_expiration is not a number of seconds"},
		"end without signs": {"GET", filesURL("path", "hello.txt", "signature_expiration", ends(future)), "", 401, missing},
	} {
		headers := []string{"Content-Type: " + octets}
		if test.header != "" {
			headers = append(headers, "X-Access-Token: "+test.header)
		}
		rec := call(t, a.Data(), test.method, test.target, "", headers...)
		var body struct {
			Code    int
			Message string
		}
		if test.code != 200 && (json.Unmarshal(rec.Body.Bytes(), &body) != nil || body.Code != test.code || body.Message != test.message) || rec.Code != test.code {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	// A form without a path in its query is signed with an empty one.
	form, kind := formOf(part{"file", home + "/new.txt", "new"})
	rec := call(t, a.Data(), "POST", filesURL("signature", sign("", "write", "", token)), form, "Content-Type: "+kind)
	if data, err := os.ReadFile(home + "/new.txt"); rec.Code != 200 || err != nil || string(data) != "new" {
		t.Errorf("%d %s %q %v", rec.Code, rec.Body, data, err)
	}
}
