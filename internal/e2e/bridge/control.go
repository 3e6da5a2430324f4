package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// What the control plane says of every sandbox.
const (
	// agentVersion is the version of the wire, by which the SDKs choose what they
	// may use.
	agentVersion = "0.6.13"
	template     = "base"
	clientID     = "berm"
	maxBody      = 1 << 20
)

// order is the body of create, connect and timeout, as far as it is looked at.
type order struct {
	Template string            `json:"templateID"`
	Timeout  *int              `json:"timeout"`
	Secure   *bool             `json:"secure"`
	Metadata map[string]string `json:"metadata"`
	Env      map[string]string `json:"envVars"`

	// second is true for the second version of a call.
	second bool
}

// secured says whether the sandbox gets an access token: always, in the second
// version.
func (o order) secured() bool { return o.second || o.Secure != nil && *o.Secure }

// life is how long the sandbox may run; the default depends on the version.
func (o order) life() time.Duration {
	switch {
	case o.Timeout != nil:
		return time.Duration(*o.Timeout) * time.Second
	case o.second:
		return 300 * time.Second
	}
	return 15 * time.Second
}

func (b *bridge) controlPlane() http.Handler {
	mux := http.NewServeMux()
	for prefix, second := range map[string]bool{"": false, "/v2": true} {
		mux.HandleFunc("POST "+prefix+"/sandboxes", b.ordered(second, b.serveCreate))
		mux.HandleFunc("POST "+prefix+"/sandboxes/{id}/connect", b.ordered(second, b.serveConnect))
	}
	mux.HandleFunc("POST /sandboxes/{id}/timeout", b.ordered(false, b.serveTimeout))
	mux.HandleFunc("GET /sandboxes/{id}", b.serveInfo)
	mux.HandleFunc("DELETE /sandboxes/{id}", b.serveKill)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Sprintf("%s %s is not served", r.Method, r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != b.key {
			fail(w, http.StatusUnauthorized, "Invalid API key")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// ordered reads the body before next.
func (b *bridge) ordered(second bool, next func(http.ResponseWriter, *http.Request, order)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		want := order{second: second}
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&want)
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			fail(w, http.StatusBadRequest, "Invalid body: "+err.Error())
		case want.life() <= 0:
			fail(w, http.StatusBadRequest, "Timeout must be greater than 0")
		default:
			next(w, r, want)
		}
	}
}

func (b *bridge) serveCreate(w http.ResponseWriter, r *http.Request, want order) {
	if want.Template != template {
		fail(w, http.StatusNotFound, fmt.Sprintf("template '%s' not found", want.Template))
		return
	}
	t, err := b.create(r.Context(), want)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, http.StatusCreated, t.contact())
}

func (b *bridge) serveConnect(w http.ResponseWriter, r *http.Request, want order) {
	if t := b.named(w, r); t != nil {
		t.extend(want.life(), false)
		reply(w, http.StatusOK, t.contact())
	}
}

func (b *bridge) serveTimeout(w http.ResponseWriter, r *http.Request, want order) {
	if t := b.named(w, r); t != nil {
		t.extend(want.life(), true)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (b *bridge) serveInfo(w http.ResponseWriter, r *http.Request) {
	if t := b.named(w, r); t != nil {
		reply(w, http.StatusOK, t.detail())
	}
}

func (b *bridge) serveKill(w http.ResponseWriter, r *http.Request) {
	t := b.take(r.PathValue("id"))
	if t == nil {
		unknown(w, r)
		return
	}
	if err := t.sandbox.Destroy(r.Context()); err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// named finds the sandbox of the path, or answers that there is none.
func (b *bridge) named(w http.ResponseWriter, r *http.Request) *tenant {
	t := b.tenant(r.PathValue("id"))
	if t == nil {
		unknown(w, r)
	}
	return t
}

func unknown(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, fmt.Sprintf("sandbox %q not found", strings.TrimSpace(r.PathValue("id"))))
}

// contact is how a client reaches the sandbox.
func (t *tenant) contact() map[string]any {
	out := map[string]any{
		"templateID": t.template, "sandboxID": t.sandbox.ID(), "clientID": clientID, "envdVersion": agentVersion,
	}
	if t.token != "" {
		out["envdAccessToken"] = t.token
	}
	return out
}

// detail is contact and what is known besides. Sizes that no limit says are 1:
// the SDKs want a number.
func (t *tenant) detail() map[string]any {
	out := t.contact()
	out["startedAt"], out["endAt"] = t.started.UTC().Format(time.RFC3339Nano), t.endsAt().UTC().Format(time.RFC3339Nano)
	out["cpuCount"], out["memoryMB"], out["diskSizeMB"] = 1, 1, 1
	out["state"], out["metadata"] = "running", t.metadata
	return out
}
