package broker_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berm-dev/berm/egress/gate/internal/broker"
)

// TestNamesAndEncodingsAreMasked: the secret is not in the names of headers, in
// whatever spelling a name can have, nor in what is said about a refused response.
func TestNamesAndEncodingsAreMasked(t *testing.T) {
	t.Parallel()
	redactor, _, err := compile(t, bearer()).For(apiHost).Apply(t.Context(), outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil))
	if err != nil {
		t.Fatal(err)
	}
	shown := hex.EncodeToString([]byte(token))
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
	resp.Header.Set("X-"+shown, "1")
	resp.Header.Set("X-Other", "1")
	if err := redactor.Response(resp); err != nil {
		t.Fatal(err)
	}
	if len(resp.Header) != 1 || resp.Header.Get("X-Other") != "1" {
		t.Errorf("%v", resp.Header)
	}
	resp.Header.Set("Content-Encoding", token)
	if err := redactor.Response(resp); err == nil || strings.Contains(err.Error(), token) {
		t.Errorf("%v", err)
	}
}

// TestWhatIsHeldBackTellsNothing: in which pieces a body comes does not depend on
// whether its bytes are the beginning of the secret. Else who has a server say
// what he likes would guess the secret byte by byte.
func TestWhatIsHeldBackTellsNothing(t *testing.T) {
	t.Parallel()
	redactor, _, err := compile(t, bearer()).For(apiHost).Apply(t.Context(), outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"", "x", "line\n", strings.Repeat("~", 2000), "line\n" + strings.Repeat("~", 2000)} {
		for n := 1; n < len(token); n++ {
			guess := strings.Repeat("~", n)
			right, wrong := pieces(t, redactor, before+token[:n], "~~~\n", "end"), pieces(t, redactor, before+guess, "~~~\n", "end")
			if right != wrong {
				t.Fatalf("behind %d bytes %d right ones come in pieces of %s, wrong ones of %s", len(before), n, right, wrong)
			}
		}
	}
	if got := pieces(t, redactor, "a line\n", "another\n", "and a half"); got != "[7 8 10]" {
		t.Errorf("lines come in pieces of %s", got)
	}
}

// pieces gives the lengths in which a body comes that its server sends in parts.
func pieces(t *testing.T, r *broker.Redactor, parts ...string) string {
	t.Helper()
	var readers []io.Reader
	for _, p := range parts {
		readers = append(readers, strings.NewReader(p))
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1, Body: io.NopCloser(iotest.DataErrReader(io.MultiReader(readers...)))}
	if err := r.Response(resp); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []int
	buffer := make([]byte, 8<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 {
			out = append(out, n)
		}
		if err != nil {
			return fmt.Sprint(out)
		}
	}
}
