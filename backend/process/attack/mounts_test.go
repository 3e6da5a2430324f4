//go:build linux

package attack_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/driver"
)

// stagehand is the uid of the user without privileges that root's tests play.
const stagehand = 61234

// Variables that make the test program play a part, each with its value.
const (
	// mountsMarker: the caller whose directory it is.
	mountsMarker = "BERM_TEST_MOUNTS"
	// uploadsMarker: what the caller mounts, "" for nothing.
	uploadsMarker = "BERM_TEST_MOUNTS_UPLOADS"
	// mounterMarker: the host that mounts something there, "host inside uid".
	mounterMarker = "BERM_TEST_MOUNTER"
)

// TestSandboxAmongMounts is not a test: it is the caller of TestLaterMountsStayOut.
// It makes a sandbox, waits for a line, and then runs that inside.
func TestSandboxAmongMounts(t *testing.T) {
	dir := os.Getenv(mountsMarker)
	if dir == "" || os.Getenv(mounterMarker) != "" {
		t.Skip("it is started by another test")
	}
	config := berm.Config{Agent: berm.AgentProgram{Path: filepath.Join(dir, "agent")}, StateDir: filepath.Join(dir, "state")}
	p, err := berm.Open(bounded(t), process.Config{}, config)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var layout berm.Layout
	if uploads := os.Getenv(uploadsMarker); uploads != "" {
		layout.Uploads = driver.HostVolume(uploads)
	}
	sb, err := p.Create(bounded(t), berm.CreateOptions{Layout: &layout})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	fmt.Println("ready")
	script, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("inside: %s\n", strings.Join(strings.Fields(string(res.Stdout)), " "))
}

// TestLaterMountsStayOut: what the host mounts below a source or below /usr, while a
// sandbox runs, does not appear inside. On most hosts all mounts are shared ones, and
// bubblewrap's are their slaves.
func TestLaterMountsStayOut(t *testing.T) {
	t.Parallel()
	prepare(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can mount; as root this is tested for callers without privileges too")
	}
	for name, c := range map[string]struct {
		uid  int
		name string // of the place
	}{
		"root/uploads": {0, "uploads"}, "root/usr": {0, "usr"}, "user/uploads": {stagehand, "uploads"}, "user/usr": {stagehand, "usr"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := wing(t, c.uid)
			host, inside := "/usr/local", "/usr/local"
			if c.name == "uploads" {
				host, inside = filepath.Join(dir, "shared/uploads/sub"), "/mnt/user-data/uploads/sub"
			}
			if err := os.MkdirAll(host, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestHostThatMounts$", "-test.v")
			cmd.Env = append(os.Environ(), mountsMarker+"="+dir, fmt.Sprintf("%s=%s %s %d", mounterMarker, host, inside, c.uid))
			// With this flag the runtime makes all mounts private too.
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "\ninside: mounts 0 end\n") {
				t.Errorf("after the host has mounted something at %s: %v\n%s", host, err, out)
			}
		})
	}
}

// TestHostThatMounts is not a test: it is the host of TestLaterMountsStayOut, with
// mounts of its own.
func TestHostThatMounts(t *testing.T) {
	var host, inside string
	var uid int
	if n, _ := fmt.Sscan(os.Getenv(mounterMarker), &host, &inside, &uid); n != 3 {
		t.Skip("it is started by another test")
	}
	said, err := amongMounts(os.Getenv(mountsMarker), host, inside, uid)
	if err != nil {
		t.Fatalf("%s: %v", said, err)
	}
	fmt.Println(said)
}

// wing is a directory that a caller of its own uid can use, with the programs.
func wing(t *testing.T, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berm-mounts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	for to, from := range map[string]string{"agent": stage.agent, "test": os.Args[0]} {
		// By another process: what this one has open for writing, a fork of a test
		// beside it may still have when it is executed.
		program := filepath.Join(dir, to)
		if err := errors.Join(exec.Command("cp", from, program).Run(), os.Chmod(program, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(dir, "own")
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(own, 0o700), os.Chown(own, uid, uid), os.Chown(dir, uid, uid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// amongMounts makes a mount a shared one, starts a caller, and mounts a file system
// at host while that caller's sandbox runs. It gives what the sandbox saw at inside.
func amongMounts(dir, host, inside string, uid int) (string, error) {
	shared := filepath.Dir(host) // /usr, or the source
	if err := errors.Join(
		unix.Mount(shared, shared, "", unix.MS_BIND|unix.MS_REC, ""), unix.Mount("", shared, "", unix.MS_SHARED, ""),
	); err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(dir, "test"), "-test.run=^TestSandboxAmongMounts$", "-test.v")
	own := filepath.Join(dir, "own")
	cmd.Env = append(os.Environ(), mounterMarker+"=", "HOME="+own, "TMPDIR="+own, "XDG_RUNTIME_DIR="+own)
	if host != inside {
		cmd.Env = append(cmd.Env, uploadsMarker+"="+shared)
	}
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	said, err := converse(in, bufio.NewScanner(out), host, inside)
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	return said, errors.Join(err, cmd.Wait())
}

func converse(in io.Writer, lines *bufio.Scanner, host, inside string) (string, error) {
	if line, err := awaitLine(lines, "ready"); err != nil {
		return line, err
	}
	if err := unix.Mount("none", host, "tmpfs", 0, "mode=777"); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(host, "secret"), []byte("secret"), 0o644); err != nil {
		return "", err
	}
	script := `echo mounts $(grep -c ' %[1]s ' /proc/self/mountinfo); cat %[1]s/secret; touch %[1]s/written && echo written; echo end`
	if _, err := fmt.Fprintf(in, script+"\n", inside); err != nil {
		return "", err
	}
	return awaitLine(lines, "inside: ")
}

// awaitLine skips the test program's own lines.
func awaitLine(lines *bufio.Scanner, prefix string) (string, error) {
	var seen []string
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), prefix) {
			return lines.Text(), nil
		}
		seen = append(seen, lines.Text())
	}
	return strings.Join(seen, "; "), errors.New("it ended before that")
}
