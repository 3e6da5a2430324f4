package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/launch"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/internal/defence"
)

// controlFD is where the agent finds its control socket.
const controlFD = 3

// order is one sandbox to be started.
type order struct {
	network driver.Network
	mounts  []driver.Mount
	sizes   map[string]int64
	// uid is the leased one, 0 for an unprivileged caller.
	uid uint32
	// cgroup is the version 2 directory to start in, nil for none.
	cgroup *os.File
	// control becomes the agent's control socket.
	control *os.File
	// command is the agent's mode.
	command string
}

// inheritance collects the descriptors of a new process: the index is the number.
type inheritance struct {
	files []*os.File
	// owned are closed when the process has been started, or has not.
	owned []*os.File
}

func (i *inheritance) add(file *os.File) int {
	i.files = append(i.files, file)
	return len(i.files) - 1
}

func (i *inheritance) own(file *os.File) int {
	i.owned = append(i.owned, file)
	return i.add(file)
}

func (i *inheritance) close() {
	for _, file := range i.owned {
		_ = file.Close()
	}
}

// spawn starts bubblewrap, by the launcher where the caller is root, and watches
// it. On an error nothing runs.
func (d *bubble) spawn(o order) (*child, error) {
	var in inheritance
	defer in.close()
	noise, noiseEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	info, infoEnd, err := infoFile()
	if err != nil {
		return nil, errors.Join(err, noise.Close(), noiseEnd.Close())
	}
	in.add(d.input)
	in.own(noiseEnd)
	in.add(noiseEnd)
	in.add(o.control)
	agent := in.add(d.agent)
	start := starting{driver: d, order: o, in: &in, info: in.own(infoEnd), agent: agent}
	start.launched = o.uid != 0 && (!d.kit.public || hasSources(o.mounts))
	proc, err := start.run()
	if err != nil {
		if start.status != nil {
			_ = start.status.Close()
		}
		return nil, errors.Join(err, noise.Close(), info.Close())
	}
	return watch(proc, noise, info, start.status), nil
}

// infoFile is where bubblewrap tells about the sandbox: anonymous memory, opened
// twice. A pipe would end bubblewrap by its reader's end, and wake its reader, in
// the very moment in which bubblewrap must not end: see starting.run.
func infoFile() (read, write *os.File, err error) {
	fd, err := unix.MemfdCreate("berm-info", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	read = os.NewFile(uintptr(fd), "berm-info")
	if write, err = os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDWR, 0); err != nil {
		return nil, nil, errors.Join(err, read.Close())
	}
	return read, write, nil
}

// hasSources reports whether a host directory is mounted.
func hasSources(mounts []driver.Mount) bool {
	return slices.ContainsFunc(mounts, func(m driver.Mount) bool { return m.Source != "" })
}

// starting is the making of one process.
type starting struct {
	driver      *bubble
	order       order
	in          *inheritance
	info, agent int
	// launched: the root launcher goes first. Where the leased uid can reach all
	// that is to be mounted, there is nothing to do for it but the drop.
	launched bool
	// status is where the launcher tells a failure, nil without one.
	status *os.File
}

func (s *starting) run() (*os.Process, error) {
	plan, err := s.plan()
	if err != nil {
		return nil, err
	}
	encoded, err := encodeArgs(plan.options())
	if err != nil {
		return nil, err
	}
	args, err := memFile("berm-args", encoded)
	if err != nil {
		return nil, err
	}
	argv := s.command(args, plan)
	path := s.driver.bwrap.path
	if s.launched {
		if path, argv, err = s.launcher(path, argv); err != nil {
			return nil, err
		}
	}
	// No parent death signal from here: bubblewrap that dies between making its
	// child and letting it go leaves that child waiting for ever. It asks for the
	// signal itself (--die-with-parent) just before it lets the child go; an
	// earlier end of this process is seen by the agent, at its control socket.
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: s.in.files, Sys: &syscall.SysProcAttr{
		// A session of its own: signals of the caller's terminal are the caller's.
		Setsid: !defence.DriverSession.Off(),
	}}
	if defence.EmptyEnvironment.Off() {
		attr.Env = os.Environ()
	}
	if uid := s.order.uid; uid != 0 && !s.launched && !defence.LeasedUID.Off() {
		attr.Sys.Credential = &syscall.Credential{Uid: uid, Gid: uid}
		// The launcher does it for itself; the reason is with type ownMounts.
		if !defence.LaterMounts.Off() {
			attr.Sys.Unshareflags = syscall.CLONE_NEWNS
		}
	}
	if s.order.uid == 0 {
		path, argv = s.driver.own.wrap(path, argv, attr, false)
	}
	if s.order.cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(s.order.cgroup.Fd())
	}
	proc, err := s.driver.forker.start(path, argv, attr)
	if errors.Is(err, unix.EPERM) && attr.Sys.Unshareflags != 0 && s.order.uid != 0 {
		// Root without the capability, as in a container, has to stay.
		attr.Sys.Unshareflags = 0
		proc, err = s.driver.forker.start(path, argv, attr)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return proc, nil
}

