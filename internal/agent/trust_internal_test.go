package agent

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestJavaStore has Java's own tool read what was written, where there is one.
func TestJavaStore(t *testing.T) {
	t.Parallel()
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("there is no keytool here")
	}
	a, b := selfSigned(t, 1), selfSigned(t, 2)
	store := filepath.Join(t.TempDir(), "store.jks")
	if err := os.WriteFile(store, javaStore("# a comment\n"+a+b), 0o600); err != nil {
		t.Fatal(err)
	}
	// With the password the checksum is looked at.
	out, err := exec.CommandContext(t.Context(), keytool, "-list", "-rfc", "-storetype", "JKS", "-storepass", "changeit", "-keystore", store).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := strings.ReplaceAll(string(out), "\r", "")
	if !strings.Contains(text, body(a)) || !strings.Contains(text, body(b)) || !strings.Contains(text, "contains 2 entries") {
		t.Errorf("keytool sees:\n%s", text)
	}
}

// body is the first line of a certificate's base64.
func body(certificate string) string { return strings.Split(certificate, "\n")[1] }

func selfSigned(t *testing.T, serial int64) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "self"}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
