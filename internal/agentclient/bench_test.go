package agentclient_test

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/berm-dev/berm/internal/agentclient"
)

func BenchmarkExec(b *testing.B) {
	c, _ := started(b)
	for b.Loop() {
		s, err := c.Start(b.Context(), agentclient.StartRequest{Args: []string{"true"}, KillOnClose: true})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = s.Recv()
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
	}
}

func BenchmarkStat(b *testing.B) {
	c, home := started(b)
	for b.Loop() {
		if _, err := c.Stat(b.Context(), home); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTransfer(b *testing.B) {
	c, home := started(b)
	content := make([]byte, 64<<20)
	path := filepath.Join(home, "f")
	b.Run("upload", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			if err := c.Create(b.Context(), path, 0, bytes.NewReader(content)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("download", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		buffer := make([]byte, 256<<10)
		for b.Loop() {
			body, _, err := c.Open(b.Context(), path, 0)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, body, buffer); err != nil {
				b.Fatal(err)
			}
			_ = body.Close()
		}
	})
}
