package config_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
)

const wholePolicy = `
tier: process
defaultEgress: {kind: static, allow: [api.example.com, .example.org]}
credentials:
  - {id: hub, host: hub.example.com, methods: [GET], paths: [/v1], header: X-Token, prefix: "tok ", value: hunter2hunter2, placeholder: placeholder_0000}
  - {host: env.example.com, env: BERM_CONFIG_TEST_TOKEN}
  - {host: file.example.com, file: /no/such/file}
allowInwardFor: ["registry.example.com:5000"]
`

// TestEgressPolicy: what a file says about the gate arrives whole, and what people
// are shown of it has no secret.
func TestEgressPolicy(t *testing.T) {
	t.Setenv("BERM_CONFIG_TEST_TOKEN", "") // it is there, and empty
	file := parse(t, wholePolicy)
	got := file.Config.Egress
	if file.Config.Network != driver.NetworkGated || got == nil {
		t.Fatalf("network %q, policy %v", file.Config.Network, got)
	}
	if diff := cmp.Diff([]string{"api.example.com", ".example.org"}, got.Allow); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"registry.example.com:5000"}, got.AllowInwardFor); diff != "" || got.AllowAny || got.Resolver != nil {
		t.Errorf("%s any %v, resolver %v", diff, got.AllowAny, got.Resolver != nil)
	}
	c := got.Credentials[0]
	if c.ID != "hub" || c.Host != "hub.example.com" || c.Header != "X-Token" || c.Prefix != "tok " || c.Value != "hunter2hunter2" ||
		c.Placeholder != "placeholder_0000" || !slices.Equal(c.Methods, []string{"GET"}) || !slices.Equal(c.Paths, []string{"/v1"}) {
		t.Errorf("credential %+v", c)
	}
	missing := config.MissingSecrets(t.Context(), got)
	if len(missing) != 2 || !strings.Contains(missing[0], "BERM_CONFIG_TEST_TOKEN is not set") || !strings.Contains(missing[1], "/no/such/file") {
		t.Errorf("missing %q", missing)
	}
	t.Setenv("BERM_CONFIG_TEST_TOKEN", "rotated-token")
	if value, err := got.Credentials[1].Source(t.Context()); err != nil || value != "rotated-token" {
		t.Errorf("the variable's: %q, %v", value, err)
	}
	shown, err := file.Redacted()
	if err != nil || strings.Contains(string(shown), "hunter2") || !strings.Contains(string(shown), "hub.example.com") {
		t.Errorf("%v: %s", err, shown)
	}
	if whole, err := file.Encode(); err != nil || !strings.Contains(string(whole), "hunter2") {
		t.Errorf("encoded: %v: %s", err, whole)
	}
	resolving := parse(t, `{"tier":"process","defaultEgress":{"kind":"resolver","url":"https://lists.example.com/x?key=hunter2"}}`)
	commanding := parse(t, `{"tier":"process","defaultEgress":{"kind":"resolver","command":["/bin/list","--key=hunter2"]}}`)
	for _, f := range []*config.File{resolving, commanding} {
		if shown, err := f.Redacted(); err != nil || strings.Contains(string(shown), "hunter2") || f.Config.Egress.Resolver == nil {
			t.Errorf("%v: %s", err, shown)
		}
	}
}

func TestSecretFromFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source := config.SecretFromFile(path)
	for text, want := range map[string]string{"abc\n": "abc", "abc\r\n": "abc", "a\nb": "a\nb", " abc \n\n": " abc \n", strings.Repeat("x", 64<<10): strings.Repeat("x", 64<<10)} {
		write(text)
		if got, err := source(t.Context()); err != nil || got != want {
			t.Errorf("%.20q: %.20q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "\n", strings.Repeat("x", 64<<10+1)} {
		write(text)
		if got, err := source(t.Context()); err == nil || got != "" || strings.Contains(err.Error(), "xx") {
			t.Errorf("%.20q: %.20q, %v", text, got, err)
		}
	}
	if _, err := config.SecretFromFile(t.TempDir())(t.Context()); err == nil {
		t.Error("a directory has a secret")
	}
}

// rules asks a resolver of a file.
func rules(t *testing.T, text string, bound time.Duration) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	return parse(t, text).Config.Egress.Resolver(ctx)
}

func TestCommandResolver(t *testing.T) {
	t.Parallel()
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return `{"tier":"process","defaultEgress":{"kind":"resolver","command":["/bin/sh","` + path + `","an argument"]}}`
	}
	got, err := rules(t, script(`echo "# $1"; echo; echo " a.example.com "; echo .b.example.com; echo noise >&2`), time.Minute)
	if diff := cmp.Diff([]string{"a.example.com", ".b.example.com"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for name, text := range map[string]string{
		"fails": "echo a.example.com; exit 3", "is endless": "while :; do echo a.example.com; done", "is too wide": "head -c 2000000 /dev/zero",
	} {
		if got, err := rules(t, script(text), time.Minute); err == nil {
			t.Errorf("a command that %s gives %d rules", name, len(got))
		}
	}
	// What it left behind goes with it, and does not hold up the answer.
	began := time.Now()
	if _, err := rules(t, script("sleep 1000 & sleep 1000"), 100*time.Millisecond); err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("a command that hangs: %v after %v", err, time.Since(began))
	}
}

func TestURLResolver(t *testing.T) {
	t.Parallel()
	answers := map[string]http.HandlerFunc{
		"/good": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("# list\na.example.com\n\n.b.example.com"))
		},
		"/moved": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/good", http.StatusFound) },
		"/error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"/long":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2<<20)) },
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answers[r.URL.Path](w, r) }))
	defer server.Close()
	ask := func(path string) ([]string, error) {
		resolve := config.URLResolver(server.URL+path+"?key=hunter2", server.Client().Transport)
		return resolve(t.Context())
	}
	got, err := ask("/good")
	if diff := cmp.Diff([]string{"a.example.com", ".b.example.com"}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, path := range []string{"/moved", "/error", "/long"} {
		if got, err := ask(path); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s gives %q, %v", path, got, err)
		}
	}
	// The usual transport does not know the server's authority.
	if _, err := rules(t, `{"tier":"process","defaultEgress":{"kind":"resolver","url":"`+server.URL+`/good?key=hunter2"}}`, time.Minute); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an unknown authority: %v", err)
	}
}
