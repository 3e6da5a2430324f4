// Package planes has what links of every kind share about the two planes: which
// one a request is for, how a server gets a plane's streams, and how errors of a
// link are told.
package planes

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// Of gives the plane that a request's URL names, link.DataHost or
// link.ControlHost; only these two exact names exist. The error is Invalid.
func Of(op string, req *http.Request) (host string, err error) {
	switch {
	case req.URL == nil || req.URL.Scheme != "http":
		return "", errdefs.New(errdefs.Invalid, op, "the URL's scheme is not http")
	case strings.Trim(req.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "":
		return "", errdefs.New(errdefs.Invalid, op, fmt.Sprintf("the method %q is not one", req.Method))
	case req.URL.Host == link.DataHost, req.URL.Host == link.ControlHost:
		return req.URL.Host, nil
	}
	return "", errdefs.New(errdefs.Invalid, op, fmt.Sprintf("the URL's host %q is not a plane", req.URL.Host))
}
