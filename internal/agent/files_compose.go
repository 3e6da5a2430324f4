package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// Bounds of one composition.
const (
	maxComposeBytes   = 4 << 20 // of the request
	maxComposeSources = 10_000
)

// composition is the body of POST /files/compose.
type composition struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose serves POST /files/compose: the sources, one after the other, become
// the destination, whole or not at all, and are removed then.
func (f *files) compose(w http.ResponseWriter, r *http.Request) {
	var in composition
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBytes)).Decode(&in)
	if err != nil {
		answerError(w, http.StatusBadRequest, "the body is not what it should be: "+err.Error())
		return
	}
	if err := f.checkUser(in.Username); err != nil {
		refuse(w, fileFault("compose", in.Destination, err))
		return
	}
	done, err := f.composed(r.Context(), in)
	if err != nil {
		refuse(w, fileFault("compose", in.Destination, err))
		return
	}
	answer(w, http.StatusOK, done)
}

func (f *files) composed(ctx context.Context, in composition) (uploaded, error) {
	if len(in.SourcePaths) == 0 || len(in.SourcePaths) > maxComposeSources {
		return uploaded{}, faultf(connect.CodeInvalidArgument, "source_paths has %d paths, not 1 to %d", len(in.SourcePaths), maxComposeSources)
	}
	destination, err := cleanPath(f.home, in.Destination)
	if err != nil {
		return uploaded{}, err
	}
	sources := make([]string, len(in.SourcePaths))
	seen := map[string]bool{}
	for i, name := range in.SourcePaths {
		if sources[i], err = cleanPath(f.home, name); err != nil {
			return uploaded{}, err
		}
		if seen[sources[i]] {
			return uploaded{}, faultf(connect.CodeInvalidArgument, "source %q is given twice", sources[i])
		}
		seen[sources[i]] = true
	}
	if err := f.apart(ctx, sources, destination); err != nil {
		return uploaded{}, err
	}
	content := &sequence{ctx: ctx, work: f.work, left: sources}
	defer content.close()
	done, err := f.put(ctx, destination, writeOptions{}, content)
	if err != nil {
		return uploaded{}, err
	}
	for _, p := range sources {
		if err := f.work.remove(ctx, p, true); err != nil && !errors.Is(err, os.ErrNotExist) {
			return uploaded{}, fileFault("remove the source", p, err)
		}
	}
	return done, nil
}

// apart refuses sources that are not there, and one that is the destination by
// another name: its removal would remove what was made.
func (f *files) apart(ctx context.Context, sources []string, destination string) error {
	there, err := f.work.stat(ctx, destination, false)
	isNew := errors.Is(err, os.ErrNotExist)
	if err != nil && !isNew {
		return fileFault("compose", destination, err)
	}
	for _, p := range sources {
		source, err := f.work.stat(ctx, p, false)
		if err != nil {
			return fileFault("read", p, err)
		}
		a, b := source.seen(), there.seen()
		if !isNew && a.Dev == b.Dev && a.Ino == b.Ino && !defence.ComposeApart.Off() {
			return faultf(connect.CodeInvalidArgument, "source %q is the destination", p)
		}
	}
	return nil
}

// sequence reads files one after the other, with one of them open.
type sequence struct {
	ctx  context.Context //nolint:containedctx // the request's, which the reader does not outlive
	work fileWork
	left []string
	file *os.File
}

// Read implements io.Reader.
func (s *sequence) Read(p []byte) (int, error) {
	for {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		if s.file == nil {
			if len(s.left) == 0 {
				return 0, io.EOF
			}
			file, _, err := s.work.open(s.ctx, s.left[0])
			if err != nil {
				return 0, fileFault("read", s.left[0], err)
			}
			s.file, s.left = file, s.left[1:]
		}
		n, err := s.file.Read(p)
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, io.EOF):
			s.close()
		case err != nil:
			return 0, fmt.Errorf("read a source: %w", err)
		}
	}
}

// close gives the open file up.
func (s *sequence) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}
