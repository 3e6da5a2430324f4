package agent

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// signing is what a signature is for.
type signing struct {
	path, operation, user string
	end                   int64 // 0 is none
}

// query is a signed request's, by the letter of the wire.
func (s signing) query(key string) url.Values {
	text := fmt.Sprintf("%s:%s:%s:%s", s.path, s.operation, s.user, key)
	out := url.Values{"path": {s.path}, "username": {s.user}}
	if s.end != 0 {
		text += ":" + strconv.FormatInt(s.end, 10)
		out.Set("signature_expiration", strconv.FormatInt(s.end, 10))
	}
	sum := sha256.Sum256([]byte(text))
	out.Set("signature", "v1_"+strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "="))
	return out
}

// admitted asks the agent's own code.
func admitted(raw, key, operation string, now time.Time) error {
	q, err := parseFileQuery(&http.Request{URL: &url.URL{RawQuery: raw}})
	if err != nil {
		return err
	}
	return q.admit(key, "", operation, now)
}

// FuzzSignedURLs: what was signed is let in until it ends, and a signature lets in
// nothing but what it was made for, however the query is written.
func FuzzSignedURLs(f *testing.F) {
	const key = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	vector := "path=hello.txt&username=user&signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	for i, seed := range []struct {
		path, user   string
		end          int64
		path2, user2 string
		end2         int64
		raw          string
	}{
		{"hello.txt", "user", 0, "hello.txt", "user", 1, vector},
		{"hello.txt", "user", 0, "./hello.txt", "user", 0, vector + "&path=x"},
		{"hello.txt", "", 0, "hello.txt", "user", 0, strings.ReplaceAll(vector, "%2F", "/")},
		{"a:read", "user", 0, "a", "read:user", 0, vector + "="},
		{"a", "user", 0, "a:read", "user", 0, vector + "&signature_expiration=1"},
		{"a:read:user", "", 0, "a", "user", 0, vector + "&signature_expiration="},
		{"", "", 0, ":", "", 0, "signature=" + key},
		{"", "", 1, "", "", 0, "signature"},
		{"a", "u", 10, "a", "u", 100, ""},
		{"a", "u", -10, "a", "u", 10, "&&&"},
		{"a", "u", 1 << 62, "a", "u", 1<<62 + 1, ";"},
		{"a:b", "c", 0, "a", "b:c", 0, "%"},
		{"a", "b:" + key, 0, "a", "b", 0, "path=%zz"},
		{"a", key, 0, "a:" + key, "", 0, strings.ToUpper(vector)},
		{"ü\x00\n", "u", 0, "ü", "u", 0, "PATH=hello.txt&username=user"},
		{" ", "u", 0, "+", "u", 0, "path=a+b&path=a%20b"},
		{"%2F", "u", 0, "/", "u", 0, "signature_expiration=+1"},
		{"a?b&c=d", "u", 0, "a", "u", 0, "signature_expiration=01"},
		{"a", "u", 0, "A", "u", 0, "signature_expiration=1e3"},
		{"a", "u", 1000, "a:read:u:" + key, "", 1000, "signature_expiration=99999999999999999999"},
		{"read", "write", 0, "write", "read", 0, "username=user&username=root"},
		{"\xff", "\xfe", 0, "\xff\xfe", "", 0, vector + "#"},
	} {
		f.Add(seed.path, seed.user, seed.end, seed.path2, seed.user2, seed.end2, seed.raw, i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, path, user string, end int64, path2, user2 string, end2 int64, raw string, write bool) {
		one := signing{path, operationRead, user, end}
		other := signing{path2, operationRead, user2, end2}
		if write {
			other.operation = operationWrite
		}
		values := one.query(key)
		before, after := time.Unix(end-1, 0), time.Unix(end+1, 0)
		if end <= -1<<40 || end >= 1<<40 {
			return // no time that a clock shows
		}
		err := admitted(values.Encode(), key, one.operation, before)
		if plain := !strings.Contains(user, ":"); (err == nil) != plain {
			t.Fatalf("%q: %v", values, err)
		}
		if err := admitted(values.Encode(), key, one.operation, after); end != 0 && err == nil {
			t.Fatalf("%q is let in after its end", values)
		}
		// The same signature on another request.
		if one != other {
			altered := other.query(key)
			altered["signature"] = values["signature"]
			if err := admitted(altered.Encode(), key, other.operation, time.Unix(min(end, end2)-1, 0)); err == nil {
				t.Fatalf("made for %+v, lets in %+v", one, other)
			}
		}
		if err := admitted(values.Encode(), key+"x", one.operation, before); err == nil {
			t.Fatal("another token")
		}
		// Any query is what it says, once, and signed for just that.
		if admitted(raw, key, operationRead, before) != nil {
			return
		}
		seen, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatalf("%q is malformed and let in", raw)
		}
		said := signing{path: seen.Get("path"), operation: operationRead, user: seen.Get("username")}
		if text := seen.Get("signature_expiration"); text != "" {
			if said.end, err = strconv.ParseInt(text, 10, 64); err != nil {
				t.Fatalf("%q", raw)
			}
		}
		if want := said.query(key).Get("signature"); seen.Get("signature") != want || len(seen["path"]) > 1 || len(seen["signature"]) != 1 || len(seen["username"]) > 1 {
			t.Fatalf("%q is let in, want %s", raw, want)
		}
	})
}
