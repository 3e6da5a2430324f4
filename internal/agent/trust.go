package agent

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
)

// Files of the trust directory. The bundle and the Java store have the system's
// roots too, for clients that take one file instead of their own; the authority
// is alone in the third, for clients that add one.
const (
	bundleFile    = "ca-bundle.pem"
	authorityFile = "authority.pem"
	javaFile      = "truststore.jks"
	wgetFile      = "wgetrc"
)

// maxRoots bounds what is read of the system's roots, in bytes.
const maxRoots = 8 << 20

// systemBundles is where systems keep their roots in one file.
var systemBundles = [...]string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// trust keeps the certificates that payloads are to trust besides the system's:
// the authority of the gate, and what /init brought. The files are the payload's
// own where the agent has its identity: whoever changes them deceives himself.
// All methods may be called concurrently, on nil too.
type trust struct {
	dir string // empty where there is none

	mu       sync.Mutex
	gate     string // PEM
	session  string // PEM
	settings map[string]string
}

func newTrust(dir string) *trust { return &trust{dir: dir} }

// has reports whether there is a directory for certificates.
func (t *trust) has() bool { return t != nil && t.dir != "" }

// able says why certificates cannot be taken.
func (t *trust) able() error {
	if !t.has() {
		return errors.New("certificates are not supported: there is no directory for them")
	}
	return nil
}

// variables lead clients to the files; nil while there is nothing to trust.
func (t *trust) variables() map[string]string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settings
}

// setGate replaces the gate's authority, setSession what /init brought; empty
// takes it away. The PEM has been checked.
func (t *trust) setGate(text string) error    { return t.set(&t.gate, text) }
func (t *trust) setSession(text string) error { return t.set(&t.session, text) }

func (t *trust) set(slot *string, text string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if *slot == text {
		return nil
	}
	before := *slot
	*slot = text
	settings, err := t.write()
	if err != nil {
		*slot = before
		return err
	}
	t.settings = settings
	return nil
}

// write makes the files new. With nothing to trust they stay, without what was
// taken away: a command that still runs may have their names.
func (t *trust) write() (map[string]string, error) {
	added := t.gate + t.session
	roots := readRoots()
	bundle := roots + added
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return nil, fmt.Errorf("keep certificates: %w", err)
	}
	// wget with GnuTLS has no variable of its own for certificates.
	wget := "ca_certificate = " + filepath.Join(t.dir, bundleFile) + "\n"
	for name, content := range map[string]string{bundleFile: bundle, authorityFile: added, javaFile: string(javaStore(bundle)), wgetFile: wget} {
		if err := replaceFile(filepath.Join(t.dir, name), []byte(content)); err != nil {
			return nil, fmt.Errorf("keep certificates: %w", err)
		}
	}
	if added == "" {
		return nil, nil
	}
	out := map[string]string{
		"WGETRC":    filepath.Join(t.dir, wgetFile),
		javaOptions: "-Djavax.net.ssl.trustStore=" + filepath.Join(t.dir, javaFile) + " -Djavax.net.ssl.trustStoreType=JKS",
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "PIP_CERT",
		"npm_config_cafile", // over a file's cafile, which would be all that npm trusts
	} {
		out[name] = filepath.Join(t.dir, bundleFile)
	}
	for _, name := range []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"} {
		out[name] = filepath.Join(t.dir, authorityFile)
	}
	return out, nil
}

// readRoots gives the system's roots as the inside has them, empty where it has
// no such file: the authority then is all that is trusted.
func readRoots() string {
	for _, name := range systemBundles {
		file, err := os.Open(name)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(file, maxRoots+1))
		_ = file.Close()
		if err != nil || len(data) == 0 || len(data) > maxRoots {
			continue
		}
		if !bytes.HasSuffix(data, []byte("\n")) {
			data = append(data, '\n')
		}
		return string(data)
	}
	return ""
}

// replaceFile writes beside and renames, so that nobody reads half of it, and
// what a payload has put there is not written through.
func replaceFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(0o444), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// certificates checks that text holds certificates and nothing else, and gives
// it in one form.
func certificates(text string) (string, error) {
	var out bytes.Buffer
	for rest := []byte(text); len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		before := rest
		block, rest = pem.Decode(rest)
		if block == nil || !bytes.HasPrefix(bytes.TrimSpace(before), []byte("-----BEGIN ")) || block.Type != "CERTIFICATE" {
			return "", errors.New("it is not a list of PEM certificates")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("it has a certificate that is none: %w", err)
		}
		_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // into memory
	}
	return out.String(), nil
}

// authority is the body of POST /trust.
type authority struct {
	CABundle string `json:"caBundle"`
}

// serve answers POST /trust, by which the host's gate says which authority its
// clients are to trust; an empty one takes the last away.
func (t *trust) serve(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxInitBytes))
	var in authority
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err == nil {
		err = t.able()
	}
	if err == nil {
		in.CABundle, err = certificates(in.CABundle)
	}
	if err != nil {
		answerError(w, http.StatusBadRequest, "caBundle: "+err.Error())
		return
	}
	if err := t.setGate(in.CABundle); err != nil {
		answerError(w, http.StatusInsufficientStorage, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
