package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	// envdVersion is what clients of this wire go by to know what there is.
	envdVersion = "0.6.13"
	// maxInitBytes bounds the body of /init.
	maxInitBytes = 1 << 20
	// maxTokenBytes bounds an access token.
	maxTokenBytes = 4096
)

// session is what the host has settled for the data plane as a whole, by POST
// /init on the control plane. All methods may be called concurrently.
type session struct {
	user string // the one that requests may name; it does not change
	// around is what the egress gate adds to every command's environment.
	around surroundings

	mu    sync.RWMutex
	token string // empty: the data plane is open
	envs  map[string]string
	dir   string // default working directory; empty is the boot message's
	last  time.Time
}

func newSession(config Config) *session {
	return &session{user: config.Boot.User, around: surroundings{
		proxy: proxyVariables(config.Boot, config.outlet), trust: newTrust(config.Boot.TrustDir),
	}}
}

// setup is the body of /init. Fields that only a cloud's orchestrator has a use
// for are not read.
type setup struct {
	AccessToken    *string            `json:"accessToken"`
	EnvVars        *map[string]string `json:"envVars"`
	DefaultUser    *string            `json:"defaultUser"`
	DefaultWorkdir *string            `json:"defaultWorkdir"`
	Timestamp      *time.Time         `json:"timestamp"`
	VolumeMounts   []json.RawMessage  `json:"volumeMounts"`
	CABundle       *string            `json:"caBundle"`
}

// faults lists everything that is wrong with a body.
func (s *session) faults(in setup) error {
	var out []error
	if token := deref(in.AccessToken); len(token) > maxTokenBytes || !isPrintable(token) {
		out = append(out, errors.New("accessToken is not printable, or too long"))
	}
	if in.EnvVars != nil {
		for key, value := range *in.EnvVars {
			if !isName(key) {
				out = append(out, fmt.Errorf("envVars: %q is not a name", key))
			}
			if strings.ContainsRune(value, 0) && !defence.CommandWithoutNUL.Off() {
				out = append(out, fmt.Errorf("envVars: the value of %q has a NUL byte", key))
			}
		}
	}
	if user := deref(in.DefaultUser); user != "" && user != s.user && !defence.FilesUser.Off() {
		out = append(out, fmt.Errorf("defaultUser: unknown user %q", user))
	}
	if dir := deref(in.DefaultWorkdir); len(dir) > maxPathBytes || strings.ContainsRune(dir, 0) {
		out = append(out, errors.New("defaultWorkdir is not a path"))
	}
	// To take these and do nothing would be a promise that is not kept.
	if len(in.VolumeMounts) > 0 {
		out = append(out, errors.New("volumeMounts are not supported"))
	}
	if text := deref(in.CABundle); text != "" {
		_, err := certificates(text)
		if err = errors.Join(s.around.trust.able(), err); err != nil {
			out = append(out, fmt.Errorf("caBundle: %w", err))
		}
	}
	return errors.Join(out...)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

var errTokenMismatch = errors.New("access token validation failed")

// apply takes a body that has no faults. One that is older than the last one is
// passed over: a late retry must not undo what came after it.
func (s *session) apply(in setup) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.Timestamp != nil && in.Timestamp.Before(s.last) && !defence.SessionOrder.Off() {
		return nil
	}
	token := deref(in.AccessToken)
	if s.token != "" && token != "" && !same(s.token, token) && !defence.SessionToken.Off() {
		return errTokenMismatch
	}
	if err := s.applyTrust(in.CABundle); err != nil {
		return err
	}
	if in.Timestamp != nil {
		s.last = *in.Timestamp
	}
	s.token = token
	if in.EnvVars != nil {
		s.envs = maps.Clone(*in.EnvVars)
	}
	s.dir = cmp.Or(deref(in.DefaultWorkdir), s.dir)
	return nil
}

// applyTrust takes certificates; nil leaves those of before, empty takes them
// away.
func (s *session) applyTrust(bundle *string) error {
	if bundle == nil || !s.around.trust.has() {
		return nil // without a directory only an empty one gets here
	}
	text, err := certificates(*bundle)
	if err == nil {
		err = s.around.trust.setSession(text)
	}
	return err
}

// serveInit serves POST /init.
func (s *session) serveInit(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Envd-Version", envdVersion)
	in, err := readSetup(http.MaxBytesReader(w, r.Body, maxInitBytes))
	if err == nil {
		err = s.faults(in)
	}
	if err != nil {
		answerError(w, http.StatusBadRequest, err.Error())
		return
	}
	switch err := s.apply(in); {
	case errors.Is(err, errTokenMismatch):
		answerError(w, http.StatusUnauthorized, err.Error())
		return
	case err != nil:
		answerError(w, http.StatusInsufficientStorage, err.Error())
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// readSetup reads a body; an empty one is like an empty object.
func readSetup(body io.Reader) (setup, error) {
	var in setup
	data, err := io.ReadAll(body)
	if err != nil {
		return in, fmt.Errorf("read the body: %w", err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return in, nil
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return in, fmt.Errorf("the body is not what it should be: %w", err)
	}
	return in, nil
}

// current gives the token, empty for none.
func (s *session) current() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.token
}

// workdir gives the default working directory, "" for the boot message's.
func (s *session) workdir() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.dir
}

// environment gives the session's variables with a request's own on top. The
// result may be the argument, and must not be changed.
func (s *session) environment(own map[string]string) map[string]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.envs) == 0 {
		return own
	}
	out := maps.Clone(s.envs)
	maps.Copy(out, own)
	return out
}

// isPrintable is true for printable ASCII and for the empty text.
func isPrintable(text string) bool {
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
