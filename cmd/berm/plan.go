package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

// plan is what a command line asks for, checked.
type plan struct {
	backend driver.Backend
	config  berm.Config
	args    []string
	posture string
	// audit is where records of the gate go, empty for nowhere.
	audit string
	json  bool
	// terminal is the descriptor of the one that the command gets, -1 for none.
	terminal int
	// missing are directories to be made.
	missing []string
}

// planner turns flags into a plan and collects every fault.
type planner struct {
	app     *app
	flags   *runFlags
	plan    *plan
	reasons []string
	// secretFiles are those of the configuration file.
	secretFiles []string
	// unsupported are faults of another kind: right, but not possible here.
	unsupported []string
}

func (p *planner) fault(format string, args ...any) {
	p.reasons = append(p.reasons, fmt.Sprintf(format, args...))
}

// newPlan changes nothing on the host.
func (a *app) newPlan(f *runFlags, args []string) (*plan, error) {
	p := &planner{app: a, flags: f, plan: &plan{args: args, json: f.json, terminal: -1}}
	p.reasons = append(p.reasons, a.unknown...)
	if len(args) == 0 {
		p.fault(noCommand)
	}
	for _, name := range f.empty {
		p.fault("--%s: the value is empty", name)
	}
	if f.tty {
		p.tty()
	}
	fileErr := p.file()
	p.chooseBackend()
	p.layout()
	p.toolchains()
	p.environment()
	p.limits()
	p.require()
	p.posture()
	p.egress()
	p.checkLayout()
	return p.plan, p.err(fileErr)
}

// tty finds the terminal that the command is going to share.
func (p *planner) tty() {
	fd, ok := p.app.terminal()
	switch {
	case !ok:
		p.fault(notATerminal)
	case p.flags.json:
		p.fault("--tty: the output of a terminal cannot be an object of --json")
	default:
		p.plan.terminal = fd
	}
}

// err joins the faults of the flags with those of the file.
func (p *planner) err(fileErr error) error {
	var known *errdefs.Error
	switch {
	case fileErr == nil:
	case len(p.reasons)+len(p.unsupported) == 0:
		return fileErr
	case errors.As(fileErr, &known) && len(known.Reasons) > 0:
		for _, reason := range known.Reasons {
			p.fault("%s: %s", p.flags.config, reason)
		}
	default:
		p.fault("%v", fileErr)
	}
	if len(p.reasons) == 0 && len(p.unsupported) > 0 {
		return errdefs.New(errdefs.Unsupported, "", p.unsupported...)
	}
	return invalid("", append(p.reasons, p.unsupported...))
}

// file reads the configuration, which the flags then override.
func (p *planner) file() error {
	if p.flags.config == "" {
		return nil
	}
	file, err := config.Load(p.flags.config, p.app.factories)
	if err != nil {
		return err
	}
	p.plan.backend, p.plan.config = file.Backend, file.Config
	p.secretFiles = file.SecretFiles()
	return nil
}

func (p *planner) chooseBackend() {
	if p.plan.config.Agent.Path == "" {
		p.plan.config.Agent.Image = embeddedAgent()
	}
	name := p.flags.backend
	if name == "" {
		if p.plan.backend == nil {
			p.plan.backend = p.app.factories[0].Default()
		}
		return
	}
	var names []string
	for _, factory := range p.app.factories {
		names = append(names, factory.Name)
		if factory.Name == name {
			p.named(factory)
			return
		}
	}
	p.fault("--backend: %q is unknown%s", name, hint(name, names))
}

