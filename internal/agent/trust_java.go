package agent

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the format's own checksum
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"unicode/utf16"
)

// The Java key store format, version 2: a JVM reads no PEM, and its own tool is
// not there to make one.
const (
	jksMagic       = 0xfeedfeed
	jksVersion     = 2
	jksTrustedCert = 2
	// jksPassword is what the checksum is made with. It keeps nothing secret, and
	// readers that only want certificates do not ask for it.
	jksPassword = "changeit"
	jksPepper   = "Mighty Aphrodite"
)

// javaStore makes a trust store of the certificates of a PEM bundle.
func javaStore(bundle string) []byte {
	var entries bytes.Buffer
	count := uint32(0)
	for rest := []byte(bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		count++
		entries.Write(binary.BigEndian.AppendUint32(nil, jksTrustedCert))
		jksText(&entries, fmt.Sprintf("berm-%05d", count))
		entries.Write(make([]byte, 8)) // a date, which nothing goes by
		jksText(&entries, "X.509")
		entries.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block.Bytes)))) //nolint:gosec // the bundle is bounded
		entries.Write(block.Bytes)
	}
	out := binary.BigEndian.AppendUint32(nil, jksMagic)
	out = binary.BigEndian.AppendUint32(out, jksVersion)
	out = binary.BigEndian.AppendUint32(out, count)
	out = append(out, entries.Bytes()...)
	sum := sha1.New() //nolint:gosec // as above
	for _, unit := range utf16.Encode([]rune(jksPassword)) {
		sum.Write(binary.BigEndian.AppendUint16(nil, unit))
	}
	sum.Write([]byte(jksPepper))
	sum.Write(out)
	return sum.Sum(out)
}

// jksText writes a short ASCII text as Java's DataOutput does.
func jksText(to *bytes.Buffer, text string) {
	to.Write(binary.BigEndian.AppendUint16(nil, uint16(len(text)))) //nolint:gosec // the texts are this file's own
	to.WriteString(text)
}
