package broker

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/egress"
)

// CheckTarget holds a request inside a tunnel whose TLS was ended against the
// tunnel's own target: the Host of HTTP/1, or the :authority of each HTTP/2
// stream, is the host that the tunnel was opened to and whose name the client's
// TLS gave. It returns an empty reason and nil when it is; egress.ReasonHost for
// another host, egress.ReasonMalformed where there is no telling.
func CheckTarget(r *http.Request, host string, port int) (egress.Reason, error) {
	switch {
	case r.Method == http.MethodConnect:
		return egress.ReasonMalformed, errors.New("CONNECT within a tunnel whose TLS the gate ended")
	case len(r.Header["Host"]) > 0:
		// HTTP/2 lets a host header pass beside :authority, and a server behind may
		// believe either.
		return egress.ReasonMalformed, errors.New("a host header beside :authority")
	case r.URL == nil || r.URL.User != nil || r.URL.Opaque != "":
		return egress.ReasonMalformed, errors.New("the target is no plain path")
	case r.Host == "":
		return egress.ReasonMalformed, errors.New("no host")
	}
	for _, authority := range []string{r.Host, r.URL.Host} {
		if authority != "" && !sameTarget(authority, host, port) {
			return egress.ReasonHost, fmt.Errorf("the request is for %q, the tunnel leads to %q", clip(authority), net.JoinHostPort(host, strconv.Itoa(port)))
		}
	}
	if r.URL.Scheme != "" && r.URL.Scheme != "https" {
		return egress.ReasonMalformed, fmt.Errorf("scheme %q within TLS", clip(r.URL.Scheme))
	}
	return "", nil
}

// sameTarget compares an authority with a canonical host. Without a port it means
// the port of https.
func sameTarget(authority, host string, port int) bool {
	name := authority
	given := httpsPort
	if i := strings.LastIndexByte(authority, ':'); i >= 0 {
		digits := authority[i+1:]
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || strconv.FormatUint(n, 10) != digits {
			return false
		}
		name, given = authority[:i], int(n)
	}
	return given == port && strings.EqualFold(strings.TrimSuffix(name, "."), host)
}

const httpsPort = 443

// clip bounds a text of the client's that goes into an error.
func clip(s string) string {
	const most = 256
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
