package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// get asks for a URL as any client does, by the environment's proxy, and writes
// the status and the body. Further arguments are headers, "Name: value".
func get(args []string) error {
	req, err := http.NewRequest(http.MethodGet, args[0], nil) //nolint:noctx // lives as long as the program
	if err != nil {
		return err
	}
	for _, header := range args[1:] {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	client := &http.Client{Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	fmt.Println(res.StatusCode)
	_, err = io.Copy(os.Stdout, io.LimitReader(res.Body, 1<<20))
	return err
}

// tunnel asks the environment's proxy for a tunnel to HOST:PORT, says "hello" in
// it, and writes each line that comes until the other side ends it.
func tunnel(args []string) error {
	proxy, err := url.Parse(os.Getenv("HTTPS_PROXY"))
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", proxy.Host, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: args[0]}, Host: args[0], Header: http.Header{}}
	if password, ok := proxy.User.Password(); ok {
		auth := &http.Request{Header: http.Header{}}
		auth.SetBasicAuth(proxy.User.Username(), password)
		req.Header.Set("Proxy-Authorization", auth.Header.Get("Authorization"))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, req) //nolint:bodyclose // of a tunnel it is the connection
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("refused: %s", res.Status)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	for {
		line, err := reader.ReadString('\n')
		fmt.Print(line)
		if err != nil {
			fmt.Println("closed")
			return nil
		}
	}
}

// ask sends a packet by UDP and fails where nothing comes back.
func ask(args []string) error {
	conn, err := net.DialTimeout("udp", args[0], time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	// A question for the root's name servers.
	question := "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01"
	if _, err := io.WriteString(conn, question); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 512))
	return err
}

// rawSockets fails unless every socket below TCP and UDP is refused.
func rawSockets([]string) error {
	var faults []error
	for name, kind := range map[string][3]int{
		"packet": {unix.AF_PACKET, unix.SOCK_RAW, 0}, "packet datagram": {unix.AF_PACKET, unix.SOCK_DGRAM, 0},
		"ip": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, "icmp": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		"ip6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW}, "vsock": {unix.AF_VSOCK, unix.SOCK_STREAM, 0},
	} {
		fd, err := unix.Socket(kind[0], kind[1]|unix.SOCK_CLOEXEC, kind[2])
		if err == nil {
			_ = unix.Close(fd)
			faults = append(faults, fmt.Errorf("a socket of kind %s was opened", name))
		}
	}
	return errors.Join(faults...)
}
