package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/berm-dev/berm"
)

// layout puts the flags over the file's layout. Only what the command line can
// say is replaced: a path inside that the file gives stays.
func (p *planner) layout() {
	layout, f := &p.plan.config.Layout, p.flags
	layout.Outputs = p.volume("--outputs", f.outputs, layout.Outputs, true)
	layout.Scratch = p.volume("--scratch", f.scratch, layout.Scratch, true)
	layout.Uploads = p.volume("--uploads", f.uploads, layout.Uploads, false)
	if f.workdir != "" {
		layout.Workdir = p.absolute("--workdir", f.workdir)
	}
	for _, dir := range f.readOnly {
		if dir == "" {
			p.fault("--bind-ro: the value is empty")
			continue
		}
		if dir = p.absolute("--bind-ro", dir); dir != "" && !slices.Contains(layout.ReadOnly, dir) {
			layout.ReadOnly = append(slices.Clone(layout.ReadOnly), dir)
		}
	}
	p.skills()
}

// toolchains: one who types a command here expects to find the programs that are
// found here, so nothing said is auto.
func (p *planner) toolchains() {
	said := p.flags.toolchains
	if len(said) == 0 {
		if p.flags.config == "" {
			p.plan.config.Toolchains.Auto = true
		}
		return
	}
	p.plan.config.Toolchains = berm.Toolchains{}
	for _, entry := range said {
		switch entry {
		case "none":
			if len(said) > 1 {
				p.fault("--toolchains: none stands alone")
			}
		case "auto":
			p.plan.config.Toolchains.Auto = true
		default:
			if root := p.absolute("--toolchains", entry); root != "" {
				p.plan.config.Toolchains.Roots = append(p.plan.config.Toolchains.Roots, root)
			}
		}
	}
}

func (p *planner) volume(flag, dir string, was *berm.Volume, mayMake bool) *berm.Volume {
	if dir == "" {
		return was
	}
	dir = p.absolute(flag, dir)
	if dir == "" {
		return was
	}
	volume := berm.HostVolume(dir)
	if was != nil {
		volume.Path = was.Path
	}
	if _, err := os.Lstat(dir); mayMake && errors.Is(err, fs.ErrNotExist) {
		p.plan.missing = append(p.plan.missing, dir)
	}
	return volume
}

func (p *planner) skills() {
	layout := &p.plan.config.Layout
	skills := slices.Clone(layout.Skills)
	given := map[string]bool{}
	for _, entry := range p.flags.skills {
		id, dir, ok := strings.Cut(entry, "=")
		if !ok || id == "" {
			p.fault("--skill: %q is not ID=DIR", entry)
			continue
		}
		if given[id] {
			p.fault("--skill: %q is given twice", id)
			continue
		}
		given[id] = true
		if dir == "" {
			p.fault("--skill: %q names no directory", entry)
			continue
		}
		skill := berm.Skill{ID: id, Source: berm.Source{HostDir: &berm.HostDir{HostPath: p.absolute("--skill "+id, dir)}}}
		if i := slices.IndexFunc(skills, func(s berm.Skill) bool { return s.ID == id }); i >= 0 {
			skill.Path = skills[i].Path
			skills[i] = skill
		} else {
			skills = append(skills, skill)
		}
	}
	layout.Skills = skills
}

// checkLayout adds the faults of the layout, so that they are told with those
// of the flags. Directories that berm is going to make are left out here; they
// are checked when they exist, and removed again if they are refused.
func (p *planner) checkLayout() {
	if p.plan.backend == nil {
		return
	}
	layout := p.plan.config.Layout
	for _, volume := range []**berm.Volume{&layout.Outputs, &layout.Scratch} {
		v := *volume
		if v != nil && v.Source.HostDir != nil && slices.Contains(p.plan.missing, v.Source.HostDir.HostPath) {
			*volume = nil
		}
	}
	_, reasons, refusals := layout.Resolve(p.plan.backend.Declare())
	for _, reason := range append(reasons, refusals...) {
		p.fault("%s", p.atFlag(reason))
	}
	for _, dir := range p.plan.missing {
		if reason := parentFault(dir); reason != "" {
			p.fault("%s", reason)
		}
	}
}

// atFlag begins a reason about a mount with the flag that gave the mount.
func (p *planner) atFlag(reason string) string {
	f := p.flags
	for name, given := range map[string]bool{
		"outputs": f.outputs != "", "scratch": f.scratch != "", "uploads": f.uploads != "", "workdir": f.workdir != "",
	} {
		if given && strings.HasPrefix(reason, name+": ") {
			return "--" + reason
		}
	}
	if rest, ok := strings.CutPrefix(reason, "readOnly "); ok && len(f.readOnly) > 0 {
		return "--bind-ro " + rest
	}
	if rest, ok := strings.CutPrefix(reason, "skills/"); ok && len(f.skills) > 0 {
		return "--skill " + rest
	}
	return reason
}
