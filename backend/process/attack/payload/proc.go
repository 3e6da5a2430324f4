//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func procFamily() map[string]attack {
	return map[string]attack{"sysctls": sysctls, "write-proc": writeProc, "masks": masks, "search": search, "escape": escape, "devices": devices}
}

// sysctls opens every one for writing, by every name of /proc; what opens gets
// its own value again.
func sysctls(r *report, _ []string) error {
	roots := []string{
		"/proc/sys", "/proc/self/root/proc/sys", "/proc/thread-self/root/proc/sys", fmt.Sprintf("/proc/%d/root/proc/sys", os.Getpid()),
		"/proc/self/cwd/../../../proc/sys",
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				r.rewrite(name)
			}
			return nil //nolint:nilerr // what cannot be read is of no use
		})
		if err != nil {
			return err
		}
	}
	_, err := os.ReadFile("/proc/sys/kernel/osrelease")
	r.add("control read", err)
	return nil
}

// rewrite opens a file for writing and writes what is in it already.
func (r *report) rewrite(name string) {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		value, readErr := os.ReadFile(name)
		if readErr == nil && len(value) > 0 {
			_, err = unix.Write(fd, value)
			r.add("write "+name, err, "it could be opened for writing")
			return
		}
	}
	r.add("open "+name, err)
}

// writeProc opens all else of /proc for writing, but what is the processes' own.
func writeProc(r *report, _ []string) error {
	return filepath.WalkDir("/proc", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // as for sysctls
		}
		if entry.IsDir() && filepath.Dir(name) == "/proc" {
			if _, err := strconv.Atoi(entry.Name()); err == nil || entry.Name() == "sys" {
				return fs.SkipDir
			}
		}
		if entry.Type().IsRegular() {
			fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			r.add("write "+name, err)
		}
		return nil
	})
}

// masks reads what container engines hide, and what tells about the host.
func masks(r *report, _ []string) error {
	for _, name := range []string{
		"kcore", "keys", "timer_list", "timer_stats", "sched_debug", "interrupts", "latency_stats", "kpagecount", "kpageflags",
		"kpagecgroup", "vmallocinfo", "slabinfo", "pagetypeinfo", "sysvipc/shm", "sysvipc/msg", "sysvipc/sem", "key-users", "mtrr",
	} {
		data, err := contentOf("/proc/" + name)
		// A heading tells nothing.
		if err == nil && bytes.Count(data, []byte("\n")) < 2 {
			err = io.EOF
		}
		r.add("read "+name, err)
	}
	r.open("open kmsg", "/proc/kmsg", unix.O_RDONLY) // to read it would take from the host's log
	for _, name := range []string{"acpi", "asound", "scsi"} {
		entries, err := os.ReadDir("/proc/" + name)
		if err == nil && len(entries) == 0 {
			err = io.EOF
		}
		r.add("list "+name, err)
	}
	for _, name := range []string{"/sys", "/sys/kernel", "/proc/self/root/sys/class", "/sys/fs/cgroup", "/sys/firmware", "/proc/sys/fs/binfmt_misc/status"} {
		_, err := os.Stat(name)
		r.add("find "+name, err)
	}
	_, err := contentOf("/proc/meminfo")
	r.add("control read", err)
	return nil
}

// contentOf reads the beginning of a file that may not end, or not begin.
func contentOf(name string) ([]byte, error) {
	// Without the runtime's poller, which waits for files that can be waited for.
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var out []byte
	for block := make([]byte, 1<<12); len(out) < 1<<20; {
		n, err := unix.Read(fd, block)
		if err != nil || n == 0 {
			return out, err
		}
		out = append(out, block[:n]...)
	}
	return out, nil
}

// search looks for a word, its first argument backwards, in all that can be
// read: every file and link of /proc that there is per process, the sandbox's
// own environment, and the trees that the other arguments name.
func search(r *report, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a word, backwards")
	}
	letters := []byte(args[0])
	slices.Reverse(letters)
	found := func(name string, data []byte) {
		if bytes.Contains(data, letters) {
			r.add("found in "+name, nil)
		}
	}
	own := fmt.Sprintf("/proc/%d", os.Getpid())
	looked := 0
	look := func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // closed to us
		case entry.IsDir() && (entry.Name() == "map_files" || entry.Name() == "net" && name != "/proc/self/net" || entry.Name() == "task" && !strings.HasPrefix(name, own)):
			return fs.SkipDir
		case entry.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			found(name, []byte(target))
		case entry.Type().IsRegular() && !slices.Contains([]string{"mem", "kmsg", "pagemap", "clear_refs"}, entry.Name()):
			data, _ := contentOf(name)
			found(name, data)
			looked++
		}
		return nil
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, root := range append(append(processes, "/proc/self/net", "/etc"), args[1:]...) {
		if err := filepath.WalkDir(root, look); err != nil {
			return err
		}
	}
	r.attempts = append(r.attempts, attempt{Name: "looked", Errno: "ENOENT", Detail: fmt.Sprint(looked, " files")})
	return nil
}

// escape opens a file of the host, its argument, by every way round the root.
func escape(r *report, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want a path, got %q", args)
	}
	up := strings.Repeat("/..", 20)
	for _, prefix := range []string{
		"", "/proc/self/root", "/proc/thread-self/root", fmt.Sprintf("/proc/self/task/%d/root", unix.Gettid()), "/proc/1/root", "/proc/1/cwd" + up,
		"/proc/self/root" + up, "/proc/self/cwd" + up, "/proc/self/fd/0" + up, "/proc/self/exe" + up, up, "/oldroot", "/newroot", "/.oldroot",
		"/proc/1/fd/3", "/dev/fd" + up, "/tmp" + up, "/proc/2/root", "/run" + up,
	} {
		_, err := os.ReadFile(prefix + args[0])
		r.add("read by "+prefix, err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	r.add("control open the root", err)
	for _, name := range []string{up[1:], args[0][1:], "proc/self/root" + up + args[0]} {
		fd, err := unix.Openat(root, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Openat(fd, strings.TrimPrefix(args[0], "/"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		r.add("open from the root "+name, err)
	}
	return nil
}

// devices makes and opens devices.
func devices(r *report, _ []string) error {
	entries, err := os.ReadDir("/dev")
	r.add("control list", err)
	harmless := []string{
		"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "core",
	}
	for _, e := range entries {
		if !slices.Contains(harmless, e.Name()) {
			r.add("there is "+e.Name(), nil)
		}
	}
	for name, mode := range map[string]uint32{"character": unix.S_IFCHR, "block": unix.S_IFBLK} {
		for _, dir := range []string{"/tmp", "/dev/shm", "/home/user", "."} {
			r.add(name+" device in "+dir, unix.Mknod(filepath.Join(dir, "attack-device"), mode|0o666, int(unix.Mkdev(1, 3))))
		}
	}
	r.add("a file in /dev", os.WriteFile("/dev/attack", []byte("x"), 0o600))
	return nil
}
