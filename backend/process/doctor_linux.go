package process

import (
	"fmt"
	"strings"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// unready is the error of a backend that cannot be opened here.
func (t toolbox) unready(cfg Config, found bwrap, failures []string) *errdefs.Error {
	diagnosis := driver.Diagnosis{Problems: t.explain(cfg, found, failures), Facts: found.facts()}
	cause, reasons := driver.Unready(diagnosis)
	return &errdefs.Error{Kind: errdefs.Unavailable, Op: "open", Backend: Name, Reasons: reasons, Err: cause}
}

func (b bwrap) facts() []string {
	if b.version == "" {
		return nil
	}
	return []string{fmt.Sprintf("bubblewrap %s at %s", b.version, b.path)}
}

// explain makes fatal problems of what failed. Each failure is told as it was
// seen; after them come those facts of the host that explain one of them, with
// what to do. A failure that nothing explains stands alone.
func (t toolbox) explain(cfg Config, found bwrap, failures []string) []driver.Problem {
	var out []driver.Problem
	for _, failure := range failures {
		out = append(out, driver.Problem{Reason: failure, Fix: t.fixFor(cfg, found, failure), Fatal: true})
	}
	for _, c := range causes() {
		if c.explains(t, failures) {
			out = append(out, driver.Problem{Reason: c.reason, Fix: c.fix(t, found), Fatal: true})
		}
	}
	return out
}

// fixFor knows what to do about a failure that says by itself what is wrong.
func (t toolbox) fixFor(cfg Config, found bwrap, failure string) string {
	says := func(text string) bool { return strings.Contains(failure, text) }
	switch {
	case says("not installed"), says("is too old"), says("has no option"):
		return fixInstall
	case says("is setuid"):
		return "chmod u-s,g-s " + found.path
	case says("berm is root without CAP_"):
		var words []string
		for _, name := range t.missing() {
			words = append(words, "--cap-add "+strings.TrimPrefix(name, "CAP_"))
		}
		return "start the container with " + strings.Join(words, " ") + ", or berm as a user without privileges"
	case says("do not exist in this user namespace"):
		return t.uidFix(cfg)
	case failure == foreignProc:
		return fixProc
	case cfg.Engine == EngineSeatbelt:
		return "set engine to " + EngineAuto
	}
	return ""
}

// uidFix looks for a range that would do.
func (t toolbox) uidFix(cfg Config) string {
	text, _ := t.readFile(uidMapFile)
	best, length := uint64(0), uint64(0)
	for line := range strings.Lines(text) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil || count <= length {
			continue
		}
		best, length = inside, count
	}
	const least = 1000
	if first := max(best, least); best+length >= first+uint64(min(cfg.UIDCount, least)) {
		return fmt.Sprintf("set uidBase and uidCount to a range that %s has, such as %d and %d that nothing else uses",
			uidMapFile, best+length-uint64(min(cfg.UIDCount, least)), min(cfg.UIDCount, least))
	}
	return "run berm as the user itself, not as root of a user namespace that has so few uids, or map a range into it: " +
		"install newuidmap (package uidmap), give the user a range in /etc/subuid and /etc/subgid, and use " +
		"`unshare --map-auto --map-root-user`"
}

// Diagnose says what this host gives less than others.
func (d *bubble) Diagnose() driver.Diagnosis {
	support := d.cgroups.Support()
	return driver.Diagnosis{
		Problems: thisHost().weaknesses(d.leases != nil, support),
		Facts:    append(d.bwrap.facts(), support.Facts...),
	}
}
