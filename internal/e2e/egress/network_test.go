//go:build linux

package egress_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Addresses on the cable. They look public, because that is what the gate has to
// believe; nobody else is on this cable.
const (
	bermAddr    = "93.184.216.2"
	bermAddr6   = "2606:2800:220:1::2"
	routerAddr  = "93.184.216.1"
	routerAddr6 = "2606:2800:220:1::1"
	webAddr     = "93.184.216.34"
	webAddr6    = "2606:2800:220:1::34"
	otherAddr   = "93.184.217.35"
	dnsAddr     = "93.184.216.53"
	bermMAC     = "02:00:00:00:00:02"
	mountPoint  = "/mnt"
)

// What the second stage tells the third, beside the descriptors.
const (
	socketsName = "BERM_E2E_EGRESS_SOCKETS"
	parentName  = "BERM_E2E_EGRESS_PARENT"
)

// errImpossible is wrapped by what a user without privileges cannot do here. Root
// can do all of it.
var errImpossible = errors.New("the network of this test cannot be made here by this user")

func impossible(err error) error {
	if err == nil || os.Getuid() == 0 {
		return err
	}
	return fmt.Errorf("%w: %w", errImpossible, err)
}

// buildNetwork makes the two namespaces and all sockets of the servers, and goes
// on as the third stage. The namespace that it was started in becomes the outer
// one, which has every address that there is; sockets alone keep it alive.
func buildNetwork() error {
	runtime.LockOSThread() // to the end: namespaces are a thread's
	if err := mountAll(); err != nil {
		return impossible(err)
	}
	outer, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return impossible(err)
	}
	inner, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	if err := join(inner, outer); err != nil {
		return impossible(err)
	}
	var sockets handover
	if err := errors.Join(enter(outer), sockets.openOuter(), enter(inner), sockets.openInner()); err != nil {
		return err
	}
	return sockets.goOn()
}

func enter(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	return nil
}

// join lays the cable. This thread is in the inner namespace, before and after.
func join(inner, outer *os.File) error {
	low := func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	}
	if err := ip(outer,
		"link add name inner0 address "+bermMAC+" type veth peer name outer0 netns /proc/self/fd/3",
		"link set lo up", "link set inner0 up",
		"addr add "+bermAddr+"/32 dev inner0", "addr add "+bermAddr6+"/128 dev inner0 nodad",
		"route add "+routerAddr+"/32 dev inner0", "route add "+routerAddr6+"/128 dev inner0",
	); err != nil {
		return err
	}
	if err := errors.Join(low(), enter(outer), low()); err != nil {
		return err
	}
	// Every address is the outer namespace's own: whoever gets out, to wherever,
	// arrives.
	if err := ip(nil,
		"link set lo up", "link set outer0 up",
		"addr add "+routerAddr+"/32 dev outer0", "addr add "+routerAddr6+"/128 dev outer0 nodad",
		"addr add "+dnsAddr+"/32 dev lo",
		"route add "+bermAddr+"/32 dev outer0", "route add "+bermAddr6+"/128 dev outer0",
		"route add local 0.0.0.0/0 dev lo table main", "route add local ::/0 dev lo table main",
	); err != nil {
		return err
	}
	if err := enter(inner); err != nil {
		return err
	}
	return ip(nil, "route add default via "+routerAddr+" dev inner0", "route add default via "+routerAddr6+" dev inner0")
}

// ip runs iproute2's program once for each line, in this thread's namespace.
func ip(extra *os.File, lines ...string) error {
	program, err := exec.LookPath("ip")
	if err != nil {
		program = "/usr/sbin/ip" // not in every user's PATH
	}
	for _, line := range lines {
		args := strings.Fields(line)
		if strings.Contains(line, ":") && !strings.HasPrefix(line, "link") {
			args = append([]string{"-6"}, args...)
		}
		cmd := exec.Command(program, args...) //nolint:noctx // it does not wait for anything
		if extra != nil {
			cmd.ExtraFiles = []*os.File{extra}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

// mountAll gives the test files of its own in place of the machine's: a place
// for what it writes, a resolver's configuration and a hosts file with traps, and
// accounts to which ssh can log in.
func mountAll() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("berm-e2e", mountPoint, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a temporary file system: %w", err)
	}
	roots, err := os.ReadFile(systemRoots)
	if err != nil {
		return err
	}
	pki, err := newPKI()
	if err != nil {
		return err
	}
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	own := fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", sshUser, sshUID(), sshUID(), filepath.Join(mountPoint, "ssh"))
	files := []struct{ over, content string }{
		{"/etc/resolv.conf", "search example.com\nnameserver " + dnsAddr + "\noptions ndots:5\n"},
		{"/etc/hosts", "127.0.0.1 localhost\n127.0.0.1 api.example.com pkg.example.org hosted.pkg.example.org\n::1 hosted.pkg.example.org\n"},
		{"/etc/passwd", own + string(users)},
		{systemRoots, string(roots) + "\n" + pki.rootPEM},
	}
	for _, f := range files {
		name := filepath.Join(mountPoint, filepath.Base(f.over))
		if err := os.WriteFile(name, []byte(f.content), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(name, f.over, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", f.over, err)
		}
	}
	return errors.Join(pki.save(filepath.Join(mountPoint, "pki")), os.Mkdir(filepath.Join(mountPoint, "tmp"), 0o755))
}

const systemRoots = "/etc/ssl/certs/ca-certificates.crt"

// handover is the sockets that the third stage inherits, by name.
type handover struct{ names []string }

func (h *handover) add(name string, fd int) error {
	// The copy survives execve, and the end of whatever owns the original.
	kept, err := unix.Dup(fd)
	if err != nil {
		return fmt.Errorf("hand over %s: %w", name, err)
	}
	h.names = append(h.names, name+"="+strconv.Itoa(kept))
	return nil
}

// listen opens a listener on every address of both families.
func (h *handover) listen(name string, port int) error {
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return fmt.Errorf("listen on port %d: %w", port, err)
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return errors.New("no TCP listener")
	}
	file, err := tcp.File()
	if err != nil {
		return err
	}
	return h.add(name, int(file.Fd()))
}

// openOuter opens what the servers serve, and the tap on the cable.
func (h *handover) openOuter() error {
	for name, port := range map[string]int{"http": 80, "https": 443, "ssh": 22, "dns": 53, "odd": 8443} {
		if err := h.listen(name, port); err != nil {
			return err
		}
	}
	// Answers have to come from the address that was asked.
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(dnsAddr), Port: 53})
	if err != nil {
		return err
	}
	file, err := udp.File()
	if err != nil {
		return err
	}
	if err := h.add("dns-udp", int(file.Fd())); err != nil {
		return err
	}
	return h.openTap()
}