// command is bubblewrap's command line, which everybody may read.
func (s *starting) command(args *os.File, plan *boxPlan) []string {
	argv := []string{
		"bwrap", "--args", strconv.Itoa(s.in.own(args)), "--",
		"/proc/self/fd/" + strconv.Itoa(s.agent), s.order.command,
	}
	if defence.OptionsOnPipe.Off() {
		argv = slices.Concat(argv[:1], plan.options(), argv[3:])
	}
	return argv
}

// plan makes ready what bubblewrap's options name.
func (s *starting) plan() (*boxPlan, error) {
	d := s.driver
	filter, err := reopen(d.filter)
	if err != nil {
		return nil, err
	}
	p := &boxPlan{
		system: d.system, mask: d.mask, kit: d.kit.dir, network: s.order.network, resolv: -1,
		sizes: s.order.sizes, mounts: s.order.mounts, infoFD: s.info, filterFD: s.in.own(filter),
	}
	if s.launched {
		p.kit = d.stagePath(stagedKit)
	}
	if s.order.network == driver.NetworkHost {
		resolv, err := hostResolver()
		if err != nil {
			return nil, err
		}
		p.resolv = s.in.own(resolv)
	}
	if s.order.network == driver.NetworkGated {
		if p.connector, err = d.connector(s.in); err != nil {
			return nil, err
		}
	}
	for i, m := range s.order.mounts {
		if m.Source == "" {
			continue
		}
		b := binding{dest: m.Dest, writable: m.Writable, fd: -1}
		if s.launched {
			b.source = d.stagePath(stagedMount(i))
		} else if b, err = s.open(m); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		p.bindings = append(p.bindings, b)
	}
	return p, nil
}

// open opens a mount's source without following links, so that it cannot be
// exchanged any more.
func (s *starting) open(m driver.Mount) (binding, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if defence.SourceWithoutLinks.Off() {
		how.Resolve = 0
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Source, &how)
	if err != nil {
		return binding{}, fmt.Errorf("open %s without following links: %w", m.Source, err)
	}
	number := s.in.own(os.NewFile(uintptr(fd), m.Source))
	b := binding{dest: m.Dest, writable: m.Writable, source: "/proc/self/fd/" + strconv.Itoa(number), fd: -1}
	if s.driver.bwrap.bindFD {
		b.fd = number
	}
	return b, nil
}

// Names below the launcher's staging directory.
const stagedKit = "kit"

func stagedMount(i int) string { return "mount-" + strconv.Itoa(i) }

// stagePath is where the launcher shows a mount to bubblewrap.
func (d *bubble) stagePath(name string) string {
	return launch.Plan{Staging: d.kit.path(kitDir)}.Path(name)
}

// launcher wraps a command in the root launcher: the agent's program, which
// drops to the leased uid and then becomes the command. Its plan is data in
// anonymous memory.
func (s *starting) launcher(program string, argv []string) (string, []string, error) {
	d := s.driver
	p := launch.Plan{
		Parent: os.Getpid(), UID: s.order.uid, GID: s.order.uid, Staging: d.kit.path(kitDir),
		Mounts:  []launch.Mount{{Name: stagedKit, Source: d.kit.dir, Unmapped: true}},
		Program: program, Args: argv,
	}
	for i, m := range s.order.mounts {
		if m.Source != "" {
			p.Mounts = append(p.Mounts, launch.Mount{Name: stagedMount(i), Source: m.Source, Writable: m.Writable})
		}
	}
	for fd := range s.in.files {
		if fd != launch.PlanFD {
			p.Keep = append(p.Keep, fd)
		}
	}
	status, statusEnd, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	s.status, p.Status = status, s.in.own(statusEnd)
	encoded, err := p.Encode()
	if err != nil {
		return "", nil, err
	}
	plan, err := memFile("berm-plan", encoded)
	if err != nil {
		return "", nil, err
	}
	s.in.owned = append(s.in.owned, plan)
	s.in.files[launch.PlanFD] = plan
	return "/proc/self/fd/" + strconv.Itoa(s.agent), []string{"berm-agent", "launch"}, nil
}
