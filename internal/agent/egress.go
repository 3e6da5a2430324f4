package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link/fdpass"
)

// outlet is the loopback listener whose streams the host's gate serves. The
// agent opens it and hands it over, and neither reads nor decides anything.
type outlet struct {
	file    *os.File
	address string // host and port
}

// openOutlet opens the listener, nil where none is wanted. It is the first to
// listen in a network namespace of its own; elsewhere the port may be taken, and
// another one does as well.
func openOutlet(ctx context.Context, address string) (*outlet, error) {
	const op = "open egress listener"
	if address == "" {
		return nil, nil //nolint:nilnil // none is wanted
	}
	var config net.ListenConfig
	// The gate moves bytes with splice, which multipath TCP does not have.
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, "tcp", address)
	if errors.Is(err, unix.EADDRINUSE) {
		host, _, splitErr := net.SplitHostPort(address)
		if splitErr != nil {
			return nil, errdefs.Wrap(errdefs.Invalid, op, splitErr)
		}
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Unavailable, op, err)
	}
	defer listener.Close()
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errdefs.New(errdefs.Internal, op, "it is no TCP listener")
	}
	file, err := tcp.File()
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Unavailable, op, err)
	}
	return &outlet{file: file, address: listener.Addr().String()}, nil
}

// hello tells the host that the agent serves, and hands the listener over: from
// then on nobody but the host accepts on it.
func (o *outlet) hello(guest *fdpass.GuestSide) error {
	if o == nil {
		return guest.Hello(nil)
	}
	return errors.Join(guest.Hello(o.file), o.close())
}

func (o *outlet) close() error {
	if o == nil || o.file == nil {
		return nil
	}
	file := o.file
	o.file = nil
	return file.Close()
}

// noProxy is what clients reach directly: the inside's own loopback. The forms
// differ because clients do.
const noProxy = "localhost,127.0.0.1,127.0.0.0/8,::1,[::1]"

// proxyVariables lead clients to the listener. All of them speak HTTP to it, also
// what ALL_PROXY is for: some clients fail at the sight of a SOCKS address for
// which they have no library.
func proxyVariables(config boot.Config, o *outlet) map[string]string {
	if o == nil {
		return nil
	}
	proxy := url.URL{Scheme: "http", Host: o.address}
	if config.EgressUser != "" {
		proxy.User = url.UserPassword(config.EgressUser, config.EgressPassword)
	}
	out := map[string]string{
		"NODE_USE_ENV_PROXY": "1",
		"YARN_HTTP_PROXY":    proxy.String(),
		"YARN_HTTPS_PROXY":   proxy.String(),
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		out[name], out[strings.ToLower(name)] = proxy.String(), proxy.String()
	}
	out["NO_PROXY"], out["no_proxy"] = noProxy, noProxy
	host, port, err := net.SplitHostPort(o.address)
	if err == nil {
		// Loopback is among the JVM's own exceptions.
		out[javaOptions] = fmt.Sprintf("-Dhttp.proxyHost=%s -Dhttp.proxyPort=%s -Dhttps.proxyHost=%s -Dhttps.proxyPort=%s", host, port, host, port)
	}
	if config.Connector != "" {
		out["GIT_SSH_COMMAND"] = fmt.Sprintf("ssh -o 'ProxyCommand=%s connect %%h %%p'", config.Connector)
	}
	return out
}

// javaOptions is the variable in which every JVM finds options.
const javaOptions = "JAVA_TOOL_OPTIONS"

// surroundings are the variables that the egress gate brings along. They do not
// change, except for those of the certificates.
type surroundings struct {
	proxy map[string]string
	trust *trust
}

// under gives the variables that stand below a command's own: whoever names one,
// in capitals or not, has said what the pair is.
func (s surroundings) under(own map[string]string) map[string]string {
	certificates := s.trust.variables()
	if len(s.proxy)+len(certificates) == 0 {
		return nil
	}
	out := maps.Clone(s.proxy)
	if out == nil {
		out = map[string]string{}
	}
	for name, value := range certificates {
		if name == javaOptions && out[name] != "" {
			value = out[name] + " " + value
		}
		out[name] = value
	}
	maps.DeleteFunc(out, func(name, _ string) bool {
		for _, spelling := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
			if _, said := own[spelling]; said {
				return true
			}
		}
		return false
	})
	return out
}
