//go:build linux

package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// flood opens so many connections to the gate and keeps them: "idle" ones that
// say nothing, "slow" ones that never finish their header, "tunnels" to a host
// whose answers are not read, "requests" one after the other as fast as it goes.
// It writes "ready" when all are open, or refused, and goes on until it is killed.
func flood(args []string) error {
	kind, host := args[0], args[2]
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	most, err := raiseFiles()
	if err != nil {
		return err
	}
	var open, failed atomic.Int64
	var opening, keeping sync.WaitGroup
	slots := make(chan struct{}, 256)
	for i := range number {
		if uint64(i) > most-100 {
			failed.Add(1)
			continue
		}
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			conn, err := one(kind, host)
			if err != nil {
				failed.Add(1)
				return
			}
			open.Add(1)
			keeping.Go(func() { keep(kind, host, conn) })
		})
	}
	opening.Wait()
	fmt.Printf("ready: %d open, %d failed\n", open.Load(), failed.Load())
	keeping.Wait()
	fmt.Println("over")
	return nil
}

// one opens one connection.
func one(kind, host string) (net.Conn, error) {
	conn, err := dialProxy()
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	if kind != "tunnels" {
		return conn, nil
	}
	inside, err := unread(conn, host)
	if err != nil {
		_ = conn.Close()
	}
	return inside, err
}

// unread is a tunnel in which a long answer was asked for.
func unread(conn net.Conn, host string) (net.Conn, error) {
	if _, err := fmt.Fprintf(conn, "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", host, host); err != nil {
		return nil, err
	}
	answer, err := answered(bufio.NewReader(conn), http.MethodConnect)
	if err != nil {
		return nil, err
	}
	if answer != "200" {
		return nil, errors.New("answered " + answer)
	}
	inside := tls.Client(conn, &tls.Config{ServerName: host, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // who is there is not the question
	_, err = fmt.Fprintf(inside, "GET /full HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	return inside, err
}

// keep does with a connection what its kind is for, until it is closed.
func keep(kind, host string, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	switch kind {
	case "slow":
		text := "GET http://" + host + "/page HTTP/1.1\r\nX-Slow: "
		for i := 0; ; i++ {
			b := []byte{'x'}
			if i < len(text) {
				b[0] = text[i]
			}
			if _, err := conn.Write(b); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	case "requests":
		reader := bufio.NewReader(conn)
		for {
			if _, err := fmt.Fprintf(conn, "GET http://%s/page HTTP/1.1\r\nHost: %s\r\n\r\n", host, host); err != nil {
				return
			}
			if _, err := answered(reader, http.MethodGet); err != nil {
				return
			}
		}
	case "tunnels":
		time.Sleep(time.Hour)
	default:
		_, _ = io.Copy(io.Discard, conn)
	}
}
