//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func mountFamily() map[string]attack {
	return map[string]attack{"host-paths": hostPaths, "reopen": reopen, "cross-links": crossLinks, "move-mounts": moveMounts}
}

// hostPaths reads a file of the host by every way round the mounts that a path can
// take: host-paths SECRET MOUNT... The mounts begin with one that is writable.
func hostPaths(r *report, args []string) error {
	if len(args) < 2 {
		return errors.New("host-paths SECRET MOUNT")
	}
	secret, mounts := args[0], args[1:]
	read := func(name string) {
		data, err := firstBytes(name)
		r.add(name, err, data)
	}
	up := strings.Repeat("../", 30)
	read(secret)
	for _, root := range []string{"/proc/self/root", "/proc/thread-self/root", "/proc/1/root", "/proc/self/cwd/" + up, "/proc/1/cwd/" + up, "/dev/fd/../root"} {
		read(root + secret)
	}
	for i, mount := range mounts {
		read(filepath.Join(mount, "link-abs")) // planted by the host's side, before
		read(mount + "/" + up + secret)
		read(mount + "/.." + secret)
		r.fromDescriptor(mount, secret, up)
		if i > 0 {
			continue
		}
		for n, target := range []string{secret, up + secret, "/proc/self/root" + secret, "/proc/1/root" + secret, "/proc/self/cwd/" + up + secret} {
			link := filepath.Join(mount, fmt.Sprint("reach-", n))
			_ = os.Remove(link)
			if err := os.Symlink(target, link); err != nil {
				return err
			}
			read(link)
			read("/proc/self/root" + link)
		}
	}
	for fd := range 12 {
		read(fmt.Sprintf("/proc/self/fd/%d/%s%s", fd, up, secret))
		read(fmt.Sprintf("/proc/1/fd/%d/%s%s", fd, up, secret))
	}
	return nil
}

// fromDescriptor goes up from an open directory, by the descriptor and by its name
// in /proc, also after a change of the working directory.
func (r *report) fromDescriptor(mount, secret, up string) {
	dir, err := unix.Open(mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		r.add("open "+mount, err)
		return
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, up+secret, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	r.add("openat from "+mount, err)
	data, err := firstBytes(fmt.Sprintf("/proc/self/fd/%d/%s%s", dir, up, secret))
	r.add("descriptor of "+mount, err, data)
	if err := unix.Fchdir(dir); err != nil {
		r.add("fchdir "+mount, err)
		return
	}
	data, err = firstBytes(up + secret)
	r.add("up from "+mount, err, data)
	_ = unix.Chdir("/")
}

// firstBytes reads the beginning of a file, without waiting for anybody.
func firstBytes(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 100))
	return string(data), err
}

// reopen opens each file for reading, or only as a path, and tries to get writing
// out of that: by its name in /proc, a new link, a shared mapping, and metadata.
func reopen(r *report, files []string) error {
	for _, name := range files {
		for how, flags := range map[string]int{"read": unix.O_RDONLY, "path": unix.O_PATH} {
			fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			magic := fmt.Sprintf("/proc/self/fd/%d", fd)
			say := func(what string, err error) { r.add(fmt.Sprintf("%s by %s of %s", what, how, name), err) }
			for what, mode := range map[string]int{
				"write": unix.O_WRONLY, "append": unix.O_WRONLY | unix.O_APPEND, "read-write": unix.O_RDWR, "truncate": unix.O_WRONLY | unix.O_TRUNC,
			} {
				say(what, withFile(magic, mode, 0, nil))
			}
			say("chmod", unix.Chmod(magic, 0o777))
			say("chown", unix.Chown(magic, os.Getuid(), os.Getgid()))
			say("attribute", unix.Setxattr(magic, "user.attack", []byte("x"), 0))
			say("times", unix.UtimesNanoAt(unix.AT_FDCWD, magic, []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0))
			say("link", unix.Linkat(unix.AT_FDCWD, magic, unix.AT_FDCWD, filepath.Join(filepath.Dir(name), "new-name"), unix.AT_SYMLINK_FOLLOW))
			if flags == unix.O_RDONLY {
				_, err = unix.Mmap(fd, 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED)
				say("mapping", err)
				say("ftruncate", unix.Ftruncate(fd, 0))
				say("fallocate", unix.Fallocate(fd, 0, 0, 1))
			}
			_ = unix.Close(fd)
		}
	}
	return nil
}

// crossLinks links and moves files from one directory into another: FROM-FILE...
// then "--" then TO-DIRECTORY...
func crossLinks(r *report, args []string) error {
	var from, to []string
	for i, arg := range args {
		if arg == "--" {
			from, to = args[:i], args[i+1:]
		}
	}
	if len(from) == 0 || len(to) == 0 {
		return errors.New("cross-links FILE -- DIRECTORY")
	}
	n := 0
	for _, dir := range to {
		for _, file := range from {
			if filepath.Dir(file) == dir {
				continue
			}
			n++
			target := filepath.Join(dir, fmt.Sprint("crossed-", n))
			what := file + " to " + dir
			r.add("link "+what, unix.Link(file, target))
			r.add("link by descriptor "+what, withFile(file, unix.O_PATH, 0, func(fd int) error {
				return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, target, unix.AT_SYMLINK_FOLLOW)
			}))
			r.add("rename "+what, unix.Rename(file, target))
			r.add("exchange "+what, unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE))
		}
	}
	return nil
}

// moveMounts removes, renames and covers each mount point.
func moveMounts(r *report, mounts []string) error {
	if len(mounts) < 2 {
		return errors.New("move-mounts WRITABLE MOUNT")
	}
	victim := filepath.Join(mounts[0], "cover")
	if err := os.MkdirAll(victim, 0o755); err != nil {
		return err
	}
	for _, mount := range mounts {
		r.add("rmdir "+mount, unix.Rmdir(mount))
		r.add("unlink "+mount, unix.Unlink(mount))
		r.add("rename "+mount, unix.Rename(mount, mount+"-moved"))
		r.add("rename into the writable one "+mount, unix.Rename(mount, filepath.Join(mounts[0], "taken")))
		r.add("cover "+mount, unix.Rename(victim, mount))
		r.add("exchange "+mount, unix.Renameat2(unix.AT_FDCWD, victim, unix.AT_FDCWD, mount, unix.RENAME_EXCHANGE))
		// What lies in the sandbox's own /tmp may be moved with it: nothing else is
		// there to be led astray.
		parent := filepath.Dir(mount)
		if parent == "/" || strings.HasPrefix(parent, "/tmp") {
			continue
		}
		r.add("rename the parent of "+mount, unix.Rename(parent, parent+"-moved"))
		r.add("link beside "+mount, os.Symlink("/etc", parent+"/beside"))
	}
	return nil
}
