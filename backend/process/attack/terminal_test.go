//go:build linux

package attack_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// process-tier 1.7 "TIOCSTI on inherited tty fd and /dev/tty"; attacks 9 and its
// test "high bits in ioctl".
func TestTerminal(t *testing.T) {
	t.Parallel()
	b := shared(t)
	// Neither the agent nor a command has a terminal or is in a session from
	// outside, which shows as number 0.
	for _, process := range []string{"1", "self"} {
		stat := output(t, b, "cat", "/proc/"+process+"/stat")
		fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		if session, terminal := fields[3], fields[4]; session == "0" || process == "1" && session != "1" || terminal != "0" {
			t.Errorf("process %s: session %s, terminal %s", process, session, terminal)
		}
	}
	v := attack(t, b, "terminal")
	v.of("TIOCSTI").blocked(t, "EPERM", "EBADF")
	v.of("TIOCLINUX").blocked(t, "EPERM", "EBADF")
	v.blocked(t, "EPERM", "EBADF", "ENOTTY", "EINVAL", "ENXIO", "ENOENT", "EACCES", "EIO")
}

// onTerminal makes the test program play a host that has a terminal.
const onTerminal = "BERM_TEST_ON_TERMINAL"

// TestHostWithATerminal is not a test: it is the other process of
// TestCallersTerminal.
func TestHostWithATerminal(t *testing.T) {
	if os.Getenv(onTerminal) == "" {
		t.Skip("it is started by another test")
	}
	waiting := func() int {
		n, err := unix.IoctlGetInt(0, unix.TIOCINQ)
		if err != nil {
			t.Fatalf("standard input is no terminal: %v", err)
		}
		return n
	}
	// The control: on this terminal the host itself can type, where the kernel has
	// the call at all.
	letter := []byte{'x'}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&letter[0]))); errno == 0 {
		if waiting() != 1 {
			t.Error("control: what was typed does not arrive")
		}
		if _, err := unix.Read(0, letter); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Logf("control: this kernel has no TIOCSTI: %v", errno)
	}
	v := attack(t, shared(t), "terminal")
	v.blocked(t, "EPERM", "EBADF", "ENOTTY", "EINVAL", "ENXIO", "ENOENT", "EACCES", "EIO")
	if n := waiting(); n != 0 {
		t.Errorf("%d bytes were typed into the caller's terminal", n)
	}
}

// The caller's own terminal, as its standard streams and its controlling one.
func TestCallersTerminal(t *testing.T) {
	t.Parallel()
	prepare(t)
	master, slave := terminalPair(t)
	host := exec.CommandContext(bounded(t), "/proc/self/exe", "-test.run=^TestHostWithATerminal$", "-test.short", "-test.v")
	host.Env = append(os.Environ(), onTerminal+"=1", "BERM_TEST_AGENT="+stage.agent, "BERM_TEST_ATTACK="+stage.payload)
	host.Stdin, host.Stdout, host.Stderr = slave, slave, slave
	host.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	// Reading ends with an error when the last holder of the other side is gone.
	said := make(chan []byte, 1)
	go func() {
		text, _ := io.ReadAll(master)
		said <- text
	}()
	if err := host.Wait(); err != nil {
		t.Errorf("%v\n%s", err, <-said)
	}
}

// terminalPair makes a terminal without echo and line editing.
func terminalPair(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	settings, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	settings.Lflag &^= unix.ECHO | unix.ICANON
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, settings); err != nil {
		t.Fatal(err)
	}
	return master, slave
}
