package broker_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/berm-dev/berm/egress"
)

// echo answers with the request as the server saw it.
func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s\n", r.Method, r.Host, r.URL.RequestURI())
	_ = r.Header.Write(w)
	_, _ = io.Copy(w, r.Body)
}

// raw sends bytes through TLS to the rig and reads the status line.
func (r *rig) raw(t *testing.T, request string) string {
	t.Helper()
	conn := r.dial(t, "http/1.1")
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (r *rig) dial(t *testing.T, protocol string) *tls.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.front)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	session := tls.Client(conn, &tls.Config{RootCAs: trust(t, r.authority), ServerName: apiHost, NextProtos: []string{protocol}})
	if err := session.Handshake(); err != nil {
		t.Fatal(err)
	}
	if got := session.ConnectionState().NegotiatedProtocol; got != protocol {
		t.Fatalf("the rig speaks %q, not %q", got, protocol)
	}
	return session
}

func TestC16InnerHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, bearer(), echo)
	for name, c := range map[string]struct {
		request string
		reason  egress.Reason
	}{
		"C16/same":               {"GET / HTTP/1.1\r\nHost: api.example.com\r\n", ""},
		"C16/same with port":     {"GET / HTTP/1.1\r\nHost: api.example.com:443\r\n", ""},
		"C16/capitals and dot":   {"GET / HTTP/1.1\r\nHost: API.Example.com.\r\n", ""},
		"C16/absolute":           {"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n", ""},
		"C16/other":              {"GET / HTTP/1.1\r\nHost: evil.test\r\n", egress.ReasonHost},
		"C16/other port":         {"GET / HTTP/1.1\r\nHost: api.example.com:8443\r\n", egress.ReasonHost},
		"C16/empty port":         {"GET / HTTP/1.1\r\nHost: api.example.com:\r\n", egress.ReasonHost},
		"C16/port with zero":     {"GET / HTTP/1.1\r\nHost: api.example.com:0443\r\n", egress.ReasonHost},
		"C16/prefix":             {"GET / HTTP/1.1\r\nHost: xapi.example.com\r\n", egress.ReasonHost},
		"C16/suffix":             {"GET / HTTP/1.1\r\nHost: api.example.com.evil.test\r\n", egress.ReasonHost},
		"C16/two dots":           {"GET / HTTP/1.1\r\nHost: api.example.com..\r\n", egress.ReasonHost},
		"C16/absolute other":     {"GET https://evil.test/ HTTP/1.1\r\nHost: api.example.com\r\n", egress.ReasonHost},
		"C16/absolute cleartext": {"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n", egress.ReasonMalformed},
		"C16/userinfo":           {"GET https://evil@api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n", egress.ReasonMalformed},
		"C16/empty":              {"GET / HTTP/1.1\r\nHost: \r\n", egress.ReasonMalformed},
		"C15/nested":             {"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n", egress.ReasonMalformed},
		"C15/nested other":       {"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n", egress.ReasonMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := r.raw(t, c.request+"Connection: close\r\n\r\n")
			if c.reason == "" {
				if !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "GET api.example.com /\n") {
					t.Errorf("it was not served: %s", got)
				}
				return
			}
			if !strings.Contains(got, "\r\nReason: "+string(c.reason)+"\r\n") {
				t.Errorf("the reason is not %s: %s", c.reason, got)
			}
		})
	}
}

// stream is one request of HTTP/2 as its fields.
type stream []hpack.HeaderField

func fields(authority string, more ...string) stream {
	out := stream{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}}
	if authority != "" {
		out = append(out, hpack.HeaderField{Name: ":authority", Value: authority})
	}
	for i := 0; i+1 < len(more); i += 2 {
		out = append(out, hpack.HeaderField{Name: more[i], Value: more[i+1]})
	}
	return out
}

// reasons sends requests over one connection and gives each stream's reason; a
// stream that was reset has "reset".
func (r *rig) reasons(t *testing.T, requests []stream) []string {
	t.Helper()
	conn := r.dial(t, "h2")
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i, request := range requests {
		block.Reset()
		for _, field := range request {
			_ = encoder.WriteField(field)
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	out := make([]string, len(requests))
	for left := len(requests); left > 0; {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		index := int(frame.Header().StreamID) / 2
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			left--
			for _, field := range frame.Fields {
				if field.Name == ":status" && out[index] == "" || field.Name == "reason" {
					out[index] = field.Value
				}
			}
		case *http2.RSTStreamFrame:
			if out[index] == "" {
				left--
				out[index] = "reset"
			}
		}
	}
	return out
}

func TestC17EachStreamIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, bearer(), echo)
	got := r.reasons(t, []stream{fields(apiHost), fields("evil.test"), fields(apiHost + ":443"), fields("api.example.com.evil.test"), fields(apiHost)})
	for i, want := range []string{"200", "host", "200", "host", "200"} {
		t.Run(fmt.Sprintf("C17/stream %d", 2*i+1), func(t *testing.T) {
			if got[i] != want {
				t.Errorf("%q, want %q", got[i], want)
			}
		})
	}
}

func TestC18AuthorityAndHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, bearer(), echo)
	for name, c := range map[string]struct {
		request stream
		want    string
	}{
		"C18/other host header":       {fields(apiHost, "host", "evil.test"), "malformed"},
		"C18/same host header":        {fields(apiHost, "host", apiHost), "malformed"},
		"C18/other authority":         {fields("evil.test", "host", apiHost), "malformed"},
		"C18/other alone":             {fields("", "host", "evil.test"), "malformed"},
		"C18/two authorities":         {append(fields(apiHost), hpack.HeaderField{Name: ":authority", Value: "evil.test"}), "reset"},
		"C18/authority with userinfo": {fields("x@" + apiHost), "reset|host|malformed|400"},
		"C18/neither":                 {fields(""), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := r.reasons(t, []stream{c.request})[0]; got == "" || !strings.Contains("|"+c.want+"|", "|"+got+"|") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
