package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
)

func secretsGroup() group {
	return group{name: "secrets", alone: true, behaviours: []behaviour{
		{"not-in-arguments", secretsNotInArguments},
		{"host-environment", secretsHostEnvironment},
	}}
}

// secretsNotInArguments: a value of the environment is in no process's command
// line, on neither side, at no time.
func secretsNotInArguments(t *testing.T, s *suite) {
	p := s.open(t, func(*berm.Config) {})
	secret := unique()
	// The whole host is scanned while sandboxes are made and commands run.
	stop := make(chan struct{})
	found := make(chan string, 1)
	go func() {
		for {
			if hit := argumentsWith(secret); hit != "" {
				found <- hit
				return
			}
			select {
			case <-stop:
				found <- ""
				return
			default:
			}
		}
	}()
	for range 3 {
		sb := create(t, p, berm.CreateOptions{Env: map[string]string{"SECRET_A": secret}})
		command := shell(`[ "$SECRET_A" = "$SECRET_B" ] && sleep 0.2 && cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '`)
		command.Env = map[string]string{"SECRET_B": secret}
		res, err := sb.Exec(bounded(t), command)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Stdout) == 0 {
			t.Error("the command did not get its environment")
		}
		if strings.Contains(string(res.Stdout), secret) {
			t.Error("the secret is in a command line inside")
		}
		destroyNow(t, sb)
	}
	close(stop)
	if hit := <-found; hit != "" {
		t.Errorf("the secret is in a command line: %s", hit)
	}
}

// argumentsWith finds a process of this host with a word in its command line.
func argumentsWith(word string) string {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return ""
	}
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), word) {
			return path + " " + string(line)
		}
	}
	return ""
}

// secretsHostEnvironment: the caller's own environment is nowhere inside.
func secretsHostEnvironment(t *testing.T, s *suite) {
	secret := unique()
	t.Setenv("BERM_CONFORMANCE_SECRET", secret)
	p := s.open(t, func(*berm.Config) {})
	sb := create(t, p, berm.CreateOptions{})
	if got := sh(t, sb, "env"); strings.Contains(got, secret) {
		t.Error("the host's environment is a command's")
	}
	if !s.declared(t).Isolation.Processes {
		return // all processes of the host can be seen, the caller among them
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := sb.Exec(ctx, shell(`cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo 2>/dev/null; ls -l /proc/[0-9]*/fd 2>/dev/null; exit 0`))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(res.Stdout), secret) {
		t.Error("the host's environment can be read inside")
	}
}
