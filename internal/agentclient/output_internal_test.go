package agentclient

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

func outputMessage(t *testing.T, stderr bool, text []byte) []byte {
	t.Helper()
	piece := &agentv1.ProcessEvent_DataEvent{Output: &agentv1.ProcessEvent_DataEvent_Stdout{Stdout: text}}
	if stderr {
		piece.Output = &agentv1.ProcessEvent_DataEvent_Stderr{Stderr: text}
	}
	data, err := proto.Marshal(&agentv1.StartResponse{
		Event: &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Data{Data: piece}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestOutputIsTakenOver: pieces come out as the general decoder has them, each
// stays whole while the next is read, and memory is used again.
func TestOutputIsTakenOver(t *testing.T) {
	t.Parallel()
	mine := &loan{}
	ctx := context.WithValue(t.Context(), loanKey{}, mine)
	reader := new(bytes.Buffer)
	var before []byte
	for i := range 6 {
		text := bytes.Repeat([]byte{byte('a' + i)}, largeOutput+i)
		reader.Write(outputMessage(t, i%2 == 1, text))
		var got agentv1.StartResponse
		if !takeOutput(ctx, reader, reader.Bytes(), &got) {
			t.Fatal("a piece of output was not taken")
		}
		data := got.GetEvent().GetData()
		if now := append(data.GetStdout(), data.GetStderr()...); !bytes.Equal(now, text) || (len(data.GetStderr()) > 0) != (i%2 == 1) {
			t.Fatalf("piece %d came out as another one", i)
		}
		if reader.Len() != 0 {
			t.Fatal("the reader's buffer still has the message")
		}
		// What the reader fills next is not what the receiver has.
		reader.Write(bytes.Repeat([]byte("x"), largeOutput))
		if now := append(data.GetStdout(), data.GetStderr()...); !bytes.Equal(now, text) {
			t.Fatalf("piece %d was written over while it was the receiver's", i)
		}
		if i > 2 && cap(reader.Bytes()) == 0 || before != nil && &before[:1][0] == &mine.memory[:1][0] {
			t.Fatal("the memory does not go round")
		}
		before = mine.memory
		reader.Reset()
	}
}

// TestOutputOnly: what is not one piece of output and nothing else is left to the
// general decoder.
func TestOutputOnly(t *testing.T) {
	t.Parallel()
	lent := context.WithValue(t.Context(), loanKey{}, &loan{})
	good := outputMessage(t, false, make([]byte, largeOutput))
	field := func(number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	}
	text := field(1, make([]byte, largeOutput))
	for name, c := range map[string]struct {
		ctx  context.Context
		data []byte
	}{
		"no loan":          {t.Context(), good},
		"small":            {lent, outputMessage(t, false, make([]byte, 16))},
		"two pieces":       {lent, append(bytes.Clone(good), good...)},
		"a byte more":      {lent, append(bytes.Clone(good), 0)},
		"a byte less":      {lent, good[:len(good)-1]},
		"a terminal's":     {lent, field(1, field(2, field(3, make([]byte, largeOutput))))},
		"two texts":        {lent, field(1, field(2, append(bytes.Clone(text), text...)))},
		"another event":    {lent, field(1, field(4, text))},
		"an unknown field": {lent, field(9, field(2, text))},
		"a number":         {lent, append(protowire.AppendTag(nil, 1, protowire.VarintType), make([]byte, largeOutput)...)},
		"no tag":           {lent, bytes.Repeat([]byte{0xff}, largeOutput)},
	} {
		var got agentv1.StartResponse
		if takeOutput(c.ctx, bytes.NewBuffer(c.data), c.data, &got) || got.GetEvent() != nil {
			t.Errorf("%s: taken as a piece of output", name)
		}
	}
	if takeOutput(lent, bytes.NewReader(good), good, new(agentv1.StartResponse)) {
		t.Error("memory was taken that is not the reader's to give")
	}
}
