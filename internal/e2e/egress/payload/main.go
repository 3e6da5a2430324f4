//go:build linux

// Command payload is what the whole-path test of the egress gate runs inside
// sandboxes: a client of every protocol that the gate speaks, a search for
// secrets, and attacks. It is static, so that it runs in any image.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "payload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no verb was given")
	}
	verbs := map[string]func([]string) error{
		"get": get, "probe": probe, "raw-get": rawGet, "seek": seek, "out": out, "neighbours": neighbours, "flood": flood,
	}
	do, ok := verbs[args[0]]
	if !ok {
		return fmt.Errorf("unknown verb %q", args[0])
	}
	return do(args[1:])
}

// limit bounds one request.
const limit = 20 * time.Second

// get asks for a URL as any Go program does, and writes the status and the body.
func get(args []string) error {
	client := &http.Client{Timeout: limit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Get(args[0])
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	fmt.Println(res.StatusCode)
	_ = res.Header.Write(os.Stdout)
	if _, err := io.Copy(os.Stdout, io.LimitReader(res.Body, 1<<20)); err != nil {
		return err
	}
	if res.StatusCode >= http.StatusBadRequest {
		return errors.New(res.Status)
	}
	return nil
}

// dial connects within a time.
func dial(network, to string, within time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: within}
	return d.DialContext(context.Background(), network, to)
}

// dialProxy connects to the gate.
func dialProxy() (net.Conn, error) {
	proxy, err := url.Parse(os.Getenv("HTTPS_PROXY"))
	if err != nil {
		return nil, err
	}
	conn, err := dial("tcp", proxy.Host, limit)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(limit))
}

// probe asks for a host by plain HTTP, and by TLS through both kinds of tunnel.
// Each result is a status or a reply, with the reason of a refusal, and "broken"
// after one that was granted and did not work.
func probe(args []string) error {
	host := args[0]
	result := map[string]string{}
	for name, ask := range map[string]func(string) (string, error){"HTTP": plain, "Connect": tunnel, "SOCKS": socks} {
		answer, err := ask(host)
		if err != nil {
			answer += " broken: " + err.Error()
		}
		result[name] = answer
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// answered reads a response, for its status and the reason that it gives.
func answered(r *bufio.Reader, method string) (string, error) {
	res, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusOK && method == http.MethodConnect {
		return "200", nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var said struct{ Reason string }
	if json.Unmarshal(body, &said) == nil && said.Reason != "" {
		return fmt.Sprintf("%d %s", res.StatusCode, said.Reason), err
	}
	return fmt.Sprint(res.StatusCode), err
}

func plain(host string) (string, error) {
	conn, err := dialProxy()
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET http://%s/page HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host, host); err != nil {
		return "", err
	}
	return answered(bufio.NewReader(conn), http.MethodGet)
}

func tunnel(host string) (string, error) {
	conn, err := dialProxy()
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", host, host); err != nil {
		return "", err
	}
	answer, err := answered(bufio.NewReader(conn), http.MethodConnect)
	if err != nil || answer != "200" {
		return answer, err
	}
	return answer, secure(conn, host)
}

func socks(host string) (string, error) {
	conn, err := dialProxy()
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	bare := strings.Trim(host, "[]")
	ask := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(bare))}, bare...)
	if _, err := conn.Write(append(ask, 1, 187)); err != nil {
		return "", err
	}
	reply := make([]byte, 12)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return "", err
	}
	answer := fmt.Sprint(reply[3])
	if answer != "0" {
		return answer, nil
	}
	return answer, secure(conn, bare)
}

// secure asks for a page inside a tunnel. Who is there is not the question.
func secure(conn net.Conn, host string) error {
	inside := tls.Client(conn, &tls.Config{ServerName: strings.Trim(host, "[]"), InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // see above
	if _, err := fmt.Fprintf(inside, "GET /page HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return err
	}
	status, err := answered(bufio.NewReader(inside), http.MethodGet)
	if err == nil && status != "200" {
		err = errors.New("answered " + status)
	}
	return err
}

// rawGet sends its second argument, with \r\n for each newline, to the gate, and
// writes the answer's status and reason.
func rawGet(args []string) error {
	conn, err := dialProxy()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, strings.ReplaceAll(args[0], "\n", "\r\n")); err != nil {
		return err
	}
	method, _, _ := strings.Cut(args[0], " ")
	answer, err := answered(bufio.NewReader(conn), method)
	fmt.Println(answer)
	return err
}
