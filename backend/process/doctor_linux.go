package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/driver"
)

// Fixes, as a person types them.
const (
	fixInstall = "apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora), apk add bubblewrap (Alpine)"
	fixClone   = "sysctl -w kernel.unprivileged_userns_clone=1"
	fixCount   = "sysctl -w user.max_user_namespaces=15000"
	fixMemory  = "sysctl -w vm.memfd_noexec=1"
	// A profile for the one program is narrower than switching the rule off.
	fixAppArmor = "write these five lines to /etc/apparmor.d/bwrap and run `apparmor_parser -r /etc/apparmor.d/bwrap`:\n" +
		"abi <abi/4.0>,\n" +
		"include <tunables/global>\n" +
		"profile bwrap %s flags=(unconfined) {\n" +
		"  userns,\n" +
		"}"
	fixContainer = "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined " +
		"--security-opt systempaths=unconfined, or use a backend that makes containers itself"
	fixDelegate = "start berm with `systemd-run --user --scope -p Delegate=yes berm ...`, or as root"
	fixUIDs     = "set uidBase and uidCount to a range that /proc/self/uid_map has"
)

// diagnose looks at the host and tries a sandbox in which bubblewrap says its
// own version.
func diagnose(ctx context.Context, cfg Config) driver.Diagnosis {
	tools := thisHost()
	out := driver.Diagnosis{Backend: Name}
	found, reasons := tools.engine(ctx, cfg)
	if found.version != "" {
		out.Facts = append(out.Facts, fmt.Sprintf("bubblewrap %s at %s", found.version, found.path))
	}
	if len(reasons) > 0 {
		out.Problems = tools.explainAll(cfg, found, reasons)
		return out
	}
	d, err := trialDriver(ctx, cfg, found)
	if err != nil {
		out.Problems = tools.explainAll(cfg, found, []string{"the trial sandbox failed: " + err.Error()})
		return out
	}
	caps := d.Capabilities()
	out.Available, out.Capabilities = true, &caps
	support := d.cgroups.Support()
	out.Facts = append(out.Facts, support.Facts...)
	out.Problems = weaknesses(support)
	if err := d.Close(); err != nil {
		out.Facts = append(out.Facts, fmt.Sprintf("the trial left something behind: %v", err))
	}
	return out
}

// trialDriver opens a driver whose agent is bubblewrap itself, in a state
// directory that is removed at once, and runs the trial.
func trialDriver(ctx context.Context, cfg Config, found bwrap) (*bubble, error) {
	image, err := os.ReadFile(found.path)
	if err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp("", "berm-doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(state) }()
	d := &bubble{cfg: cfg, bwrap: found, mask: readMask("/proc")}
	if err := d.prepare(driver.Host{Agent: driver.Agent{Image: image}, StateDir: state}); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.leases != nil && !d.kit.public {
		return d, nil // only the agent's own program can be the launcher
	}
	limit, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	if err := d.trial(limit, randomID(), "--version"); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// explainAll makes a fatal problem of each reason, with those of the host's
// settings that explain it.
func (t toolbox) explainAll(cfg Config, found bwrap, reasons []string) []driver.Problem {
	var out []driver.Problem
	for _, reason := range reasons {
		out = append(out, driver.Problem{Reason: reason, Fix: fixFor(cfg, found, reason), Fatal: true})
	}
	return append(out, t.settings(found)...)
}

// fixFor knows what to do about a reason of findBwrap and engine.
func fixFor(cfg Config, found bwrap, reason string) string {
	switch {
	case strings.Contains(reason, "not installed"), strings.Contains(reason, "too old"), strings.Contains(reason, "has no option"):
		return fixInstall
	case strings.Contains(reason, "is setuid"):
		return "chmod u-s,g-s " + found.path
	case strings.Contains(reason, "uids ") && strings.Contains(reason, "do not exist"):
		return fixUIDs
	case cfg.Engine == EngineSeatbelt:
		return "set engine to " + EngineAuto
	}
	return ""
}

// settings are the host's settings that are known to stop a sandbox.
func (t toolbox) settings(found bwrap) []driver.Problem {
	var out []driver.Problem
	add := func(reason, fix string) { out = append(out, driver.Problem{Reason: reason, Fix: fix, Fatal: true}) }
	is := func(name, value string) bool {
		text, err := t.readFile("/proc/sys/" + name)
		return err == nil && text == value
	}
	if t.euid != 0 && is("kernel/unprivileged_userns_clone", "0") {
		add("kernel.unprivileged_userns_clone is 0: only root may make user namespaces", fixClone)
	}
	if is("user/max_user_namespaces", "0") {
		add("user.max_user_namespaces is 0: user namespaces are switched off", fixCount)
	}
	if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
		path := found.path
		if path == "" {
			path = "/usr/bin/bwrap"
		}
		add("AppArmor gives programs without a profile no use of user namespaces (Ubuntu 23.10 and later)",
			fmt.Sprintf(fixAppArmor, path))
	}
	if is("vm/memfd_noexec", "2") {
		add("vm.memfd_noexec is 2: the agent's program cannot be kept in memory", fixMemory)
	}
	if t.inContainer() {
		add("berm itself seems to run in a container, whose own filter or masked /proc can stop sandboxes", fixContainer)
	}
	return out
}

// inContainer looks for the marks that Docker, Podman and systemd leave.
func (t toolbox) inContainer() bool {
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"} {
		if _, err := t.stat(mark); err == nil {
			return true
		}
	}
	return false
}

// weaknesses are the problems of a host on which sandboxes work.
func weaknesses(support cgroup.Support) []driver.Problem {
	if support.Memory && support.Processes && support.CPUs && support.Kill {
		return nil
	}
	missing := map[string]bool{
		"memory": support.Memory, "processes": support.Processes, "processor time": support.CPUs, "killing a command as a whole": support.Kill,
	}
	var names []string
	for _, name := range []string{"memory", "processes", "processor time", "killing a command as a whole"} {
		if !missing[name] {
			names = append(names, name)
		}
	}
	reason := "there is no cgroup for " + strings.Join(names, ", ")
	if len(support.Reasons) > 0 {
		reason += " (" + strings.Join(support.Reasons, "; ") + ")"
	}
	return []driver.Problem{{Reason: reason, Fix: fixDelegate}}
}

// sentences turns problems into reasons of an error.
func sentences(problems []driver.Problem) []string {
	var out []string
	for _, p := range problems {
		text := p.Reason
		if p.Fix != "" {
			text += "; fix: " + p.Fix
		}
		out = append(out, text)
	}
	return out
}
