package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Bounds of what is copied out of the host's /etc.
const (
	maxEtcEntries = 20_000
	maxEtcBytes   = 64 << 20
	maxEtcDepth   = 12
	// maxClaims bounds the attempts to make a kit's directory.
	maxClaims = 64
)

// etcSelection is what a sandbox sees of the host's /etc: what the dynamic
// linker, shells, Java, Perl, Python, TLS, time and name services need. Files
// that may hold credentials (npmrc, pip.conf, gitconfig, wgetrc, environment,
// machine-id, ssh, shadow) are not here, and what the world cannot read on the
// host is left out wherever it lies.
func etcSelection() []string {
	return []string{
		"alternatives", "bash.bashrc", "chromium.d", "ca-certificates*", "crypto-policies", "debian_version", "ethertypes", "fonts",
		"gai.conf", "host.conf", "inputrc", "java*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias",
		"locale.conf", "localtime", "lsb-release", "magic", "magic.mime", "mime.types", "networks", "os-release", "perl",
		"pki", "profile", "profile.d", "protocols", "python3*", "redhat-release", "rpc", "services", "shells", "ssl",
		"terminfo", "timezone", "xattr.conf",
	}
}

// etcSynthesised are the files that berm writes itself.
func etcSynthesised(shell string) map[string]string {
	return map[string]string{
		"passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n" +
			"user:x:1000:1000:user:" + homePath + ":" + shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":    "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
		"hosts":    "127.0.0.1 localhost " + hostName + "\n::1 localhost ip6-localhost ip6-loopback\n",
		"hostname": hostName + "\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n" +
			"protocols: files\nservices: files\nethers: files\nrpc: files\n",
		"resolv.conf": "# There is no name service here.\n",
	}
}

// kit is a directory with what all sandboxes of a driver see read-only: `etc`,
// and an empty file and an empty directory to cover others with.
type kit struct {
	dir string
	// public: every uid can reach it by its path.
	public bool
	// lock keeps other drivers, and cleaners that respect locks, away.
	lock *os.File
}

// Names in the kit.
const (
	kitEtc  = "etc"
	kitFile = "empty"
	kitDir  = "void"
)

// sharedMemory is where kits are made. On a disk the hundreds of small files
// would take longer than everything else that opening a driver does.
const sharedMemory = "/dev/shm"

// kitPlace is the directory for kits and the beginning of their names: shared
// memory, where it is one, else the driver's own directory.
func kitPlace(shared, own string) (parent, prefix string, public bool) {
	prefix = "berm-kit-" + strconv.Itoa(os.Geteuid()) + "-"
	var stat unix.Stat_t
	var fs unix.Statfs_t
	if unix.Lstat(shared, &stat) != nil || unix.Statfs(shared, &fs) != nil {
		return own, prefix, false
	}
	// Sticky, or somebody else could put another directory in its place.
	ours := stat.Uid == 0 && stat.Mode&unix.S_IFMT == unix.S_IFDIR && stat.Mode&unix.S_ISVTX != 0 || defence.KitPlace.Off()
	if !ours || fs.Type != unix.TMPFS_MAGIC || unix.Access(shared, unix.W_OK) != nil {
		return own, prefix, false
	}
	return shared, prefix, stat.Mode&unix.S_IXOTH != 0
}

// makeKit builds the kit in shared memory, or below own, which belongs to the
// caller alone; there also when shared memory is full, which any user can see to.
// It removes those of drivers that are gone.
func makeKit(shared, own, etc string) (*kit, error) {
	parent, prefix, public := kitPlace(shared, own)
	k, err := makeKitIn(parent, prefix, public, etc)
	if parent != own && !defence.KitElsewhere.Off() && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		k, err = makeKitIn(own, prefix, false, etc)
	}
	return k, err
}

func makeKitIn(parent, prefix string, public bool, etc string) (*kit, error) {
	sweepKits(parent, prefix)
	dir, lock, err := claimDir(parent, prefix)
	if err != nil {
		return nil, fmt.Errorf("prepare /etc: %w", err)
	}
	k := &kit{dir: dir, public: public, lock: lock}
	err = k.fill(etc)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare /etc: %w", err), k.close())
	}
	return k, nil
}

// fill writes the kit's files. Their modes must not depend on the umask.
func (k *kit) fill(etc string) error {
	if err := os.Chmod(k.dir, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(k.path(kitDir), 0o755); err != nil {
		return err
	}
	if err := os.Chmod(k.path(kitDir), 0o555); err != nil {
		return err
	}
	if err := writeMode(k.path(kitFile), "", 0o444); err != nil {
		return err
	}
	c := etcCopier{from: etc, to: k.path(kitEtc)}
	return c.run()
}

func (k *kit) path(name string) string { return filepath.Join(k.dir, name) }

// close removes the kit.
func (k *kit) close() error {
	err := os.RemoveAll(k.dir)
	if k.lock != nil {
		err = errors.Join(err, k.lock.Close())
		k.lock = nil
	}
	return err
}

// claimDir makes a locked directory. Before it is locked, another driver that
// starts may take it for one that a dead driver left, and remove it: then it is
// made again.
func claimDir(parent, prefix string) (string, *os.File, error) {
	for range maxClaims {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return "", nil, err
		}
		// The umask may have left nothing of its mode.
		err = os.Chmod(dir, 0o700)
		var file *os.File
		if err == nil {
			file, err = os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, errors.Join(err, os.Remove(dir))
		}
		if defence.KitLock.Off() || lockNamed(file, dir) {
			return dir, file, nil
		}
		_ = file.Close()
	}
	return "", nil, fmt.Errorf("%d directories in %s were removed as soon as they were made", maxClaims, parent)
}

