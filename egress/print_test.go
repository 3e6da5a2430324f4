package egress_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
)

// TestPrintsNoSecret: a policy that is printed does not have its secrets in it.
func TestPrintsNoSecret(t *testing.T) {
	t.Parallel()
	c := egress.Credential{ID: "api", Host: "api.example.com", Value: "hunter2hunter2"}
	p := egress.Policy{Credentials: []egress.Credential{c}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		for _, x := range []any{c, &c, p, &p} {
			text := fmt.Sprintf(verb, x)
			if strings.Contains(text, c.Value) || strings.Contains(text, fmt.Sprintf("%x", c.Value)) {
				t.Errorf("%s of %T is %s", verb, x, text)
			}
		}
	}
	if text := fmt.Sprintf("%+v", p); !strings.Contains(text, `credential "api" for "api.example.com"`) {
		t.Errorf("which one it is does not show: %s", text)
	}
}
