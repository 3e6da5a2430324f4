//go:build linux

package egress_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tapBytes is how much of each packet is looked at.
const tapBytes = 256

// packet is where something on the cable was going, from berm's side.
type packet struct {
	protocol string // tcp, udp, icmp, icmp6, or a number
	to       netip.AddrPort
	kind     byte // of ICMP
}

func (p packet) String() string { return p.protocol + " " + p.to.String() }

// tap sees all that leaves berm's machine, of berm's or of anybody else's.
type tap struct {
	file *os.File
	done chan struct{}

	mu   sync.Mutex
	seen map[packet]int
}

func openTap(t *testing.T) *tap {
	t.Helper()
	file, err := inherited("tap")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{file: file, done: make(chan struct{}), seen: map[packet]int{}}
	go p.read()
	t.Cleanup(func() {
		_ = file.Close()
		<-p.done
	})
	return p
}

func (p *tap) read() {
	defer close(p.done)
	buffer := make([]byte, tapBytes)
	for {
		n, err := p.file.Read(buffer)
		if err != nil {
			return
		}
		if got, ok := parse(buffer[:n]); ok {
			p.mu.Lock()
			p.seen[got]++
			p.mu.Unlock()
		}
	}
}

// parse reads an Ethernet frame that came from berm's side. What it does not
// understand is reported as well: nothing of that kind is expected.
func parse(b []byte) (packet, bool) {
	const ethernet = 14
	if len(b) < ethernet || net.HardwareAddr(b[6:12]).String() != bermMAC {
		return packet{}, false
	}
	kind, b := binary.BigEndian.Uint16(b[12:14]), b[ethernet:]
	const arp, ip4, ip6 = 0x0806, 0x0800, 0x86dd
	switch {
	case kind == arp:
		return packet{}, false
	case kind == ip4 && len(b) >= 20:
		size := int(b[0]&15) * 4
		return transport(b[9], netip.AddrFrom4([4]byte(b[16:20])), b[min(size, len(b)):]), true
	case kind == ip6 && len(b) >= 40:
		return transport(b[6], netip.AddrFrom16([16]byte(b[24:40])), b[40:]), true
	}
	return packet{protocol: fmt.Sprintf("ethernet %#x", kind)}, true
}

func transport(number byte, to netip.Addr, b []byte) packet {
	p := packet{to: netip.AddrPortFrom(to, 0)}
	switch number {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		p.protocol = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[number]
		if len(b) >= 4 {
			p.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:4]))
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		p.protocol = map[byte]string{unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "icmp6"}[number]
		if len(b) > 0 {
			p.kind = b[0]
		}
	default:
		p.protocol = fmt.Sprintf("protocol %d", number)
	}
	return p
}

// expected is what gates do on their own machine's behalf: they ask the one name
// server, and dial what the policies of these tests allow.
func (p packet) expected() bool {
	addr, port := p.to.Addr().String(), p.to.Port()
	web := []string{webAddr, webAddr6, otherAddr, nat64Addr}
	switch p.protocol {
	case "udp":
		return addr == dnsAddr && port == 53
	case "tcp":
		return addr == dnsAddr && port == 53 || slices.Contains(web, addr) && slices.Contains([]uint16{22, 80, 443}, port)
	case "icmp":
		const unreachable = 3 // to an answer that came too late
		return addr == dnsAddr && p.kind == unreachable
	case "icmp6":
		// The kernel's own: reports about groups, and its search for neighbours.
		return p.kind >= 130 && p.kind <= 136 || p.kind == 143
	case "protocol 0":
		return p.to.Addr().IsMulticast() // the same reports, behind an option
	}
	return false
}

// sync waits until everything before it has been looked at: it sends a packet of
// its own, and waits for that.
func (p *tap) sync(t *testing.T) {
	t.Helper()
	marker := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), 9)
	before := p.count(packet{protocol: "udp", to: marker})
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(marker))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("marker")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the marker is on the cable", func() bool { return p.count(packet{protocol: "udp", to: marker}) > before })
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, packet{protocol: "udp", to: marker})
}

func (p *tap) count(of packet) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[of]
}

// unexpected lists what nobody had to send, and forgets it.
func (p *tap) unexpected(t *testing.T) (out []string) {
	t.Helper()
	p.sync(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	for got, n := range p.seen {
		if !got.expected() {
			out = append(out, fmt.Sprintf("%d of %s", n, got))
			delete(p.seen, got)
		}
	}
	slices.Sort(out)
	return out
}

// lost reports how many packets there was no room for.
func (p *tap) lost(t *testing.T) uint32 {
	t.Helper()
	raw, err := p.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var stats *unix.TpacketStats
	if cerr := raw.Control(func(fd uintptr) {
		stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return stats.Drops
}

const (
	// liveness bounds what has to happen at once, patience what may take its time.
	liveness = 2 * time.Second
	patience = 60 * time.Second
)

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatalf("it did not come to pass that %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
