//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func plantFamily() map[string]attack {
	return map[string]attack{
		"plant": plant, "set-id": setID, "nodes": nodes, "locks": locks, "deep": deep, "many": many, "odd-names": oddNames,
	}
}

// plant leaves in a directory what a reader could hang on or be led away by. The
// further arguments are paths that links lead to.
func plant(r *report, args []string) error {
	if len(args) == 0 {
		return errors.New("plant DIRECTORY [TARGET]")
	}
	at := func(name string) string { return filepath.Join(args[0], name) }
	r.add("fifo", unix.Mkfifo(at("fifo"), 0o644))
	r.add("socket", socketAt(at("socket")))
	r.add("sparse", sparseAt(at("sparse"), 1<<42))
	r.add("closed", errors.Join(os.WriteFile(at("closed"), []byte("x"), 0), os.Mkdir(at("closed-dir"), 0)))
	targets := append([]string{
		"/", "/dev/zero", "/dev/full", "/dev/random", "/dev/tty", "/dev/ptmx", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/exe",
		"/proc/self/mem", "/proc/self/environ", "/proc/self/root", "/proc/self/cwd", "/proc/self/fd", "/proc/1/root", "/proc/1/environ",
		"/proc/1/fd/3", "/proc/kmsg", "/proc/self/pagemap", "loop", "../" + filepath.Base(args[0]), strings.Repeat("../", 40) + "etc/passwd",
		"fifo", "socket", "sparse",
	}, args[1:]...)
	for i, target := range targets {
		name := fmt.Sprint("link", i)
		if target == "loop" {
			name = "loop"
		}
		r.add("link to "+target, os.Symlink(target, at(name)))
	}
	return nil
}

// socketAt leaves a bound socket behind.
func socketAt(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Close(fd))
}

func sparseAt(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// setID makes a set-id file in each way that there is, in a directory. For a file
// of one's own and group, nothing but a filter forbids it.
func setID(r *report, args []string) error {
	if len(args) != 1 {
		return errors.New("set-id DIRECTORY")
	}
	n := 0
	fresh := func() string {
		n++
		return filepath.Join(args[0], fmt.Sprint("set-id", n))
	}
	file := func() string {
		name := fresh()
		_ = os.WriteFile(name, []byte("#!/bin/sh\n"), 0o755)
		return name
	}
	for _, bits := range []uint32{0o4755, 0o2755, 0o6755} {
		change := func(way string, err error) { r.add(fmt.Sprintf("%s %o", way, bits), err) }
		change("chmod", rawPath(unix.SYS_FCHMODAT, unix.AT_FDCWD, file(), uintptr(bits)))
		change("fchmodat2", rawPath(unix.SYS_FCHMODAT2, unix.AT_FDCWD, file(), uintptr(bits)))
		change("fchmod", withFile(file(), unix.O_RDONLY, 0, func(fd int) error { return unix.Fchmod(fd, bits) }))
		change("openat", withFile(fresh(), unix.O_CREAT|unix.O_WRONLY, bits, nil))
		change("openat exclusive", withFile(fresh(), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, bits, nil))
		change("tmpfile", tmpfile(args[0], fresh(), bits))
		change("mknod", unix.Mknodat(unix.AT_FDCWD, fresh(), unix.S_IFREG|bits, 0))
		change("fifo", unix.Mknodat(unix.AT_FDCWD, fresh(), unix.S_IFIFO|bits, 0))
		change("openat2", openat2(fresh(), bits))
		change("chmod of a directory", chmodDir(fresh(), bits))
		change("chmod by descriptor path", withFile(file(), unix.O_PATH, 0, func(fd int) error {
			return rawPath(unix.SYS_FCHMODAT, unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), uintptr(bits))
		}))
	}
	legacySetID(r, fresh, file)
	return nil
}

// rawPath makes a call of the form (directory, path, mode).
func rawPath(number uintptr, dir int, name string, mode uintptr) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall6(number, uintptr(dir), uintptr(unsafe.Pointer(p)), mode, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func withFile(name string, flags int, mode uint32, do func(fd int) error) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, mode)
	if err != nil {
		return err
	}
	if do != nil {
		err = do(fd)
	}
	return errors.Join(err, unix.Close(fd))
}

// tmpfile makes a file without a name and gives it one.
func tmpfile(dir, name string, bits uint32) error {
	return withFile(dir, unix.O_TMPFILE|unix.O_RDWR, bits, func(fd int) error {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	})
}

func openat2(name string, bits uint32) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: uint64(bits)})
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func chmodDir(name string, bits uint32) error {
	if err := unix.Mkdir(name, 0o755); err != nil {
		return err
	}
	return rawPath(unix.SYS_FCHMODAT, unix.AT_FDCWD, name, uintptr(bits))
}

