package agentclient

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// largeOutput is the smallest message of output whose memory is taken over instead
// of being copied, in bytes.
const largeOutput = 16 << 10

// loanKey is the context key of a stream's *loan.
type loanKey struct{}

// loan is the memory of the message that a stream's receiver has at present. A
// copy of each, and the garbage of it, would be half of the host's work.
type loan struct{ memory []byte }

// takeOutput decodes a message that is one piece of output and nothing else, in
// the memory that it came in. The reader's buffer gets the memory of the message
// before, which the receiver is done with. It is false for every other message,
// malformed ones too.
func takeOutput(ctx context.Context, src io.Reader, data []byte, into *agentv1.StartResponse) bool {
	buffer, inMemory := src.(*bytes.Buffer)
	mine, lent := ctx.Value(loanKey{}).(*loan)
	if !inMemory || !lent || len(data) < largeOutput {
		return false
	}
	const event, output, stdout, stderr = 1, 2, 1, 2 // the fields' numbers
	body, _, ok := only(data, event, event)
	if ok {
		body, _, ok = only(body, output, output)
	}
	if !ok {
		return false
	}
	text, stream, ok := only(body, stdout, stderr)
	if !ok {
		return false
	}
	piece := &agentv1.ProcessEvent_DataEvent{Output: &agentv1.ProcessEvent_DataEvent_Stdout{Stdout: text}}
	if stream == stderr {
		piece.Output = &agentv1.ProcessEvent_DataEvent_Stderr{Stderr: text}
	}
	into.Event = &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Data{Data: piece}}
	*buffer = *bytes.NewBuffer(mine.memory)
	mine.memory = data[:0]
	return true
}

// only gives the one field of a message that has no other, if that is bytes and
// has a number from first to last.
func only(data []byte, first, last protowire.Number) (value []byte, number protowire.Number, ok bool) {
	number, kind, n := protowire.ConsumeTag(data)
	if n < 0 || kind != protowire.BytesType || number < first || number > last {
		return nil, 0, false
	}
	value, m := protowire.ConsumeBytes(data[n:])
	return value, number, m >= 0 && n+m == len(data)
}
