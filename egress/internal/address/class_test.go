package address_test

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress/internal/address"
)

// rows are the corpus's addresses, and those right beside the blocks.
var rows = []struct {
	id, addrs string
	want      address.Class
}{
	{"I02", "127.0.0.1 127.255.255.255 ::1 0.0.0.0 0.1.2.3 ::", address.Inward},
	{"I03", "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.1 192.168.255.255 fc00::1 fdff::1", address.Inward},
	{"I03", "fd00:ec2::254 fd00:ec2::23", address.Metadata},
	{"I04", "169.254.169.254 169.254.0.0 fe80::1 febf::1 168.63.129.16 100.100.100.200 192.0.0.192 fd20:ce::254 fd00:42::42 fd00:c1::a9fe:a9fe fd00:a9fe:a9fe::1 fd00:100::100:200", address.Metadata},
	{"I06", "100.64.0.1 100.127.255.255 198.18.0.1 198.19.255.255 192.0.2.1 198.51.100.1 203.0.113.1 192.88.99.1 240.0.0.1 255.255.255.255", address.Inward},
	{"I06", "192.0.0.9 192.0.0.170 192.31.196.1 192.52.193.1 192.175.48.1 254.255.255.255", address.Inward},
	{"I07", "224.0.0.1 239.255.255.255 ff02::1 ff0e::1 ffff::1", address.Inward},
	{"I08", "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0.0.0.0", address.Inward},
	{"I08", "::ffff:a9fe:a9fe", address.Metadata},
	{"I09", "::127.0.0.1 ::10.0.0.1 ::8.8.8.8 ::ffff:0:127.0.0.1 ::ffff:0:8.8.8.8", address.Inward},
	{"I09", "::169.254.169.254 ::ffff:0:169.254.169.254", address.Metadata},
	{"I10", "64:ff9b::7f00:1 64:ff9b::8.8.8.8 64:ff9b:1::8.8.8.8 64:ff9b:ffff::1", address.Inward},
	{"I10", "64:ff9b:0:0:0:0:a9fe:a9fe 64:ff9b:1::a9fe:a9fe 64:ff9b:1:a9fe:a9:fe00:: 64:ff9b:1:ffa9:fe:a9fe:: 64:ff9b:1:ffff:a9:fea9:fe00::", address.Metadata},
	{"I13", "2002:7f00:1:: 2002:0808:0808::1 2002:c0a8:1:1::1", address.Inward},
	{"I13", "2002:a9fe:a9fe:: 2002:a83f:8110::1", address.Metadata},
	{"I14", "2001:0:1::1 2001:db8::1 3fff::1 3fff:fff::1 100::1 100:0:0:1::1 2001:20::1 2001:2f:ffff::1 2001:30::1 2001:10::1 2001:1::1 2001:1ff::1 5f00::1 fec0::1", address.Inward},
	{"I14", "2001:0:a9fe:a9fe::1 2001:0:808:808:0:0:5601:5601", address.Metadata},
	{"I14", "2620:4f:8000::1 4000::1 1000::1 8000::1 200::1 e000::1 fe00::1", address.Inward},
	{"I14", "2606:4700::5efe:127.0.0.1 2606:4700::200:5efe:10.0.0.1", address.Inward},
	{"I14", "2606:4700::5efe:169.254.169.254 2606:4700::200:5efe:168.63.129.16", address.Metadata},
	{"zone", "fe80::1%eth0", address.Metadata},
	{"zone", "2606:4700::1%eth0", address.Inward},
	{"public", "1.0.0.0 1.1.1.1 8.8.8.8 93.184.216.34 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0", address.Public},
	{"public", "169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0", address.Public},
	{"public", "198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 168.63.129.15 168.63.129.17 192.88.98.255 192.88.100.0", address.Public},
	{"public", "2000::1 2001:200::1 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 2003::1 2606:4700::1111 2620:4f:7fff::1 2620:4f:8001::1 3ffe::1 3fff:1000::1 2a00::1", address.Public},
	{"public", "::ffff:8.8.8.8 2606:4700::5efe:8.8.8.8 2606:4700::100:5efe:127.0.0.1", address.Public},
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, row := range rows {
		for text := range strings.FieldsSeq(row.addrs) {
			t.Run(row.id+"/"+text, func(t *testing.T) {
				t.Parallel()
				if got := address.Classify(netip.MustParseAddr(text)); got != row.want {
					t.Errorf("%s: %s, want %s", text, got, row.want)
				}
			})
		}
	}
	if got := address.Classify(netip.Addr{}); got != address.Inward {
		t.Errorf("no address: %s", got)
	}
}