func (h *handover) openTap() error {
	link, err := net.InterfaceByName("outer0")
	if err != nil {
		return err
	}
	const all = 0x0300 // ETH_P_ALL in network order
	tap, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, all)
	if err != nil {
		return impossible(fmt.Errorf("open a packet socket: %w", err))
	}
	head, err := tapFilter()
	if err != nil {
		return err
	}
	if err := unix.SetsockoptSockFprog(tap, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(head)), Filter: &head[0]}); err != nil {
		return fmt.Errorf("filter packets: %w", err)
	}
	if err := unix.SetsockoptInt(tap, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		_ = unix.SetsockoptInt(tap, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20)
	}
	if err := unix.Bind(tap, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		return fmt.Errorf("bind the tap: %w", err)
	}
	return h.add("tap", tap)
}

// tapFilter lets the tap see the beginning of each packet from berm's side, but for
// the bulk: what goes to the web server's own addresses and ports. A tap of a user
// without privileges has room for little.
func tapFilter() ([]unix.SockFilter, error) {
	web4, web6 := netip.MustParseAddr(webAddr).As4(), netip.MustParseAddr(webAddr6).As16()
	word := binary.BigEndian.Uint32
	is := func(value uint32, otherwise uint8) bpf.Instruction {
		return bpf.JumpIf{Val: value, SkipFalse: otherwise}
	}
	ports := []bpf.Instruction{
		bpf.JumpIf{Val: 80, SkipTrue: 2}, bpf.JumpIf{Val: 443, SkipTrue: 1},
		bpf.RetConstant{Val: tapBytes}, bpf.RetConstant{Val: 0},
	}
	// Each skip is to the RetConstant{tapBytes} of its family's ports, or over all
	// of it.
	four := append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 23, Size: 1}, is(unix.IPPROTO_TCP, 6),
		bpf.LoadAbsolute{Off: 30, Size: 4}, is(word(web4[:]), 4),
		bpf.LoadMemShift{Off: 14}, bpf.LoadIndirect{Off: 16, Size: 2},
	}, ports...)
	six := append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 20, Size: 1}, is(unix.IPPROTO_TCP, 11),
		bpf.LoadAbsolute{Off: 38, Size: 4}, is(word(web6[:4]), 9), bpf.LoadAbsolute{Off: 42, Size: 4}, is(word(web6[4:8]), 7),
		bpf.LoadAbsolute{Off: 46, Size: 4}, is(word(web6[8:12]), 5), bpf.LoadAbsolute{Off: 50, Size: 4}, is(word(web6[12:]), 3),
		bpf.LoadAbsolute{Off: 56, Size: 2},
	}, ports...)
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 6, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x02000000, SkipTrue: 1}, bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 10, Size: 2}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: 2, SkipTrue: 1}, bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 12, Size: 2}, is(0x0800, uint8(len(four))),
	}
	program = append(append(program, four...), is(0x86dd, uint8(len(six))))
	raw, err := bpf.Assemble(append(append(program, six...), bpf.RetConstant{Val: tapBytes}))
	if err != nil {
		return nil, fmt.Errorf("assemble the tap's filter: %w", err)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}

// openInner opens what must never be reached: a server on the gate's own machine.
func (h *handover) openInner() error { return h.listen("victim", 80) }

// goOn gives up what the caller does not have and starts the program anew.
func (h *handover) goOn() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	for name, value := range map[string]string{
		stageName: stageTest, socketsName: strings.Join(h.names, ","), parentName: strconv.Itoa(os.Getppid()),
		"TMPDIR": filepath.Join(mountPoint, "tmp"),
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return fmt.Errorf("start again: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// inherited finds a socket of the second stage's.
func inherited(name string) (*os.File, error) {
	for pair := range strings.SplitSeq(os.Getenv(socketsName), ",") {
		if got, number, _ := strings.Cut(pair, "="); got == name {
			fd, err := strconv.Atoi(number)
			if err != nil {
				return nil, err
			}
			unix.CloseOnExec(fd)
			return os.NewFile(uintptr(fd), name), nil
		}
	}
	return nil, fmt.Errorf("there is no socket %q", name)
}
