package config

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/berm-dev/berm/egress"
)

// Bounds of what comes from elsewhere, in bytes, and of the time that a killed
// command has to let go of its output.
const (
	maxSecretBytes   = 64 << 10
	maxListBytes     = 1 << 20
	resolverLastWait = time.Second
)

// SecretFromEnv gives the value of this process's environment variable, as it is
// at each request. One that is not set, or empty, is an error, which denies the
// request.
func SecretFromEnv(name string) egress.Source {
	return func(context.Context) (string, error) {
		value := os.Getenv(name)
		if value == "" {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, nil
	}
}

// SecretFromFile gives the content of a regular file of at most 64 KiB, without
// a line end behind it, as it is at each request. Errors name the file, never
// what is in it.
func SecretFromFile(path string) egress.Source {
	return func(context.Context) (string, error) {
		// Opening a pipe that nobody writes to would wait for ever.
		file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return "", fmt.Errorf("read the credential: %w", err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return "", fmt.Errorf("read the credential: %s is not a regular file", path)
		}
		data, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
		if err != nil {
			return "", fmt.Errorf("read the credential: %w", err)
		}
		value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
		if value == "" || len(data) > maxSecretBytes {
			return "", fmt.Errorf("read the credential: %s is empty or too large", path)
		}
		return value, nil
	}
}

// MissingSecrets says which credentials of a policy (nil for none) have a source
// that gives nothing now, one sentence each: their requests would be denied.
func MissingSecrets(ctx context.Context, policy *egress.Policy) []string {
	var out []string
	if policy == nil {
		return nil
	}
	for _, c := range policy.Credentials {
		if c.Source == nil {
			continue
		}
		if _, err := c.Source(ctx); err != nil {
			out = append(out, fmt.Sprintf("credential for %s: %v", c.Host, err))
		}
	}
	return out
}

// commandResolver runs a program of the operator's for each list of rules. It
// gets this process's environment, and its whole group is killed when the time
// is over.
func commandResolver(argv []string) egress.Resolver {
	return func(ctx context.Context) ([]string, error) {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		killsItsGroup(cmd)
		cmd.WaitDelay = resolverLastWait
		out := limited{stop: stop}
		cmd.Stdout = &out
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("run the resolver: %w", errors.Join(err, context.Cause(ctx)))
		}
		return lines(out.data)
	}
}

// limited keeps output up to a bound, and beyond it ends who writes: a program
// may well ignore that nobody reads any more.
type limited struct {
	// data is not embedded: with a buffer's ReadFrom nothing would be bounded.
	data []byte
	stop context.CancelCauseFunc
}

// Write takes all of p or nothing.
func (l *limited) Write(p []byte) (int, error) {
	if len(l.data)+len(p) > maxListBytes {
		l.stop(errTooLong)
		return 0, errTooLong
	}
	l.data = append(l.data, p...)
	return len(p), nil
}

var errTooLong = errors.New("the list of rules is too long")

// urlResolver gets each list of rules from an HTTPS address. It follows no
// redirect: an address that moves is the operator's to write down.
func urlResolver(address string) egress.Resolver {
	// Connections are not kept: nobody would close them.
	return resolverOver(address, &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true})
}

func resolverOver(address string, transport http.RoundTripper) egress.Resolver {
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) ([]string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, fmt.Errorf("ask the resolver: %w", err)
		}
		res, err := client.Do(req)
		// The address may hold what only the resolver may know.
		var told *url.Error
		if errors.As(err, &told) {
			err = told.Err
		}
		if err != nil {
			return nil, fmt.Errorf("ask the resolver: %w", err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("ask the resolver: it answered %d", res.StatusCode)
		}
		data, err := io.ReadAll(io.LimitReader(res.Body, maxListBytes+1))
		switch {
		case err != nil:
			return nil, fmt.Errorf("ask the resolver: %w", err)
		case len(data) > maxListBytes:
			return nil, errTooLong
		}
		return lines(data)
	}
}

// lines takes one rule from each line; empty ones and comments (#) are none.
// What is not a rule is for the gate to see, which then uses none of the list.
func lines(data []byte) ([]string, error) {
	var out []string
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for scanner.Scan() {
		if line := strings.TrimSpace(scanner.Text()); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read the list of rules: %w", err)
	}
	return out, nil
}
