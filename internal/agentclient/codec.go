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

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// maxNesting is the deepest that our messages nest, with room to spare.
const maxNesting = 16

// codec is the binary codec for answers of a hostile agent. A nested message
// costs its sender two bytes and its reader hundreds, so fields are counted
// before any is decoded. Unknown fields are dropped.
type codec struct{ connectproto.BinaryCodec }

// UnmarshalRead implements connect.Codec.
func (*codec) UnmarshalRead(ctx context.Context, src io.Reader, msg any) error {
	message, ok := msg.(proto.Message)
	if !ok {
		return connectproto.ErrNotProtoMessage
	}
	data, err := contents(src)
	if err != nil {
		return err
	}
	if start, ok := msg.(*agentv1.StartResponse); ok && takeOutput(ctx, src, data, start) {
		return nil
	}
	switch msg.(type) {
	case *agentv1.ListDirResponse:
		if _, err = countFields(data, maxListEntries, anyField); err == nil {
			err = countMetadata(data)
		}
	case *agentv1.ListResponse:
		_, err = countFields(data, maxProcesses, anyField)
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

// Numbers of fields for countFields.
const (
	anyField      protowire.Number = 0
	metadataField protowire.Number = 11 // of EntryInfo
)

var errMalformed = errors.New("listing is malformed")

// countMetadata refuses a listing whose entries have too many pairs of metadata,
// all together.
func countMetadata(data []byte) error {
	left := maxListEntries
	for len(data) > 0 {
		_, kind, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return errMalformed
		}
		size := protowire.ConsumeFieldValue(1, kind, data[tag:])
		if size < 0 {
			return errMalformed
		}
		if kind == protowire.BytesType {
			entry, _ := protowire.ConsumeBytes(data[tag:])
			used, err := countFields(entry, left, metadataField)
			if err != nil {
				return err
			}
			left -= used
		}
		data = data[tag+size:]
	}
	return nil
}

// countFields counts the fields of a number at a message's top and refuses more
// than limit.
func countFields(data []byte, limit int, number protowire.Number) (count int, err error) {
	for len(data) > 0 {
		found, _, n := protowire.ConsumeField(data)
		if n < 0 {
			return 0, errMalformed
		}
		if number == anyField || found == number {
			if count++; count > limit && !defence.ClientListing.Off() {
				return 0, fmt.Errorf("listing has more than %d entries or pairs of metadata", limit)
			}
		}
		data = data[n:]
	}
	return count, nil
}
