package agent

import (
	"bytes"
	"encoding/binary"
	"net/http/httptest"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// TestFramedOutput: what a framed stream gets is what the RPC library would have
// written, for both kinds of answers.
func TestFramedOutput(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 127, 128, smallChunk + 1, readSize} {
		for stream := 1; stream <= 2; stream++ {
			c := chunk{stream: stream, data: bytes.Repeat([]byte("o"), size)}
			w := httptest.NewRecorder()
			if err := (&gate{ResponseWriter: w}).output(c); err != nil {
				t.Fatal(err)
			}
			for _, message := range []proto.Message{
				&agentv1.StartResponse{Event: dataEvent(c)}, &agentv1.ConnectResponse{Event: dataEvent(c)},
			} {
				body, err := proto.Marshal(message)
				if err != nil {
					t.Fatal(err)
				}
				want := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
				if !bytes.Equal(w.Body.Bytes(), want) {
					t.Errorf("%d bytes of stream %d as %T: other bytes than the library's", size, stream, message)
				}
			}
		}
	}
}