// lockDir takes a directory's lock, which ends with the process.
func lockDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// sweepKits removes the caller's kits whose driver is gone. What cannot be
// removed is left for the next time: it costs memory, nothing else.
func sweepKits(parent, prefix string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		var stat unix.Stat_t
		if defence.KitSweep.Off() || !strings.HasPrefix(e.Name(), prefix) || unix.Lstat(dir, &stat) != nil || int(stat.Uid) != os.Geteuid() {
			continue
		}
		lock, err := lockDir(dir)
		if err != nil {
			continue // it lives, or is being removed by another
		}
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
}

// etcCopier copies the selection.
type etcCopier struct {
	from, to string
	entries  int
	bytes    int64
}

func (c *etcCopier) run() error {
	if err := makeDir(c.to); err != nil {
		return err
	}
	for name, text := range etcSynthesised(loginShell()) {
		if err := writeMode(filepath.Join(c.to, name), text, 0o444); err != nil {
			return err
		}
	}
	if err := os.Symlink("/proc/mounts", filepath.Join(c.to, "mtab")); err != nil {
		return err
	}
	for _, pattern := range etcSelection() {
		found, err := filepath.Glob(filepath.Join(c.from, pattern))
		if err != nil {
			return err
		}
		for _, source := range found {
			if err := c.entry(source, filepath.Join(c.to, filepath.Base(source)), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// loginShell is the shell of the passwd entry.
func loginShell() string {
	if _, err := os.Stat("/usr/bin/bash"); err == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// secret names what is never copied, wherever it is found.
func secret(name string) bool {
	return (name == "private" || strings.HasSuffix(name, ".key")) && !defence.EtcSecrets.Off()
}

// entry copies one file, link or directory. What vanishes in the middle, what
// the world cannot read, and what is none of the three is left out.
func (c *etcCopier) entry(source, dest string, depth int) error {
	info, err := os.Lstat(source)
	if err != nil || secret(info.Name()) || depth > maxEtcDepth {
		return nil //nolint:nilerr // what cannot be seen is left out
	}
	if c.entries++; c.entries > maxEtcEntries {
		return fmt.Errorf("more than %d entries are selected", maxEtcEntries)
	}
	switch mode := info.Mode(); {
	case mode.IsRegular() && (mode.Perm()&0o004 != 0 || defence.EtcWorldReadable.Off()):
		return c.file(source, dest)
	case mode.IsDir() && mode.Perm()&0o005 == 0o005:
		return c.dir(source, dest, depth)
	case mode&fs.ModeSymlink != 0:
		return c.link(source, dest)
	}
	return nil
}

func (c *etcCopier) dir(source, dest string, depth int) error {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil //nolint:nilerr // what cannot be read is left out
	}
	if err := makeDir(dest); err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.entry(filepath.Join(source, e.Name()), filepath.Join(dest, e.Name()), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// link keeps a link that leads into what the sandbox has too, and copies the
// file behind any other.
func (c *etcCopier) link(source, dest string) error {
	target, err := os.Readlink(source)
	if err != nil {
		return nil //nolint:nilerr // it vanished
	}
	to := target
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(source), to)
	}
	for _, visible := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev", c.from} {
		if strings.HasPrefix(filepath.Clean(to), visible+"/") {
			return os.Symlink(target, dest)
		}
	}
	info, err := os.Stat(source)
	closed := err == nil && info.Mode().Perm()&0o004 == 0 && !defence.EtcLinks.Off()
	if err != nil || !info.Mode().IsRegular() || closed || secret(info.Name()) {
		return nil //nolint:nilerr // a dangling link, or nothing that may be shown
	}
	return c.file(source, dest)
}

// file copies the bytes of one file.
func (c *etcCopier) file(source, dest string) error {
	in, err := os.OpenFile(source, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil //nolint:nilerr // it vanished
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(in, maxEtcBytes-c.bytes+1))
	if err != nil {
		return err
	}
	if c.bytes += int64(len(data)); c.bytes > maxEtcBytes {
		return fmt.Errorf("more than %d bytes are selected", maxEtcBytes)
	}
	return writeMode(dest, string(data), 0o444)
}

// makeDir makes a directory that every uid can read, whatever the umask is.
func makeDir(name string) error {
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	return os.Chmod(name, 0o755)
}

// writeMode makes a file with exactly this mode.
func writeMode(name, text string, mode fs.FileMode) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Chmod(mode), file.Close())
}