// TestDisguises dresses every IPv4 address of the rows in everything, and none of
// them gets better by it.
func TestDisguises(t *testing.T) {
	t.Parallel()
	for _, row := range rows {
		for text := range strings.FieldsSeq(row.addrs) {
			addr := netip.MustParseAddr(text)
			if !addr.Is4() {
				continue
			}
			for name, dressed := range disguise(addr.As4()) {
				got := address.Classify(netip.AddrFrom16(dressed))
				// ISATAP and mapped are the ones where a public address stays public.
				keeps := name == "mapped" || name == "isatap"
				if row.want == address.Metadata && got != address.Metadata || row.want == address.Inward && got == address.Public || (got == address.Public) != (keeps && row.want == address.Public) {
					t.Errorf("%s as %s (%s): %s", addr, name, netip.AddrFrom16(dressed), got)
				}
			}
		}
	}
}

func disguise(a [4]byte) map[string][16]byte {
	put := func(head string, at int) [16]byte {
		b := netip.MustParseAddr(head).As16()
		copy(b[at:], a[:])
		return b
	}
	teredo := put("2001:0:808:808::", 12)
	for i := 12; i < 16; i++ {
		teredo[i] ^= 0xff
	}
	return map[string][16]byte{
		"mapped": put("::ffff:0:0", 12), "siit": put("::ffff:0:0:0", 12), "nat64": put("64:ff9b::", 12), "local nat64": put("64:ff9b:1::", 12),
		"6to4": put("2002::", 2), "teredo server": put("2001::", 4), "teredo client": teredo, "isatap": put("2606:4700::5efe:0:0", 12),
	}
}

// TestDNS64 is row I11: what the network translates is judged by what it becomes.
func TestDNS64(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		prefix, addr string
		want         address.Class
	}{
		{"64:ff9b::/96", "64:ff9b::808:808", address.Public},
		{"64:ff9b::/96", "64:ff9b::7f00:1", address.Inward},
		{"64:ff9b::/96", "64:ff9b::a9fe:a9fe", address.Metadata},
		{"64:ff9b::/96", "64:ff9b:1::808:808", address.Inward},
		{"64:ff9b:1::/96", "64:ff9b:1::808:808", address.Public},
		{"64:ff9b:1::/48", "64:ff9b:1:808:8:800::", address.Public},
		{"64:ff9b:1::/48", "64:ff9b:1:7f00:0:100::", address.Inward},
		{"64:ff9b:1::/48", "64:ff9b:1:808:108:800::", address.Inward},
		{"2606:4700::/32", "2606:4700:808:808::", address.Public},
		{"2606:4700::/32", "2606:4700:a00:1::", address.Inward},
		{"2606:4700::/40", "2606:4700:a9:fea9:fe::", address.Metadata},
		{"2606:4700::/56", "2606:4700:0:8:8:808::", address.Public},
		{"2606:4700::/64", "2606:4700::8:808:800:0", address.Public},
		{"2606:4700::/64", "2606:4700:1::", address.Public},
		{"2606:4700::/33", "2606:4700:808:808::", address.Inward},
		{"::/32", "::1", address.Inward},
	} {
		if got := address.Classify(netip.MustParseAddr(x.addr), netip.MustParsePrefix(x.prefix)); got != x.want {
			t.Errorf("%s below %s: %s, want %s", x.addr, x.prefix, got, x.want)
		}
	}
}

