package config

import (
	"net/http"

	"github.com/berm-dev/berm/egress"
)

// URLResolver is urlResolver with a transport of the test's.
func URLResolver(address string, transport http.RoundTripper) egress.Resolver {
	return resolverOver(address, transport)
}
