package fdpass

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
)

// rights is a control message with descriptor numbers, which parsing only looks
// at.
func rights(fds ...int) []byte { return unix.UnixRights(fds...) }

// FuzzControlMessages: whatever a packet holds, parsing finds every descriptor,
// and each side accepts only what the other could have sent.
func FuzzControlMessages(f *testing.F) {
	credentials := unix.UnixCredentials(&unix.Ucred{Pid: 1})
	for _, seed := range []struct {
		data  string
		oob   []byte
		flags int
	}{
		{"", nil, 0},
		{"b", nil, 0},
		{"bpayload", nil, 0},
		{"bpayload", rights(10, 11, 12), 0},
		{"b", rights(slices.Repeat([]int{9}, 16)...), 0},
		{"b", rights(slices.Repeat([]int{9}, 17)...), 0},
		{"bpayload", rights(10), unix.MSG_TRUNC},
		{"bpayload", nil, unix.MSG_CTRUNC},
		{"h", nil, 0},
		{"h", rights(10), 0},
		{"h", rights(10, 11), 0},
		{"h", nil, unix.MSG_CTRUNC},
		{"hh", nil, 0},
		{"d", rights(10), 0},
		{"c", rights(10), 0},
		{"d", nil, 0},
		{"c", nil, unix.MSG_CTRUNC},
		{"d", rights(10), unix.MSG_CTRUNC},
		{"d", rights(10, 11), 0},
		{"x", rights(10), 0},
		{"d", append(rights(10), rights(11)...), 0},
		{"d", append(credentials, rights(10)...), 0},
		{"d", append(rights(10), credentials...), 0},
		{"d", credentials, 0},
		{"c", rights(10)[:17], 0},
		{"c", bytes.Repeat([]byte{0xff}, 64), 0},
	} {
		f.Add([]byte(seed.data), seed.oob, seed.flags)
	}
	f.Fuzz(checkPacket)
}

func checkPacket(t *testing.T, data, oob []byte, flags int) {
	t.Helper()
	p, err := parsePacket(data, oob, flags)
	if found := scanRights(oob); !slices.Equal(found, p.fds) {
		t.Fatalf("descriptors %v were found, %v are there", p.fds, found)
	}
	if err != nil {
		return
	}
	if payload, err := p.bootPayload(); err == nil {
		if len(payload) > boot.MaxBytes || len(p.fds) > maxFiles {
			t.Fatalf("a boot packet of %d bytes with %d descriptors", len(payload), len(p.fds))
		}
		same(t, p, tagBoot, payload, p.fds...)
	}
	if fd, err := p.helloListener(); err == nil {
		if fd < 0 {
			same(t, p, tagHello, nil)
		} else {
			same(t, p, tagHello, nil, fd)
		}
	}
	if tag, fd, err := p.stream(); err == nil && fd >= 0 {
		same(t, p, tag, nil, fd)
	} else if err == nil && (!p.starved || len(p.fds) != 0) {
		t.Fatal("a stream was refused without a lack of descriptors")
	}
}

// same fails unless the accepted packet is what encode makes of its parts.
func same(t *testing.T, p packet, tag byte, payload []byte, fds ...int) {
	t.Helper()
	data, oob := encode(tag, payload, fds...)
	again, err := parsePacket(data, oob, 0)
	if err != nil || !bytes.Equal(again.data, p.data) || !slices.Equal(again.fds, p.fds) || p.short || p.starved {
		t.Fatalf("accepted %q %v, which encodes to %q %v, %v", p.data, p.fds, again.data, again.fds, err)
	}
}

// scanRights finds descriptors in another way than parsePacket: by the kernel's
// layout of a control message on 64-bit hosts.
func scanRights(oob []byte) []int {
	const header = unix.SizeofCmsghdr
	var fds []int
	for len(oob) >= header {
		length := int64(le(oob[:8]))
		if length < header || length > int64(len(oob)) {
			return fds
		}
		if le(oob[8:12]) == unix.SOL_SOCKET && le(oob[12:16]) == unix.SCM_RIGHTS {
			for body := oob[header:length]; len(body) >= 4; body = body[4:] {
				fds = append(fds, int(int32(le(body[:4]))))
			}
		}
		oob = oob[min((length+7)&^7, int64(len(oob))):]
	}
	return fds
}

// le reads a little-endian number.
func le(b []byte) uint64 {
	var n uint64
	for i, v := range b {
		n |= uint64(v) << (8 * i)
	}
	return n
}

// FuzzReceive sends real packets with real descriptors: none is left open that
// the packet did not keep.
func FuzzReceive(f *testing.F) {
	for i, data := range []string{
		"", "b", "bx", "h", "hh", "d", "c", "dc", "x", "\x00", "d\x00", "b{}", "h\n", "cccccccccccccccccc", "bb", "hd", "dh", "ch", "bd", "db",
	} {
		f.Add([]byte(data), uint8(i%5))
	}
	f.Fuzz(func(t *testing.T, data []byte, count uint8) {
		if len(data) > 32<<10 {
			return
		}
		near, far := pair(t)
		defer near.Close()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		fds := slices.Repeat([]int{int(w.Fd())}, int(count%64))
		if _, _, err := far.WriteMsgUnix(data, rights(fds...), nil); err != nil && len(data) > 0 {
			t.Fatal(err)
		}
		_ = far.Close()
		_ = w.Close()
		p, err := receive(near, 1, 2)
		if err != nil && len(p.fds) > 0 {
			t.Fatal("an error came with descriptors")
		}
		for _, fd := range p.fds {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Fatalf("descriptor %d has flags %x, %v", fd, flags, err)
			}
		}
		p.drop()
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("a descriptor is still open: %v", err)
		}
	})
}

func pair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if near, err = fileConn(a); err != nil {
		t.Fatal(err)
	}
	if far, err = fileConn(b); err != nil {
		t.Fatal(err)
	}
	return near, far
}
