package drivertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/berm-dev/berm"
)

func concurrencyGroup() group {
	return group{name: "concurrency", behaviours: []behaviour{
		{"commands", concurrencyCommands},
		{"sandboxes", concurrencySandboxes},
		{"files", concurrencyFiles},
	}}
}

// concurrencyCommands: fifty commands at once, each with its own words.
func concurrencyCommands(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			token := fmt.Sprintf("token-%d-%s", i, unique())
			command := shell(`read -r line; i=0; while [ $i -lt 50 ]; do echo "$1 $line"; echo "$TOKEN" >&2; i=$((i+1)); done; exit "$2"`, token, itoa(i))
			command.Stdin, command.Env = strings.NewReader("in "+token+"\n"), map[string]string{"TOKEN": token}
			res, err := sb.Exec(bounded(t), command)
			if err != nil {
				t.Errorf("command %d: %v", i, err)
				return
			}
			if exitCode(res) != itoa(i) {
				t.Errorf("command %d: exit code %s", i, exitCode(res))
			}
			equal(t, "stdout of "+token, res.Stdout, []byte(strings.Repeat(token+" in "+token+"\n", 50)))
			equal(t, "stderr of "+token, res.Stderr, []byte(strings.Repeat(token+"\n", 50)))
		})
	}
	wg.Wait()
}

// concurrencySandboxes: sandboxes made and destroyed at once do not see each
// other's files.
func concurrencySandboxes(t *testing.T, s *suite) {
	p := s.provider(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			sb, err := p.Create(bounded(t), berm.CreateOptions{})
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			res, err := sb.Exec(bounded(t), shell(`echo "$1" > file; sleep 0.1; cat *`, sb.ID()))
			if err != nil || string(res.Stdout) != sb.ID()+"\n" {
				t.Errorf("sandbox %s: %v, %v", sb.ID(), res, err)
			}
			destroyNow(t, sb)
		})
	}
	wg.Wait()
}

func concurrencyFiles(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			name, data := fmt.Sprintf("dir/file-%d", i), random(100<<10+i)
			for range 5 {
				if err := sb.Files().WriteFile(bounded(t), name, data, 0o644); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				got, err := sb.Files().ReadFile(bounded(t), name)
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				equal(t, name, got, data)
			}
		})
	}
	wg.Wait()
}
