//go:build linux

package egress_test

import (
	"strings"
	"testing"

	"github.com/berm-dev/berm"
)

// testCloneThenClose is how to run what was fetched with a token and is not
// trusted: clone, end every process of that stage, deny all, and only then run
// it. It reaches nothing, and the token is nowhere. docs/egress.md shows it.
func (w *world) testCloneThenClose(t *testing.T) {
	token := newToken()
	b := w.box(t, policy(token))
	// What the stage starts beside the clone outlives it, with a connection that is
	// open.
	stage := b.sh(`set -e
		setsid sh -c 'while :; do curl -sS -m 60 -N https://held.pkg.example.org/held; curl -sS https://api.example.com/page; sleep 0.05; done' >/tmp/held 2>&1 &
		until grep -q more /tmp/held; do sleep 0.05; done
		git clone -q https://api.example.com/git/repo.git clone`)
	if !stage.Success() || len(w.web.carrying(token)) == 0 {
		t.Fatalf("the clone: %v %s", stage, clip(stage.Stderr))
	}
	others := `for f in /proc/[0-9]*/comm; do p=${f%/comm}; p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || cat $f; done 2>/dev/null | grep -E 'curl|sleep|git'`
	if res := b.sh(others); !strings.Contains(string(res.Stdout), "curl") {
		t.Fatalf("the stage has left nothing: %q", res.Stdout)
	}
	if res := b.sh(`kill -9 -1`); !res.Success() {
		t.Fatalf("end every process: %v %s", res, clip(res.Stderr))
	}
	if err := b.SetEgress(bounded(t), &berm.Egress{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process of the stage is left", func() bool { return !b.sh(others).Success() })
	before, records := len(w.web.carrying(token)), len(w.records.decisions(b.ID()))
	res := b.sh(`grep -q "` + fileText + `" clone/program && clone/program`)
	said := string(res.Stdout) + string(res.Stderr)
	if !res.Success() || strings.Count(said, "CONNECT tunnel failed, response 403") != 2 || strings.Contains(said, "the page of") {
		t.Errorf("%v: %s", res, said)
	}
	lacks(t, token, "what the program wrote", said)
	if after := len(w.web.carrying(token)); after != before {
		t.Errorf("%d requests with the token arrived afterwards", after-before)
	}
	for _, r := range w.records.decisions(b.ID())[records:] {
		if r.Allow {
			t.Errorf("on record: %+v", r)
		}
	}
	w.isNotInside(t, b, token)
}
