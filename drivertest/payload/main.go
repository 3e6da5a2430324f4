// Command payload is what the conformance suite runs inside a sandbox where a
// shell is not enough: servers, daemons, and programs that use up a limit. It is
// static, so that it runs in any image.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "payload:", err)
		os.Exit(1)
	}
}

// run does one verb: its first argument.
func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no verb was given")
	}
	verb, args := args[0], args[1:]
	verbs := map[string]func([]string) error{
		"echo-server": echoServer, "http-server": httpServer, "daemon": daemon, "beat": beat,
		"allocate": allocate, "fork": fork, "dial": dial,
		"headless": headless, "chains": chains,
		"get": get, "tunnel": tunnel, "ask": ask, "raw": rawSockets,
	}
	do, ok := verbs[verb]
	if !ok {
		return fmt.Errorf("unknown verb %q", verb)
	}
	return do(args)
}

// listen opens a port that the kernel picks and writes its number to stdout, or
// to the file named by the first argument.
func listen(args []string) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // lives as long as the program
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	if len(args) == 0 {
		_, err = fmt.Println(port)
		return l, err
	}
	return l, publish(args[0], port)
}

// publish writes a file so that a reader never sees half of it.
func publish(path, content string) error {
	if err := os.WriteFile(path+".tmp", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// echoServer sends back what it gets, and ends its side when the peer has ended
// the other.
func echoServer(args []string) error {
	l, err := listen(args)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// httpServer answers every request with its method, host, path and body.
func httpServer(args []string) error {
	l, err := listen(args)
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request", r.Method+" "+r.URL.Path)
			_, _ = io.Copy(w, r.Body)
		}),
	}
	return server.Serve(l)
}

// daemon starts the rest of its arguments in a session of its own, without
// waiting: the grandchild has no parent left and holds none of our descriptors.
func daemon(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, args...) //nolint:noctx // has to outlive the program
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return child.Start()
}

// beat appends a byte to a file every 20 ms: a process that is alive can be seen
// by its file from anywhere.
func beat(args []string) error {
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for {
		if _, err := f.Write([]byte{'.'}); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// headless is beat in a process whose first thread ends.
func headless(args []string) error {
	failed := make(chan error, 1)
	go func() { failed <- beat(args) }()
	for range 1000 {
		go func() {
			// One of the many gets the first thread, as soon as that is free.
			runtime.LockOSThread()
			if syscall.Gettid() == os.Getpid() {
				_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
			}
			runtime.UnlockOSThread()
		}()
		time.Sleep(time.Millisecond)
	}
	return <-failed
}

// chains starts processes that end as soon as each has started the next one, as
// fast as the kernel can, which append to a file all the time.
func chains(args []string) error {
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fork := func() uintptr {
		pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		return pid
	}
	fd, beat := f.Fd(), []byte{'.'}
	for range 40 {
		if fork() != 0 {
			continue
		}
		// Here nothing of the Go runtime works any more.
		for {
			if pid := fork(); int(pid) > 0 {
				_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
			}
			_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&beat[0])), 1)
		}
	}
	time.Sleep(time.Hour)
	return f.Close()
}

// allocate touches so many bytes, in pieces.
func allocate(args []string) error {
	size, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	const piece = 1 << 20
	var kept [][]byte
	for ; size > 0; size -= piece {
		block := make([]byte, piece)
		for i := 0; i < piece; i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
	_, err = fmt.Println(len(kept))
	return err
}

// fork starts so many sleeping children, says how many did start, and waits
// for its input to end.
func fork(args []string) error {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var failed error
	started := 0
	for range count {
		child := exec.Command("sleep", "1000") //nolint:noctx // ended with the sandbox
		if failed = child.Start(); failed != nil {
			break
		}
		started++
	}
	fmt.Println(started)
	return failed
}

// dial tries to reach an address ("tcp:127.0.0.1:80", "unix:/path").
func dial(args []string) error {
	conn, err := net.DialTimeout(args[0], args[1], 2*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}
