// Package connect is the agent's connect mode: a ProxyCommand for clients, ssh
// above all, that know no HTTP proxy. It runs as a payload does, with a payload's
// rights, and reaches what any payload reaches: the gate.
package connect

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// usualProxy is where the gate listens when nobody says otherwise.
	usualProxy = "http://127.0.0.1:3128"
	// dialTimeout bounds the way to the gate, answerTimeout what the gate needs to
	// reach the target.
	dialTimeout   = 10 * time.Second
	answerTimeout = 60 * time.Second
	// maxRefusal bounds what is read of a refusal, in bytes.
	maxRefusal = 16 << 10
)

// Environment looks up a variable.
type Environment func(name string) string

// Main connects standard input and output with HOST PORT through the proxy that
// the environment names, until the other side has said its last word. It returns
// the exit status: 0, 1 for a refusal or a broken connection, 2 for wrong
// arguments. What went wrong is one line on stderr.
func Main(ctx context.Context, args []string, env Environment, stdin io.Reader, stdout, stderr io.Writer) int {
	target, err := target(args)
	if err != nil {
		fmt.Fprintln(stderr, "usage: berm-agent connect HOST PORT:", err)
		return 2
	}
	if err := run(ctx, target, env, stdin, stdout); err != nil {
		fmt.Fprintf(stderr, "berm-agent: connect to %q: %s\n", target, plain(err.Error()))
		return 1
	}
	return 0
}

// target checks the arguments. What a host may be is for the gate to say; here
// it only must not become two lines.
func target(args []string) (string, error) {
	if len(args) != 2 {
		return "", fmt.Errorf("%d arguments", len(args))
	}
	host := strings.TrimSuffix(strings.TrimPrefix(args[0], "["), "]")
	odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/@?#%\\[]", r) }
	const longest = 253 // of a name in DNS
	switch {
	case len(host) > longest:
		return "", fmt.Errorf("a host of %d bytes", len(host))
	case host == "" || strings.ContainsFunc(host, odd):
		return "", fmt.Errorf("%q is no host", args[0])
	}
	port, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil || port == 0 {
		return "", fmt.Errorf("%q is no port", args[1])
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}

func run(ctx context.Context, target string, env Environment, stdin io.Reader, stdout io.Writer) error {
	proxy, err := url.Parse(cmp.Or(env("HTTPS_PROXY"), env("https_proxy"), env("ALL_PROXY"), env("all_proxy"), usualProxy))
	if err != nil || proxy.Scheme != "http" || proxy.Port() == "" {
		return errors.New("the proxy's address is not http://HOST:PORT") // it may hold a password
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", proxy.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	early, err := ask(conn, target, proxy.User)
	if err != nil {
		return err
	}
	return relay(conn, early, stdin, stdout)
}

// ask sends the request and gives what came behind the answer.
func ask(conn net.Conn, target string, user *url.Userinfo) (io.Reader, error) {
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	request := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if user != nil {
		password, _ := user.Password()
		request += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // of a tunnel it is the connection
	if err != nil {
		return nil, fmt.Errorf("the gate's answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, refusal(answer, reader)
	}
	return reader, conn.SetDeadline(time.Time{})
}

// refusal reads why. Of an answer to CONNECT no body is parsed.
func refusal(answer *http.Response, rest io.Reader) error {
	length := min(max(answer.ContentLength, 0), maxRefusal)
	if length == 0 {
		length, _ = strconv.ParseInt(answer.Header.Get("Content-Length"), 10, 64)
		length = min(max(length, 0), maxRefusal)
	}
	body := answer.Body
	if body == nil || body == http.NoBody {
		body = io.NopCloser(rest)
	}
	data, _ := io.ReadAll(io.LimitReader(body, length))
	var told struct{ Reason, Host, Hint string }
	if json.Unmarshal(data, &told) != nil || told.Reason == "" {
		return fmt.Errorf("refused: %s", answer.Status)
	}
	text := "refused: " + told.Reason
	if told.Hint != "" {
		text += ": " + told.Hint
	}
	return errors.New(text)
}

// relay copies both ways until the other side's end of data. The end of stdin is
// told on; who keeps it open does not keep the connection.
func relay(conn net.Conn, early io.Reader, stdin io.Reader, stdout io.Writer) error {
	go func() {
		// It ends with the process at the latest: a read of stdin cannot be ended.
		_, err := io.Copy(conn, stdin)
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = conn.Close()
	}()
	_, err := io.Copy(stdout, early)
	return err
}

// plain keeps a message on one line and out of the terminal's control.
func plain(text string) string {
	const longest = 500
	if len(text) > longest {
		text = text[:longest]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r > '~' {
			return '?'
		}
		return r
	}, text)
}
