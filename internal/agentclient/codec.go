package agentclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// maxNesting is the deepest that our messages nest, with room to spare.
const maxNesting = 16

// codec is the binary codec for answers of a hostile agent. An entry of a
// listing costs its sender two bytes and its reader hundreds, so entries are
// counted before any is decoded. Unknown fields are dropped.
type codec struct{ connectproto.BinaryCodec }

// UnmarshalRead implements connect.Codec.
func (*codec) UnmarshalRead(_ context.Context, src io.Reader, msg any) error {
	message, ok := msg.(proto.Message)
	if !ok {
		return connectproto.ErrNotProtoMessage
	}
	data, err := contents(src)
	if err != nil {
		return err
	}
	switch msg.(type) {
	case *agentv1.ListDirResponse:
		err = countEntries(data, maxListEntries)
	case *agentv1.ListResponse:
		err = countEntries(data, maxProcesses)
	}
	if err != nil {
		return err
	}
	return proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxNesting}.Unmarshal(data, message)
}

// contents avoids a copy where the bytes are in memory already.
func contents(src io.Reader) ([]byte, error) {
	if buffer, ok := src.(*bytes.Buffer); ok {
		return buffer.Bytes(), nil
	}
	return io.ReadAll(src)
}

// countEntries refuses a message with more than limit fields at its top.
func countEntries(data []byte, limit int) error {
	for count := 0; len(data) > 0; count++ {
		if count == limit {
			return fmt.Errorf("listing has more than %d entries", limit)
		}
		_, _, n := protowire.ConsumeField(data)
		if n < 0 {
			return errors.New("listing is malformed")
		}
		data = data[n:]
	}
	return nil
}
