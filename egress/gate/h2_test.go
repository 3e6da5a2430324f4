package gate_test

import (
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

type netConn = net.Conn

// rawH2 sends one request with fields that no library would send, and wants a
// status.
func rawH2(t *testing.T, conn io.ReadWriter, fields [][2]string, status string) {
	t.Helper()
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
	for _, f := range fields {
		if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("no answer: %v", err)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			if got := f.PseudoValue("status"); got != status {
				t.Errorf("status %s, want %s", got, status)
			}
			return
		case *http2.RSTStreamFrame:
			t.Fatalf("the stream was reset: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			t.Fatalf("the connection was ended: %v", f.ErrCode)
		}
	}
}
