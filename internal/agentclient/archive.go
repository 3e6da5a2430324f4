package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

const (
	archiveMedia    = "application/x-tar"
	maxArchiveSkips = 1000 // that are named
	maxExtracted    = 4 << 20
)

// Skipped is an entry that an archive does not have, or not as it was. Name is
// the agent's text, escaped and cut to 4 KiB, as Reason is.
type Skipped struct{ Name, Reason string }

// Skips are the entries that were left out, the first thousand by name.
type Skips struct {
	Skipped []Skipped
	More    int64 // that are not named
}

func (s *Skips) add(name, reason string) {
	if len(s.Skipped) >= maxArchiveSkips {
		s.More++
		return
	}
	s.Skipped = append(s.Skipped, Skipped{Name: clean(name), Reason: clean(reason)})
}

// archiveRequest is a call on one path's archive.
func (c *call) archiveRequest(method, p string, body io.Reader) (*http.Request, error) {
	query := url.Values{"path": {p}}
	return http.NewRequestWithContext(c.ctx, method, "http://"+link.DataHost+"/archive?"+query.Encode(), body)
}

// Archive opens a tree, or one file, for reading. ctx bounds the reading too.
func (c *Client) Archive(ctx context.Context, p string, limits TreeLimits) (*Tree, error) {
	const op = "archive"
	p, err := cleanPath(op, p)
	if err != nil {
		return nil, err
	}
	call := newCall(ctx)
	req, err := call.archiveRequest(http.MethodGet, p, nil)
	if err != nil {
		call.cancel(nil)
		return nil, errdefs.Wrap(errdefs.Internal, op, err)
	}
	call.arm()
	res, err := c.rt.RoundTrip(req)
	call.disarm()
	if err != nil {
		err = call.fault(op, err)
		call.cancel(nil)
		return nil, err
	}
	switch {
	case res.StatusCode != http.StatusOK:
		call.arm()
		err = refusal(call.ctx, op, res)
		call.disarm()
	case res.Header.Get("Content-Type") != archiveMedia || res.Header.Get("Content-Encoding") != "" || res.Uncompressed:
		err = broken(op, "an answer that is no plain tar: %q", res.Header.Get("Content-Type"))
	}
	if err != nil {
		_ = res.Body.Close()
		call.cancel(nil)
		return nil, err
	}
	return newTree(&download{op: op, body: res.Body, call: call}, limits), nil
}

// Extraction is what an extraction came to, as the agent says.
type Extraction struct {
	Entries int64
	Bytes   int64
	Skips
}

// Extract extracts a tar stream into a directory, which is made. When the context
// ends while body blocks in Read, Extract returns and body may be read once more.
// What was extracted before an error stays. Errors: Invalid for an archive that is
// none, or with a name that leaves the directory; an error of body.
func (c *Client) Extract(ctx context.Context, p string, body io.Reader) (*Extraction, error) {
	const op = "extract"
	p, err := cleanPath(op, p)
	if err != nil {
		return nil, err
	}
	call := newCall(ctx)
	defer call.cancel(nil)
	defer call.disarm()
	upload := &upload{src: body, call: call}
	req, err := call.archiveRequest(http.MethodPost, p, upload)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Internal, op, err)
	}
	req.Header.Set("Content-Type", archiveMedia)
	req.ContentLength = -1
	res, err := c.rt.RoundTrip(req)
	answer := time.AfterFunc(callTimeout, func() { call.cancel(errStalled) })
	defer answer.Stop()
	if readErr := upload.failure(); readErr != nil {
		if err == nil {
			_ = res.Body.Close()
		}
		return nil, errdefs.Wrap(errdefs.KindOf(readErr), op, fmt.Errorf("read the archive: %w", readErr))
	}
	if err != nil {
		return nil, call.fault(op, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, refusal(call.ctx, op, res)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxExtracted))
	if err != nil {
		return nil, call.fault(op, err)
	}
	return extraction(op, data)
}

// extraction checks the agent's answer.
func extraction(op string, data []byte) (*Extraction, error) {
	var told struct {
		Entries, Bytes, More int64
		Skipped              []struct{ Name, Reason string }
	}
	if err := json.Unmarshal(data, &told); err != nil {
		return nil, broken(op, "the answer is malformed: %v", err)
	}
	if told.Entries < 0 || told.Bytes < 0 || told.More < 0 {
		return nil, broken(op, "%d entries, %d bytes, %d more", told.Entries, told.Bytes, told.More)
	}
	out := &Extraction{Entries: told.Entries, Bytes: told.Bytes}
	for _, s := range told.Skipped {
		out.add(s.Name, s.Reason)
	}
	out.More += told.More
	return out, nil
}

// errNotWhole is an archive that breaks off.
var errNotWhole = errors.New("the archive breaks off")
