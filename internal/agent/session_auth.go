package agent

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// tokenHeader carries the session's access token.
const tokenHeader = "X-Access-Token" //nolint:gosec // a header's name

// same compares two secrets in a time that says nothing about them.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// withAccess lets only those requests to the data plane through that may pass:
// with the session's token, if there is one, and for the user that there is.
func (s *session) withAccess(next http.Handler) http.Handler {
	// Asked here: inside a closure the compiler keeps the names.
	open, anybody := defence.SessionAccess.Off(), defence.FilesUser.Off()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token := s.current(); token != "" && !exempt(r) && !same(r.Header.Get(tokenHeader), token) && !open {
			refuseAccess(w, r, "unauthorized access, please provide a valid access token or method signing if supported")
			return
		}
		if user, ok := basicUser(r); !ok || user != "" && user != s.user && !anybody {
			refuseAccess(w, r, "unknown user "+strconv.Quote(user))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// exempt is true for the routes that need no token, and for those that look at
// it themselves.
func exempt(r *http.Request) bool {
	switch r.URL.Path {
	case "/health":
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	case "/files":
		return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost
	}
	return false
}

// basicUser gives the user that a request names by its Authorization header, ""
// for none. Other schemes are somebody else's. It is false for what is malformed.
func basicUser(r *http.Request) (string, bool) {
	header := r.Header.Get("Authorization")
	if scheme, _, _ := strings.Cut(header, " "); !strings.EqualFold(scheme, "Basic") {
		return "", true
	}
	user, _, ok := r.BasicAuth()
	return user, ok
}

// isRPC is true for paths whose clients read Connect's form of an error.
func isRPC(path string) bool {
	return strings.HasPrefix(path, "/process.Process/") || strings.HasPrefix(path, "/filesystem.Filesystem/") ||
		strings.HasPrefix(path, "/berm.agent.v1.")
}

// refuseAccess answers 401 in the form that the path's clients read.
func refuseAccess(w http.ResponseWriter, r *http.Request, message string) {
	if !isRPC(r.URL.Path) {
		answerError(w, http.StatusUnauthorized, message)
		return
	}
	answer(w, http.StatusUnauthorized, struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{"unauthenticated", message})
}

// fileQuery is the query of the routes for whole files.
type fileQuery struct {
	path, user, signature string
	signed                bool // a signature was given
	// expiration is when the signature ends, in unix seconds, and is empty for
	// one without an end.
	expiration string
	values     url.Values
}

// parseFileQuery refuses what two readers could understand in two ways.
func parseFileQuery(r *http.Request) (fileQuery, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fileQuery{}, faultf(connect.CodeInvalidArgument, "the query is malformed")
	}
	for _, name := range []string{"path", "username", "signature", "signature_expiration"} {
		if len(values[name]) > 1 && !defence.QueryUnambiguous.Off() {
			return fileQuery{}, faultf(connect.CodeInvalidArgument, "more than one %s", name)
		}
	}
	q := fileQuery{
		path: values.Get("path"), user: values.Get("username"), signature: values.Get("signature"),
		signed: values.Has("signature"), expiration: values.Get("signature_expiration"), values: values,
	}
	if q.expiration != "" {
		seconds, err := strconv.ParseInt(q.expiration, 10, 64)
		if err != nil || strconv.FormatInt(seconds, 10) != q.expiration {
			return fileQuery{}, faultf(connect.CodeInvalidArgument, "signature_expiration is not a number of seconds")
		}
	}
	return q, nil
}

// Operations that signatures are for.
const (
	operationRead  = "read"
	operationWrite = "write"
)

// admit decides on a request for whole files: by the token in its header, or
// else by its signature. now is the time.
func (q fileQuery) admit(token, header, operation string, now time.Time) error {
	switch {
	case token == "":
		return nil
	case header != "":
		if !same(header, token) && !defence.SessionAccess.Off() {
			return denied("access token present in header but does not match")
		}
		return nil
	case !q.signed:
		return denied("missing signature query parameter")
	// What is signed is joined by colons, and only a user without one keeps the
	// parts apart.
	case strings.Contains(q.user, ":") && !defence.SignatureUser.Off():
		return denied("invalid signature")
	case subtle.ConstantTimeCompare([]byte(q.expected(token, operation)), []byte(q.signature)) != 1 && !defence.SignatureChecked.Off():
		return denied("invalid signature")
	}
	if q.expiration == "" {
		return nil
	}
	end, err := strconv.ParseInt(q.expiration, 10, 64)
	if (err != nil || end < now.Unix()) && !defence.SignatureExpires.Off() {
		return denied("signature is already expired")
	}
	return nil
}

func denied(text string) error {
	return &fault{code: connect.CodeUnauthenticated, text: text, err: errors.New(text)}
}

// expected is the signature that the query should have.
func (q fileQuery) expected(token, operation string) string {
	parts := []string{q.path, operation, q.user, token}
	if q.expiration != "" {
		parts = append(parts, q.expiration)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// answerError answers with envd's form of an error.
func answerError(w http.ResponseWriter, status int, message string) {
	answer(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

// answer answers in JSON.
func answer(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	// A failed write means that the client is gone.
	_, _ = w.Write(data)
}