// nodes makes device nodes and whiteouts in each way, in a directory.
func nodes(r *report, args []string) error {
	if len(args) != 1 {
		return errors.New("nodes DIRECTORY")
	}
	at := func(name string) string { return filepath.Join(args[0], name) }
	for name, device := range map[string][2]uint32{
		"null": {1, 3}, "memory": {1, 1}, "whiteout": {0, 0}, "disk": {8, 0}, "loop": {7, 0}, "console": {5, 1},
	} {
		number := int(unix.Mkdev(device[0], device[1]))
		r.add("character "+name, unix.Mknodat(unix.AT_FDCWD, at("c-"+name), unix.S_IFCHR|0o666, number))
		r.add("block "+name, unix.Mknodat(unix.AT_FDCWD, at("b-"+name), unix.S_IFBLK|0o666, number))
	}
	if err := os.WriteFile(at("moved"), nil, 0o644); err != nil {
		return err
	}
	r.add("whiteout by rename", unix.Renameat2(unix.AT_FDCWD, at("moved"), unix.AT_FDCWD, at("moved-on"), unix.RENAME_WHITEOUT))
	r.add("control fifo", unix.Mknodat(unix.AT_FDCWD, at("control-fifo"), unix.S_IFIFO|0o644, 0))
	r.add("control rename", unix.Renameat2(unix.AT_FDCWD, at("moved"), unix.AT_FDCWD, at("moved-on"), unix.RENAME_NOREPLACE))
	return nil
}

// locks takes every kind of lock and lease on files and holds them until its input
// ends. What it reports goes out first.
func locks(r *report, files []string) error {
	for _, name := range files {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
			f, err = os.Open(name)
		}
		if err != nil {
			return err
		}
		fd := f.Fd() // kept open until the end
		lease := func(kind int) error {
			_, err := unix.FcntlInt(fd, unix.F_SETLEASE, kind)
			return err
		}
		r.add("lease for writing", lease(unix.F_WRLCK))
		r.add("lease for reading", lease(unix.F_RDLCK))
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		r.add("record lock", unix.FcntlFlock(fd, unix.F_SETLK, &lock))
		lock = unix.Flock_t{Type: unix.F_WRLCK}
		r.add("lock of the description", unix.FcntlFlock(fd, unix.F_OFD_SETLK, &lock))
		r.add("flock", unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB))
	}
	return r.held()
}

// deep makes so many directories, each in the one before.
func deep(r *report, args []string) error {
	if len(args) != 2 {
		return errors.New("deep DIRECTORY COUNT")
	}
	count, err := number(args, 1)
	if err != nil {
		return err
	}
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	for range count {
		if err := errors.Join(os.Mkdir("d", 0o755), unix.Chdir("d")); err != nil {
			return err
		}
	}
	r.add("deep", os.WriteFile("bottom", nil, 0o644))
	return nil
}

// many makes so many empty files.
func many(r *report, args []string) error {
	if len(args) != 2 {
		return errors.New("many DIRECTORY COUNT")
	}
	count, err := number(args, 1)
	if err != nil {
		return err
	}
	for i := range count {
		if err := withFile(filepath.Join(args[0], fmt.Sprint("f", i)), unix.O_CREAT|unix.O_WRONLY, 0o644, nil); err != nil {
			return err
		}
	}
	r.add("many", nil)
	return nil
}

// oddNames makes files whose names a terminal, a log, a shell or a decoder takes
// for something else.
func oddNames(r *report, args []string) error {
	if len(args) != 1 {
		return errors.New("odd-names DIRECTORY")
	}
	names := []string{
		"line\nfeed", "\x1b[31mred\x1b[0m", "\x1b]0;title\a", "bell\a", "back\b", "return\rx", "tab\t", "del\x7f", "c1\u009b31m",
		"\xff\xfe", "\xc3(", "\xed\xa0\x80", "a\u202eb", "\u2028", "-rf", " ", "~", "*", "$(id)", "`id`", "a;b", "a|b", "\\", "\\134", "\"", "'",
		"...", ".. ", strings.Repeat("n", 255), strings.Repeat("\xff", 255), "{\"name\":1}", "%s%n", "\u00e9", "e\u0301",
	}
	for b := byte(1); b < 0x20; b++ {
		names = append(names, "control"+string([]byte{b}))
	}
	for _, name := range names {
		r.add(fmt.Sprintf("%q", name), os.WriteFile(filepath.Join(args[0], name), []byte(name), 0o644))
	}
	return nil
}
