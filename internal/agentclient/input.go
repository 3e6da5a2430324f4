package agentclient

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

// Input sends everything that r gives to a command's standard input and closes
// it. It ends early, with NotFound or TransportLost, when the command ends before
// it has taken everything, and with the context's error; but not while r itself
// blocks in Read, which nothing can interrupt. An error of r closes the input too
// and is returned.
func (c *Client) Input(ctx context.Context, ref Ref, r io.Reader) error {
	readErr, sendErr := c.sendInput(ctx, ref, r)
	if sendErr != nil {
		return sendErr
	}
	err := c.endInput(ctx, ref)
	switch {
	case readErr != nil:
		return errdefs.Wrap(errdefs.KindOf(readErr), "read input", readErr)
	case errors.Is(err, errdefs.NotFound):
		// Everything was taken; that the command has ended since is no failure.
		return nil
	}
	return err
}

// Send sends data to a command's input and leaves it open. Errors: NotFound when
// the command has ended, Internal when its input is closed.
func (c *Client) Send(ctx context.Context, ref Ref, data []byte) error {
	for piece := range slices.Chunk(data, inputBytes) {
		if err := c.sendPiece(ctx, ref, piece); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) sendPiece(ctx context.Context, ref Ref, piece []byte) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := c.processes.SendInput(ctx, &agentv1.SendInputRequest{Process: ref.selector(), Input: inputOf(piece, ref.Terminal)})
	return fault(ctx, "send input", err)
}

// endOfFile is the character that ends the input of a program on a terminal.
const endOfFile = 4

// endInput closes a command's input. A terminal stays: its program is told as
// from a keyboard.
func (c *Client) endInput(ctx context.Context, ref Ref) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var err error
	if ref.Terminal {
		_, err = c.processes.SendInput(ctx, &agentv1.SendInputRequest{Process: ref.selector(), Input: inputOf([]byte{endOfFile}, true)})
	} else {
		_, err = c.processes.CloseStdin(ctx, &agentv1.CloseStdinRequest{Process: ref.selector()})
	}
	return fault(ctx, "close input", err)
}

// sendInput tells apart what r failed with and what sending did.
func (c *Client) sendInput(ctx context.Context, ref Ref, r io.Reader) (readErr, sendErr error) {
	ctx, cancel := context.WithCancel(quiet{ctx})
	defer cancel()
	stream, err := c.processes.StreamInput(ctx)
	if err != nil {
		return nil, fault(ctx, "send input", err)
	}
	err = stream.Send(&agentv1.StreamInputRequest{Event: &agentv1.StreamInputRequest_Start{
		Start: &agentv1.StreamInputRequest_StartEvent{Process: ref.selector()},
	}})
	if err == nil {
		readErr, err = c.pump(stream, r, ref.Terminal)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return readErr, fault(ctx, "send input", err)
	}
	// io.EOF says that the agent has answered; the answer says why.
	_, answer := stream.CloseAndReceive()
	if answer == nil && err != nil {
		return readErr, errdefs.New(errdefs.NotFound, "send input", "the command ended before it took all input")
	}
	return readErr, fault(ctx, "send input", answer)
}

// pump sends data until r ends.
func (c *Client) pump(stream agentv1connect.ProcessStreamInputClientStream, r io.Reader, terminal bool) (readErr, sendErr error) {
	buffer, ok := c.buffers.Get().(*[inputBytes]byte)
	if !ok {
		buffer = new([inputBytes]byte)
	}
	defer c.buffers.Put(buffer)
	for {
		n, err := r.Read(buffer[:])
		if n < 0 || n > len(buffer) {
			return errors.New("the reader gave an impossible count"), nil
		}
		if n > 0 {
			if sendErr := stream.Send(dataOf(buffer[:n], terminal)); sendErr != nil {
				return nil, sendErr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

func dataOf(data []byte, terminal bool) *agentv1.StreamInputRequest {
	return &agentv1.StreamInputRequest{Event: &agentv1.StreamInputRequest_Data{
		Data: &agentv1.StreamInputRequest_DataEvent{Input: inputOf(data, terminal)},
	}}
}

func inputOf(data []byte, terminal bool) *agentv1.ProcessInput {
	if terminal {
		return &agentv1.ProcessInput{Input: &agentv1.ProcessInput_Pty{Pty: data}}
	}
	return &agentv1.ProcessInput{Input: &agentv1.ProcessInput_Stdin{Stdin: data}}
}
