//go:build linux

package attack_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
)

// process-tier 1.7 weak 6, "AF_PACKET/raw", section 5 item 6; attacks 9 and its
// test "seccomp from raw system calls: high bits in family, AF_VSOCK".
func TestAddressFamilies(t *testing.T) {
	t.Parallel()
	b := shared(t)
	for _, name := range []string{"families", "netlink"} {
		attack(t, b, name).blocked(t, "EAFNOSUPPORT")
		// On the host some of them are to be had, also without privileges.
		opened := 0
		for _, a := range onHost(t, name) {
			if a.Errno == "" && !strings.HasPrefix(a.Name, "control ") {
				opened++
			}
		}
		if opened == 0 {
			t.Errorf("%s: the host has none of them either, so this proves nothing", name)
		}
	}
	// The kernel's answers: no right to a raw socket, no such protocol or type.
	attack(t, b, "inet").blocked(t, "EPERM", "EACCES", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EINVAL")
}

// process-tier 1.7 "raw TCP to host loopback", "UDP/DNS", "Host abstract socket";
// section 2 "coder/boundary 149", "no route".
func TestHostCannotBeReached(t *testing.T) {
	t.Parallel()
	targets := listeners(t)
	onHost(t, "connect", targets...).each(t, func(a attempt) bool { return a.Errno == "" }, "cannot be reached from the host")
	unreachable := []string{"ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL", "ENOENT"}
	attack(t, shared(t), "connect", targets...).blocked(t, unreachable...)
	// Names and addresses of the internet, documentation ranges only.
	attack(t, shared(t), "connect", "tcp 192.0.2.1:80", "udp 192.0.2.1:53", "tcp [2001:db8::1]:80", "udp 198.51.100.1:123").blocked(t, "ENETUNREACH", "EADDRNOTAVAIL")
}

// listeners open a server of every kind on the host that answers each client,
// and give their addresses as the payload takes them.
func listeners(t *testing.T) []string {
	t.Helper()
	path := hostDir(t) + "/socket"
	addresses := map[string][]string{"tcp": {"127.0.0.1:0"}, "unix": {path, "@berm-attack-" + t.Name()}}
	packets := []string{"127.0.0.1:0"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = l.Close()
		addresses["tcp"] = append(addresses["tcp"], "[::1]:0")
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			addresses["tcp"] = append(addresses["tcp"], ip.IP.String()+":0")
			packets = append(packets, ip.IP.String()+":0")
		}
	}
	var out []string
	for network, list := range addresses {
		for _, address := range list {
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			go answer(l)
			out = append(out, network+" "+l.Addr().String())
		}
	}
	for _, address := range packets {
		p, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		go func() {
			for buffer := make([]byte, 1); ; {
				_, from, err := p.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = p.WriteTo(buffer, from)
			}
		}()
		out = append(out, "udp "+p.LocalAddr().String())
	}
	return out
}

// answer sends a byte to each client, until the listener is closed.
func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(liveness))
		_, _ = io.CopyN(conn, conn, 1)
		_ = conn.Close()
	}
}

// process-tier 1.7 "own netns", section 2 "srt 74": there is loopback and no
// route, and none can be made.
func TestNetworkIsEmpty(t *testing.T) {
	t.Parallel()
	b := shared(t)
	attack(t, b, "interfaces").blocked(t, "EPERM", "EACCES", "ENOENT")
	for file, heading := range map[string]int{"/proc/net/dev": 2, "/proc/net/route": 1, "/proc/net/ipv6_route": 0, "/proc/net/arp": 1} {
		rest := bufio.NewScanner(strings.NewReader(output(t, b, "cat", file)))
		for line := 0; rest.Scan(); line++ {
			if text := strings.TrimSpace(rest.Text()); line >= heading && !strings.HasPrefix(text, "lo:") && !strings.HasSuffix(text, " lo") {
				t.Errorf("%s: %s", file, text)
			}
		}
	}
}

// attacks 16 and 23: names in the abstract space of the host are the host's, also
// those that berm's own locks have.
func TestAbstractNamesAreApart(t *testing.T) {
	t.Parallel()
	name := "@berm-attack-apart-" + t.Name()
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := shared(t)
	if listed := output(t, b, "cat", "/proc/net/unix"); strings.Contains(listed, name) {
		t.Error("sockets of the host are listed inside")
	}
	if data, err := os.ReadFile("/proc/net/unix"); err != nil || !strings.Contains(string(data), name) {
		t.Errorf("the control is not listed on the host: %v", err)
	}
	// Inside, the same name is free.
	command := berm.Command{Args: []string{b.payload, "bind", name}}
	if res, err := b.Exec(bounded(t), command); err != nil || !res.Success() {
		t.Errorf("the name is taken inside: %v %v", res, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		t.Error("the name is free on the host, so the control is worth nothing")
	}
}
