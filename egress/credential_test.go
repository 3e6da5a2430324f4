package egress_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

const secret = "s3cr3t-value-0123456789"

func TestCredentialFaults(t *testing.T) {
	t.Parallel()
	source := egress.Source(func(context.Context) (string, error) { return secret, nil })
	good := egress.Credential{Host: "api.example.com", Value: secret}
	for name, x := range map[string]struct {
		change func(*egress.Credential)
		want   string
	}{
		"no value":           {func(c *egress.Credential) { c.Value = "" }, "exactly one"},
		"value and source":   {func(c *egress.Credential) { c.Source = source }, "exactly one"},
		"line feed":          {func(c *egress.Credential) { c.Value += "\nx: y" }, "cannot be in a header"},
		"line feed at end":   {func(c *egress.Credential) { c.Value += "\n" }, "cannot be in a header"},
		"NUL":                {func(c *egress.Credential) { c.Value += "\x00" }, "cannot be in a header"},
		"not ASCII":          {func(c *egress.Credential) { c.Value += "é" }, "cannot be in a header"},
		"prefix":             {func(c *egress.Credential) { c.Prefix = "a\r\nb" }, "cannot be in a header"},
		"space":              {func(c *egress.Credential) { c.Value += " " }, "space around"},
		"header":             {func(c *egress.Credential) { c.Header = "X Y" }, "name is none"},
		"header line":        {func(c *egress.Credential) { c.Header = "X\r\nY" }, "name is none"},
		"host header":        {func(c *egress.Credential) { c.Header = "hOST" }, "gate itself"},
		"framing":            {func(c *egress.Credential) { c.Header = "transfer-encoding" }, "gate itself"},
		"hop":                {func(c *egress.Credential) { c.Header = "berm-hop" }, "gate itself"},
		"id":                 {func(c *egress.Credential) { c.ID = "a\x1b[31m" }, "id"},
		"method":             {func(c *egress.Credential) { c.Methods = []string{"get"} }, "capitals"},
		"method with space":  {func(c *egress.Credential) { c.Methods = []string{"GET /"} }, "capitals"},
		"empty method":       {func(c *egress.Credential) { c.Methods = []string{""} }, "capitals"},
		"trace":              {func(c *egress.Credential) { c.Methods = []string{"GET", "TRACE"} }, "never carries"},
		"connect":            {func(c *egress.Credential) { c.Methods = []string{"CONNECT"} }, "never carries"},
		"relative path":      {func(c *egress.Credential) { c.Paths = []string{"v1"} }, "absolute"},
		"empty path":         {func(c *egress.Credential) { c.Paths = []string{""} }, "absolute"},
		"dots in path":       {func(c *egress.Credential) { c.Paths = []string{"/v1/../admin"} }, "clean"},
		"double slash":       {func(c *egress.Credential) { c.Paths = []string{"/v1//x"} }, "clean"},
		"escape in path":     {func(c *egress.Credential) { c.Paths = []string{"/v1/%2e"} }, "clean"},
		"query in path":      {func(c *egress.Credential) { c.Paths = []string{"/v1?x"} }, "clean"},
		"short placeholder":  {func(c *egress.Credential) { c.Placeholder = "abc" }, "placeholder"},
		"placeholder spaces": {func(c *egress.Credential) { c.Placeholder = "abc defgh" }, "placeholder"},
		"placeholder=value":  {func(c *egress.Credential) { c.Placeholder = secret }, "has the value"},
		"placeholder in it":  {func(c *egress.Credential) { c.Placeholder = secret[:10] }, "has the value"},
		"no host":            {func(c *egress.Credential) { c.Host = "" }, "host"},
		"wildcard host":      {func(c *egress.Credential) { c.Host = "*.example.com" }, "host"},
		"suffix host":        {func(c *egress.Credential) { c.Host = ".example.com" }, "host"},
		"host with port":     {func(c *egress.Credential) { c.Host = "api.example.com:443" }, "host"},
		"upper-case host":    {func(c *egress.Credential) { c.Host = "API.example.com" }, "write api.example.com"},
		"address":            {func(c *egress.Credential) { c.Host = "93.184.216.34" }, "address"},
		"IPv6 address":       {func(c *egress.Credential) { c.Host = "2606:4700::1111" }, "address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good
			x.change(&c)
			_, err := egress.Compile(&egress.Policy{Credentials: []egress.Credential{c}}, 1)
			if !errors.Is(err, errdefs.Invalid) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want %q", err, x.want)
			}
			if err != nil && strings.Contains(err.Error(), secret[:8]) {
				t.Errorf("the value is in the error: %v", err)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	p := &egress.Policy{
		Allow: []string{"api.example.com:8443", "tcp://.example.com:443"},
		Credentials: []egress.Credential{
			{ID: "one", Host: "api.example.com", Value: secret, Methods: []string{"GET", "POST"}, Paths: []string{"/", "/v1", "/v2/"}, Prefix: "Bearer ", Placeholder: "berm-placeholder"},
			{Host: "bücher.example", Value: secret, Header: "X-Api-Key"},
		},
	}
	r := compile(t, p)
	for _, x := range []struct{ authority, reason, rule string }{
		{"api.example.com:8443", "rule", "api.example.com:8443"},
		{"api.example.com:443", "rule", "tcp://.example.com:443"},
		{"api.example.com:80", "credential", "one"},
		{"xn--bcher-kva.example:443", "credential", "xn--bcher-kva.example"},
	} {
		got, v := judge(r, x.authority)
		// A wide tcp rule does not take a brokered host from the gate's eyes.
		if got != "A" || string(v.Reason) != x.reason || v.Rule != x.rule || !v.Brokered || v.Opaque {
			t.Errorf("%s: %s %+v", x.authority, got, v)
		}
	}
	if got, v := judge(r, "api.example.com:22"); got != "port" || v.Brokered {
		t.Errorf("port 22: %s %+v", got, v)
	}
	ssh := compile(t, &egress.Policy{Allow: []string{"tcp://a.example.com:22"}, Credentials: []egress.Credential{{Host: "a.example.com", Value: "value-of-x"}}})
	if got, v := judge(ssh, "a.example.com:22"); got != "A" || v.Brokered || !v.Opaque {
		t.Errorf("ssh: %s %+v", got, v)
	}
	if got, v := judge(ssh, "a.example.com:443"); got != "A" || !v.Brokered || v.Opaque {
		t.Errorf("https beside ssh: %s %+v", got, v)
	}
	if c, ok := r.Credential("xn--bcher-kva.example"); !ok || c.Header != "X-Api-Key" || len(r.Credentials()) != 2 {
		t.Errorf("%+v", c)
	}
	twice := &egress.Policy{Credentials: []egress.Credential{{ID: "a", Host: "a.example.com", Value: "value-of-x"}, {ID: "b", Host: "a.example.com", Value: "value-of-x"}}}
	sameID := &egress.Policy{Credentials: []egress.Credential{{ID: "a", Host: "a.example.com", Value: "value-of-x"}, {ID: "a", Host: "b.example.com", Value: "value-of-x"}}}
	opaque := &egress.Policy{Allow: []string{"tcp://a.example.com:443"}, Credentials: []egress.Credential{{Host: "a.example.com", Value: "value-of-x"}}}
	for _, bad := range []*egress.Policy{twice, sameID, opaque} {
		if _, err := egress.Compile(bad, 1); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
