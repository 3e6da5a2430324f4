package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// onTerminal starts berm on a terminal of its own.
func onTerminal(t *testing.T, args ...string) (*os.File, *exec.Cmd) {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("bubblewrap is not installed")
	}
	conf := filepath.Join(t.TempDir(), "berm.yaml")
	if err := os.WriteFile(conf, []byte("tier: process\nstateDir: "+filepath.Join(t.TempDir(), "state")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(build(t, "github.com/berm-dev/berm/cmd/berm"), append([]string{args[0], "-c", conf}, args[1:]...)...)
	cmd.Env = append(os.Environ(), "BERM_AGENT="+build(t, "github.com/berm-dev/berm/cmd/berm-agent"))
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 101, Rows: 31})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file, cmd
}

// readUntil reads a terminal until it has shown a text.
func readUntil(t *testing.T, file *os.File, text string) string {
	t.Helper()
	var seen bytes.Buffer
	if err := file.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), text) {
		n, err := file.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			t.Fatalf("%q was not shown: %q, %v", text, seen.String(), err)
		}
	}
	return seen.String()
}

// TestRunOnATerminal: the command has the terminal's size and its changes, keys
// go to it as they are, interrupts too, and berm's own terminal is as before.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	file, cmd := onTerminal(t, "run", "--tty", "--", "sh", "-c", `stty size; trap 'echo interrupted' INT; while read -r line || true; do case $line in size) stty size ;; end) exit 5 ;; esac; done`)
	readUntil(t, file, "31 101\r\n")
	if err := pty.Setsize(file, &pty.Winsize{Cols: 90, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	shown := ""
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(shown, "20 90\r\n"); {
		if time.Now().After(deadline) {
			t.Fatalf("the change of size did not arrive: %q", shown)
		}
		if _, err := io.WriteString(file, "size\n"); err != nil {
			t.Fatal(err)
		}
		shown += readUntil(t, file, "\n")
	}
	if _, err := file.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	readUntil(t, file, "interrupted\r\n")
	if _, err := io.WriteString(file, "end\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, file) // to the end, which a terminal tells as an error
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 5 {
		t.Errorf("berm ended with %v", err)
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	file, cmd := onTerminal(t, "shell")
	if _, err := io.WriteString(file, "echo $((6*7)) $USER; exit 6\n"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, file, "42 user\r\n")
	_, _ = io.Copy(io.Discard, file)
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 6 {
		t.Errorf("berm ended with %v", err)
	}
}