// TestPrefixes: a block is as bad as all of it is.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]address.Class{
		"10.0.0.0/8": address.Inward, "10.1.0.0/16": address.Inward, "169.254.0.0/16": address.Metadata, "169.254.169.0/24": address.Metadata,
		"168.63.129.16/32": address.Metadata, "168.63.129.0/24": address.Public, "100.0.0.0/8": address.Public, "100.64.0.0/10": address.Inward,
		"8.0.0.0/8": address.Public, "0.0.0.0/0": address.Public, "::/0": address.Public, "4000::/16": address.Inward, "2001::/16": address.Public,
		"2001::/23": address.Inward, "fe80::/64": address.Metadata, "::ffff:0:0/96": address.Inward, "64:ff9b::a9fe:a9fe/128": address.Metadata,
	} {
		if got := address.ClassifyPrefix(netip.MustParsePrefix(text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestAgainstStandardLibrary: whatever net/netip knows to be special is not public,
// for a great many addresses near and far from the blocks.
func TestAgainstStandardLibrary(t *testing.T) {
	t.Parallel()
	n := 200_000
	if testing.Short() {
		n = 20_000
	}
	random := rand.New(rand.NewPCG(1, 2))
	public := 0
	for range n {
		var b [16]byte
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		addr := netip.AddrFrom4([4]byte(b[:4]))
		switch random.IntN(4) {
		case 0:
			addr = netip.AddrFrom16(b)
		case 1:
			b[0] = 0x20 | b[0]&0x1f
			addr = netip.AddrFrom16(b)
		case 2:
			// Few distinct bytes: the blocks lie where there are zeros and ones.
			for i := range b {
				b[i] = []byte{0, 0, 0, 1, 0xff, 0xfe, 0x20, 0x64}[b[i]&7]
			}
			addr = netip.AddrFrom16(b)
		}
		class := address.Classify(addr)
		if class == address.Public {
			public++
		}
		checkPublic(t, addr, class)
	}
	if public < n/10 {
		t.Errorf("only %d of %d are public: nothing was compared", public, n)
	}
}

func checkPublic(t *testing.T, addr netip.Addr, class address.Class) {
	t.Helper()
	a := addr.Unmap()
	special := !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || addr.Zone() != ""
	if class == address.Public && special {
		t.Fatalf("%s is public, and net/netip knows better", addr)
	}
	if a.IsLinkLocalUnicast() && class != address.Metadata {
		t.Fatalf("%s is link-local and %s", addr, class)
	}
	if class == address.Public && address.Name(addr) != "" {
		t.Fatalf("%s is public and in the block %s", addr, address.Name(addr))
	}
}

// FuzzClassify: net/netip's predicates hold, a mapped address is its own, and no
// disguise makes an address better.
func FuzzClassify(f *testing.F) {
	for _, row := range rows {
		for text := range strings.FieldsSeq(row.addrs) {
			b := netip.MustParseAddr(text).As16()
			f.Add(b[:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 16 {
			return
		}
		addr := netip.AddrFrom16([16]byte(b))
		class := address.Classify(addr)
		checkPublic(t, addr, class)
		if address.Classify(addr.Unmap()) != class {
			t.Fatalf("%s and %s differ", addr, addr.Unmap())
		}
		inner := [4]byte(b[12:])
		plain := address.Classify(netip.AddrFrom4(inner))
		for name, dressed := range disguise(inner) {
			got := address.Classify(netip.AddrFrom16(dressed))
			if plain == address.Metadata && got != plain || plain == address.Inward && got == address.Public {
				t.Fatalf("%s as %s: %s instead of %s", netip.AddrFrom4(inner), name, got, plain)
			}
		}
	})
}
