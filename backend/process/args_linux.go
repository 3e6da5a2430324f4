package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/internal/defence"
)

// Identity inside.
const (
	insideID = 1000
	hostName = "berm"
)

// systemEntry is one top-level name of the system that a sandbox sees.
type systemEntry struct {
	path string
	// link is the target where the host has a link, empty for a bind.
	link string
}

// procMask says how /proc is covered. Names are below /proc and exist.
type procMask struct {
	readOnly, files, dirs []string
}

// host system names; the merged ones are links on most hosts.
var systemNames = [...]string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// readSystem finds the top-level entries below root ("/").
func readSystem(root string) ([]systemEntry, error) {
	if info, err := os.Stat(filepath.Join(root, "usr")); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("this host has no /usr")
	}
	entries := []systemEntry{{path: "/usr"}}
	for _, name := range systemNames {
		full := filepath.Join(root, name)
		info, err := os.Lstat(full)
		if err != nil {
			continue
		}
		entry := systemEntry{path: "/" + name}
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			if entry.link, err = os.Readlink(full); err != nil {
				continue
			}
		case !info.IsDir():
			continue
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// readMask finds what of /proc there is to cover: Docker's lists, the directories
// that a root uid could write through, and the kernel's command line, which names
// disks and can hold secrets.
func readMask(proc string) procMask {
	present := func(names ...string) (files, dirs []string) {
		for _, name := range names {
			info, err := os.Lstat(filepath.Join(proc, name))
			switch {
			case err != nil || info.Mode()&os.ModeSymlink != 0:
			case info.IsDir():
				dirs = append(dirs, name)
			default:
				files = append(files, name)
			}
		}
		return files, dirs
	}
	var m procMask
	files, dirs := present("bus", "fs", "irq", "pressure", "sys", "sysrq-trigger")
	m.readOnly = append(dirs, files...)
	m.files, m.dirs = present("acpi", "asound", "cmdline", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi",
		"timer_list", "timer_stats")
	return m
}

// binding is one mount of the layout as bubblewrap has to make it.
type binding struct {
	dest     string
	writable bool
	// source is the path that bubblewrap sees. With fd >= 0 it is only for
	// messages, and the directory is the open descriptor.
	source string
	fd     int
}

// boxPlan is all that decides bubblewrap's options.
type boxPlan struct {
	system  []systemEntry
	mask    procMask
	kit     string // as bubblewrap sees it
	network driver.Network
	// resolv is the descriptor of resolv.conf's content, negative for none.
	resolv int
	// connector is the source of the agent's program for payloads: a name in the
	// kit, or the descriptor of its content where programs in the kit may not be
	// executed. Of network gated only.
	connector connector
	sizes     map[string]int64
	mounts    []driver.Mount
	bindings  []binding
	infoFD    int
	filterFD  int
}

// options are bubblewrap's, for --args. The order of mounts matters: what covers
// comes after what it covers, and the root is closed last.
func (p *boxPlan) options() []string {
	o := options{}
	p.isolation(&o)
	for _, e := range p.system {
		if e.link != "" {
			o.add("--symlink", e.link, e.path)
		} else {
			o.bind(e.path, e.path, defence.SystemReadOnly.Off())
		}
	}
	if defence.EtcSelection.Off() {
		o.add("--ro-bind", "/etc", "/etc")
	} else {
		o.add("--ro-bind", filepath.Join(p.kit, kitEtc), "/etc")
	}
	if defence.NoSysfs.Off() {
		o.add("--ro-bind", "/sys", "/sys")
	}
	if p.resolv >= 0 {
		o.add("--perms", "0444", "--ro-bind-data", strconv.Itoa(p.resolv), "/etc/resolv.conf")
	}
	p.proc(&o)
	if defence.DevMinimal.Off() {
		o.add("--dev-bind", "/dev", "/dev")
	} else {
		o.add("--dev", "/dev")
	}
	o.tmpfs(shmPath, "1777", p.sizes)
	o.guard(defence.DevReadOnly.Off(), "--remount-ro", "/dev")
	o.tmpfs(tmpPath, "1777", p.sizes)
	o.tmpfs(homePath, "0755", p.sizes)
	o.tmpfs(runPath, "0755", p.sizes)
	if p.network == driver.NetworkGated {
		o.tmpfs(driver.TrustPath, "0755", p.sizes)
		o.add(p.connector.options(p.kit)...)
	}
	p.layout(&o)
	o.guard(defence.RunReadOnly.Off(), "--remount-ro", runPath)
	o.guard(defence.RootReadOnly.Off(), "--remount-ro", "/")
	o.add("--chdir", "/", "--info-fd", strconv.Itoa(p.infoFD))
	o.guard(defence.FilterInstalled.Off(), "--seccomp", strconv.Itoa(p.filterFD))
	return o.list
}

// isolation adds namespaces, identity and life.
func (p *boxPlan) isolation(o *options) {
	o.add("--unshare-user")
	p.unshare(o)
	o.guard(defence.NestedNamespaces.Off(), "--disable-userns")
	o.add("--uid", strconv.Itoa(insideID), "--gid", strconv.Itoa(insideID))
	if !defence.UTSNamespace.Off() {
		o.guard(defence.HostName.Off(), "--hostname", hostName)
	}
	o.guard(defence.DieWithParent.Off(), "--die-with-parent")
	o.guard(defence.NewSession.Off(), "--new-session")
	o.guard(defence.PIDNamespace.Off(), "--as-pid-1")
	o.add("--cap-drop", "ALL")
}

// unshare adds the namespaces. --unshare-all has also those that bubblewrap is
// yet to learn of.
func (p *boxPlan) unshare(o *options) {
	apart := defence.NetworkNamespace.Off() || defence.IPCNamespace.Off() || defence.PIDNamespace.Off() ||
		defence.UTSNamespace.Off() || defence.CgroupNamespace.Off()
	if p.network != driver.NetworkHost && !apart {
		o.add("--unshare-all")
		return
	}
	o.guard(defence.IPCNamespace.Off(), "--unshare-ipc")
	o.guard(defence.PIDNamespace.Off(), "--unshare-pid")
	o.guard(defence.UTSNamespace.Off(), "--unshare-uts")
	o.guard(defence.CgroupNamespace.Off(), "--unshare-cgroup")
	if p.network != driver.NetworkHost {
		o.guard(defence.NetworkNamespace.Off(), "--unshare-net")
	}
}

// proc adds /proc and its covers.
func (p *boxPlan) proc(o *options) {
	if defence.PIDNamespace.Off() {
		o.add("--ro-bind", "/proc", "/proc") // the kernel gives no new one without
		return
	}
	o.add("--proc", "/proc")
	for _, name := range p.mask.readOnly {
		o.guard(defence.ProcReadOnly.Off(), "--ro-bind", "/proc/"+name, "/proc/"+name)
	}
	for _, name := range p.mask.files {
		o.guard(defence.ProcFiles.Off(), "--ro-bind", filepath.Join(p.kit, kitFile), "/proc/"+name)
	}
	for _, name := range p.mask.dirs {
		o.guard(defence.ProcDirs.Off(), "--ro-bind", filepath.Join(p.kit, kitDir), "/proc/"+name)
	}
}

// layout adds the Spec's mounts in their order.
func (p *boxPlan) layout(o *options) {
	for _, m := range p.mounts {
		if m.Source == "" {
			o.tmpfs(m.Dest, "0755", p.sizes)
			if !m.Writable {
				o.add("--remount-ro", m.Dest)
			}
			continue
		}
		i := slices.IndexFunc(p.bindings, func(b binding) bool { return b.dest == m.Dest })
		if i < 0 {
			continue // the caller made none, and checks that
		}
		b := p.bindings[i]
		flag, source := "--ro-bind", b.source
		if b.writable || defence.LayoutReadOnly.Off() {
			flag = "--bind"
		}
		if b.fd >= 0 {
			flag, source = flag+"-fd", strconv.Itoa(b.fd)
		}
		o.add(flag, source, b.dest)
	}
}

// options collects arguments.
type options struct{ list []string }

func (o *options) add(args ...string) { o.list = append(o.list, args...) }

// guard adds the arguments that are a defence.
func (o *options) guard(off bool, args ...string) {
	if !off {
		o.add(args...)
	}
}

func (o *options) bind(from, to string, writable bool) {
	flag := "--ro-bind"
	if writable {
		flag = "--bind"
	}
	o.add(flag, from, to)
}

func (o *options) tmpfs(path, perms string, sizes map[string]int64) {
	o.add("--perms", perms)
	o.guard(defence.TmpfsSizes.Off(), "--size", strconv.FormatInt(sizes[path], 10))
	o.add("--tmpfs", path)
}

// encodeArgs joins arguments as --args takes them. An argument with a NUL byte
// would become two.
func encodeArgs(args []string) ([]byte, error) {
	var b strings.Builder
	for _, arg := range args {
		if strings.IndexByte(arg, 0) >= 0 && !defence.OptionsWithoutNUL.Off() {
			return nil, fmt.Errorf("argument %q has a NUL byte", arg)
		}
		b.WriteString(arg)
		b.WriteByte(0)
	}
	return []byte(b.String()), nil
}