// named takes a backend by its name. A name on the command line is the explicit
// word that passthrough, which isolates nothing, waits for.
func (p *planner) named(factory driver.Factory) {
	if factory.Tier != driver.TierPassthrough {
		p.plan.backend = factory.Default()
		return
	}
	backend, reasons := factory.Decode(driver.NewFields(map[string]json.RawMessage{"allow": json.RawMessage("true")}))
	p.plan.backend = backend
	p.reasons = append(p.reasons, reasons...)
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (p *planner) environment() {
	env := maps.Clone(p.plan.config.Env)
	if env == nil {
		env = map[string]string{}
	}
	for _, entry := range p.flags.env {
		key, value, given := strings.Cut(entry, "=")
		if !envName.MatchString(key) {
			p.fault("--env: %q is not the name of a variable ([A-Za-z_][A-Za-z0-9_]*)", key)
			continue
		}
		if !given {
			if value, given = p.app.lookupEnv(key); !given {
				p.fault("--env: %s is not set here; write %s=VALUE", key, key)
				continue
			}
		}
		env[key] = value
	}
	p.plan.config.Env = env
}

func (p *planner) limits() {
	cfg, f := &p.plan.config, p.flags
	if f.timeout != "" {
		d, err := time.ParseDuration(f.timeout)
		switch {
		case err != nil:
			p.fault("--timeout: %q is not a duration; write it like 90s, 5m or 1h30m", f.timeout)
		case d < time.Millisecond || d > maxTimeout:
			p.fault("--timeout: %s is not within 1ms and %v", f.timeout, maxTimeout)
		default:
			cfg.Timeout = d
		}
	}
	if f.memory != "" {
		size, err := parseSize(f.memory)
		if err != nil {
			p.fault("--memory: %q: %v", f.memory, err)
		} else {
			cfg.Limits.MemoryBytes = size
		}
	}
	if f.pids != "" {
		n, err := strconv.Atoi(f.pids)
		if err != nil || n < 1 || n > 1<<22 {
			p.fault("--pids: %q is not a whole number from 1 to %d", f.pids, 1<<22)
		} else {
			cfg.Limits.Processes = n
		}
	}
	if f.cpus != "" {
		n, err := strconv.ParseFloat(f.cpus, 64)
		if err != nil || !(n >= 0.01 && n <= 4096) {
			p.fault("--cpus: %q is not a number from 0.01 to 4096", f.cpus)
		} else {
			cfg.Limits.CPUs = n
		}
	}
	if f.bestEffortSaid {
		cfg.Limits.BestEffort = f.bestEffort
	}
}

// maxTimeout is the longest time that berm.Config takes.
const maxTimeout = 2147483647 * time.Millisecond

// require adds to what the file requires: a flag never takes a promise away.
func (p *planner) require() {
	var known []string
	for _, d := range posture.Dimensions {
		known = append(known, string(d))
	}
	for _, name := range p.flags.require {
		if !slices.Contains(known, name) {
			p.fault("--require: %q is unknown%s", name, hint(name, known))
			continue
		}
		p.plan.config.Require = p.plan.config.Require.With(posture.Dimension(name), true)
	}
}

// posture checks that the record can be written, before anything is started.
func (p *planner) posture() {
	name := p.flags.posture
	if name == "" || name == "-" {
		p.plan.posture = name
		return
	}
	p.plan.posture = p.absolute("--posture", name)
	p.apart("--posture", p.plan.posture)
	parent, err := os.Stat(filepath.Dir(p.plan.posture))
	switch {
	case err != nil:
		p.fault("--posture: %v", err)
	case !parent.IsDir():
		p.fault("--posture: %s is not a directory", filepath.Dir(p.plan.posture))
	}
	if info, err := os.Stat(p.plan.posture); err == nil && info.IsDir() {
		p.fault("--posture: %s is a directory", p.plan.posture)
	}
}

// apart refuses a file of berm's own within what sandboxes write: a payload could
// change it, and what an earlier one left on the way would lead it elsewhere.
func (p *planner) apart(flag, path string) {
	l := p.plan.config.Layout
	p.outside(flag, path, "write", map[string]string{"workdir": l.Workdir, "outputs": hostPath(l.Outputs), "scratch": hostPath(l.Scratch)})
}

// hidden refuses a file with a secret within what sandboxes read.
func (p *planner) hidden(flag, path string) {
	l := p.plan.config.Layout
	shared := map[string]string{
		"workdir": l.Workdir, "outputs": hostPath(l.Outputs), "scratch": hostPath(l.Scratch),
		"uploads": hostPath(l.Uploads), "tool results": hostPath(l.ToolResults), "transcripts": hostPath(l.Transcripts),
	}
	for _, dir := range l.ReadOnly {
		shared[dir] = dir
	}
	for i := range l.Skills {
		if dir := l.Skills[i].Source.HostDir; dir != nil {
			shared["skill "+l.Skills[i].ID] = dir.HostPath
		}
	}
	p.outside(flag, path, "read", shared)
}

func hostPath(v *berm.Volume) string {
	if v == nil || v.Source.HostDir == nil {
		return ""
	}
	return v.Source.HostDir.HostPath
}

// outside refuses a file within one of the shared directories, by its name, and by
// where links lead.
func (p *planner) outside(flag, path, verb string, shared map[string]string) {
	if path == "" {
		return
	}
	places := []string{filepath.Dir(path), resolved(filepath.Dir(path)), filepath.Dir(resolved(path))}
	for name, dir := range shared {
		if dir != "" && slices.ContainsFunc(places, func(at string) bool { return at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") }) {
			p.fault("%s: %s lies in %s, which the sandbox can %s", flag, path, name, verb)
		}
	}
}

// resolved follows the links of a path as far as it is there: a directory that is
// still to be made lies where it will.
func resolved(path string) string {
	at, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return at
}

// absolute makes a typed path absolute. The current directory is taken as it
// really is, because sources that go through links are refused.
func (p *planner) absolute(flag, path string) string {
	switch {
	case strings.ContainsRune(path, 0):
		p.fault("%s: the path has a NUL byte", flag)
		return ""
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	}
	here, err := os.Getwd()
	if err == nil {
		here, err = filepath.EvalSymlinks(here)
	}
	if err != nil {
		p.fault("%s: the current directory: %v", flag, err)
		return ""
	}
	return filepath.Join(here, path)
}
