//go:build linux

package egress_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// sshUser is the account on the server; the passwd file of the test's mounts has
// it. OpenSSH's server runs with its uid, so that it needs no directory of its own.
const (
	sshUser    = "gitserver"
	sshHost    = "git.pkg.example.org"
	sshRootUID = 61234
)

func sshUID() int {
	if uid := os.Getuid(); uid != 0 {
		return uid
	}
	return sshRootUID
}

// sshServer is OpenSSH's, one process for each connection.
type sshServer struct {
	// clientKey and known are files for the client: its private key, and the line
	// of its known_hosts.
	clientKey, known []byte

	listener net.Listener
	config   string
	program  string
	serving  sync.WaitGroup
}

func serveSSH(t *testing.T, listener net.Listener) *sshServer {
	t.Helper()
	home := filepath.Join(mountPoint, "ssh")
	s := &sshServer{listener: listener, config: filepath.Join(home, "config"), program: "/usr/sbin/sshd"}
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.serving.Wait()
	})
	if _, err := os.Stat(s.program); err != nil {
		s.program = "" // clients that need it are skipped
		return s
	}
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"host", "client"} {
		out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(home, name)).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(home, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	s.clientKey, s.known = read("client"), append([]byte(sshHost+" "), read("host.pub")...)
	for name, content := range map[string]string{
		"config": fmt.Sprintf("HostKey %[1]s/host\nAuthorizedKeysFile %[1]s/client.pub\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n", home),
		// The repository belongs to the caller.
		".gitconfig": "[safe]\n\tdirectory = *\n",
	} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(home, "host"), sshUID(), sshUID()); err != nil {
		t.Fatal(err)
	}
	s.serving.Go(s.accept)
	return s
}

func (s *sshServer) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.serving.Go(func() { _ = s.serveOne(conn) })
	}
}

func (s *sshServer) serveOne(conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	file, err := tcp.File()
	if err != nil {
		return err
	}
	_ = conn.Close()
	defer func() { _ = file.Close() }()
	cmd := exec.Command(s.program, "-i", "-f", s.config) //nolint:noctx // it ends with its connection
	cmd.Stdin, cmd.Stdout = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(sshUID()), Gid: uint32(sshUID())}
	}
	return cmd.Run()
}
