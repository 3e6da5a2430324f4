//go:build linux

package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func terminalFamily() map[string]attack {
	return map[string]attack{"terminal": terminal}
}

// terminal types into every terminal that there could be: the standard streams,
// the controlling one, one of its own.
func terminal(r *report, _ []string) error {
	master, slave, err := pseudoTerminal()
	r.add("control a terminal of its own", err)
	if err != nil {
		return nil //nolint:nilerr // it is in the report
	}
	defer func() { _, _ = master.Close(), slave.Close() }()
	for _, fd := range []uintptr{0, 1, 2, master.Fd(), slave.Fd()} {
		for _, high := range highs() {
			name := fmt.Sprintf("of %d %#x", fd, high)
			r.call("TIOCSTI "+name, unix.SYS_IOCTL, fd|high, unix.TIOCSTI|high, r.text("x"))
			for _, code := range []string{"\x02", "\x03", "\x0b"} { // select, paste, blank
				r.call("TIOCLINUX "+name, unix.SYS_IOCTL, fd|high, unix.TIOCLINUX|high, r.text(code))
			}
		}
	}
	r.call("TIOCCONS", unix.SYS_IOCTL, master.Fd(), unix.TIOCCONS, 0)
	r.call("TIOCVHANGUP", unix.SYS_IOCTL, slave.Fd(), unix.TIOCVHANGUP, 0)
	for _, name := range []string{"/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0", "/dev/vcs", "/proc/self/fd/0"} {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == nil {
			// The null device can be opened; a terminal it is not.
			_, err = unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
			_ = unix.Close(fd)
		}
		r.add("open "+name, err)
	}
	for fd := range 3 {
		_, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		r.add(fmt.Sprintf("stream %d is a terminal", fd), err)
	}
	_, err = unix.IoctlGetWinsize(int(master.Fd()), unix.TIOCGWINSZ)
	r.add("control size of the own", err)
	return nil
}
