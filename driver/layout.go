package driver

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berm-dev/berm/internal/defence"
)

// Default paths inside, from the layout table of docs/design.md.
const (
	OutputsPath     = "/mnt/user-data/outputs"
	ScratchPath     = "/mnt/user-data/scratch"
	UploadsPath     = "/mnt/user-data/uploads"
	ToolResultsPath = "/mnt/user-data/tool_results"
	TranscriptsPath = "/mnt/transcripts"
	SkillsPath      = "/mnt/skills"
	WorkspacePath   = "/workspace"
)

// Layout is the set of mounts that a task sees. The zero Layout gives ephemeral
// outputs and nothing else. One layout means the same on every tier.
type Layout struct {
	// Outputs is read-write; nil makes it ephemeral. It is the working directory
	// unless Workdir is set.
	Outputs *Volume `json:"outputs,omitempty"`
	// Scratch is read-write; nil leaves it out.
	Scratch *Volume `json:"scratch,omitempty"`
	// Uploads, ToolResults and Transcripts are read-only; nil leaves them out.
	Uploads     *Volume `json:"uploads,omitempty"`
	ToolResults *Volume `json:"toolResults,omitempty"`
	Transcripts *Volume `json:"transcripts,omitempty"`
	// Skills are read-only, each at /mnt/skills/<id>.
	Skills []Skill `json:"skills,omitempty"`
	// Workdir is an absolute host directory, read-write at /workspace and then the
	// working directory; empty for none.
	Workdir string `json:"workdir,omitempty"`
	// ReadOnly are further host directories, each read-only at its own path.
	ReadOnly []string `json:"readOnly,omitempty"`
}

// Volume is one mount's source and, when it is not the default, its path inside.
type Volume struct {
	Source Source `json:"source"`
	// Path is the absolute path inside; empty for the layout's default.
	Path string `json:"path,omitempty"`
}

// Skill is a read-only mount with a name.
type Skill struct {
	// ID matches [A-Za-z0-9_.-]+, holds no "..", and is unique.
	ID     string `json:"id"`
	Source Source `json:"source"`
	Path   string `json:"path,omitempty"`
}

// Source says where a mount's files are. Exactly one field is set.
type Source struct {
	HostDir        *HostDir        `json:"hostDir,omitempty"`
	AzureFileShare *AzureFileShare `json:"azureFileShare,omitempty"`
	InImage        *InImage        `json:"inImage,omitempty"`
}

// HostDir is a directory of the host.
type HostDir struct {
	// HostPath is absolute.
	HostPath string `json:"hostPath"`
}

// AzureFileShare is a share that the service mounts.
type AzureFileShare struct {
	StorageAccountName string `json:"storageAccountName"`
	ShareName          string `json:"shareName"`
	StorageAccountKey  string `json:"storageAccountKey"`
}

// InImage says that the image has the files already.
type InImage struct{}

// HostVolume is a Volume of a host directory at the layout's default path.
func HostVolume(hostPath string) *Volume {
	return &Volume{Source: Source{HostDir: &HostDir{HostPath: hostPath}}}
}

var skillID = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// WorkRoot is the working directory inside.
func (l Layout) WorkRoot() string {
	switch {
	case l.Workdir != "":
		return WorkspacePath
	case l.Outputs != nil && l.Outputs.Path != "":
		return l.Outputs.Path
	default:
		return OutputsPath
	}
}

// Resolve validates the layout against what a backend can honour and returns
// its mounts in order, or every violation, one sentence each: faults are wrong
// on any backend, refusals are what this one cannot honour. Private are host
// directories that no source may touch: berm's own state. It reads the host's
// file system but changes nothing.
func (l Layout) Resolve(caps Capabilities, private ...string) (mounts []Mount, faults, refusals []string) {
	r := resolver{caps: caps, private: private}
	r.volume("outputs", l.Outputs, OutputsPath, true)
	if l.Outputs == nil {
		r.mounts = append(r.mounts, Mount{Name: "outputs", Dest: OutputsPath, Writable: true})
	}
	r.volume("scratch", l.Scratch, ScratchPath, true)
	r.volume("uploads", l.Uploads, UploadsPath, false)
	r.volume("toolResults", l.ToolResults, ToolResultsPath, false)
	r.volume("transcripts", l.Transcripts, TranscriptsPath, false)
	seen := map[string]bool{}
	for _, s := range l.Skills {
		name := "skills/" + s.ID
		switch {
		case (!skillID.MatchString(s.ID) || strings.Contains(s.ID, "..")) && !defence.LayoutSkillNames.Off():
			r.fault("skill id %q: must match [A-Za-z0-9_.-]+ without \"..\"", s.ID)
			continue
		case s.ID == ".":
			r.fault("skill id %q: names no directory", s.ID)
			continue
		case seen[s.ID]:
			r.fault("skill id %q: given more than once", s.ID)
			continue
		}
		seen[s.ID] = true
		r.volume(name, &Volume{Source: s.Source, Path: s.Path}, path.Join(SkillsPath, s.ID), false)
	}
	if l.Workdir != "" {
		r.volume("workdir", HostVolume(l.Workdir), WorkspacePath, true)
	}
	for _, dir := range l.ReadOnly {
		r.volume("readOnly "+dir, &Volume{Source: Source{HostDir: &HostDir{HostPath: dir}}, Path: dir}, dir, false)
	}
	r.checkDestinations()
	r.checkOverlaps()
	if len(r.faults)+len(r.refusals) > 0 {
		return nil, r.faults, r.refusals
	}
	return r.mounts, nil, nil
}

type resolver struct {
	caps    Capabilities
	private []string
	mounts  []Mount

	faults, refusals []string
}

func (r *resolver) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func (r *resolver) refuse(format string, args ...any) {
	r.refusals = append(r.refusals, fmt.Sprintf(format, args...))
}

// volume adds one mount or its faults.
func (r *resolver) volume(name string, v *Volume, dest string, writable bool) {
	if v == nil {
		return
	}
	if v.Path != "" {
		dest = v.Path
	}
	if reason := insideFault(dest); reason != "" && !defence.LayoutDestinations.Off() {
		r.fault("%s: path %q %s", name, dest, reason)
		return
	}
	set := 0
	for _, given := range []bool{v.Source.HostDir != nil, v.Source.AzureFileShare != nil, v.Source.InImage != nil} {
		if given {
			set++
		}
	}
	switch {
	case set != 1:
		r.fault("%s: source must be exactly one of hostDir, azureFileShare, inImage", name)
	case v.Source.AzureFileShare != nil:
		r.refuse("%s: backend %s cannot mount an azureFileShare", name, r.caps.Backend)
	case v.Source.InImage != nil:
		r.refuse("%s: backend %s has no image, so inImage cannot be honoured", name, r.caps.Backend)
	case !r.caps.HostDirs:
		r.refuse("%s: backend %s cannot mount a host directory", name, r.caps.Backend)
	default:
		if reason := hostFault(v.Source.HostDir.HostPath, r.private); reason != "" {
			r.fault("%s: host path %q %s", name, v.Source.HostDir.HostPath, reason)
			return
		}
		r.mounts = append(r.mounts, Mount{Name: name, Source: v.Source.HostDir.HostPath, Dest: dest, Writable: writable})
	}
}

// insideFault checks a path inside.
func insideFault(p string) string {
	switch {
	case strings.ContainsRune(p, 0):
		return "has a NUL byte"
	case !path.IsAbs(p):
		return "is not absolute"
	case path.Clean(p) != p || slices.Contains(strings.Split(p, "/"), ".."):
		return "is not clean"
	case p == "/":
		return "is the root"
	}
	for _, taken := range []string{"/proc", "/sys", "/dev", "/run/berm"} {
		if within(p, taken) {
			return "belongs to the system"
		}
	}
	return ""
}

// hostFault checks a source on the host. The check is for the person who typed
// it; the backend opens the source again without following links, because
// anything may have changed by then.
func hostFault(p string, private []string) string {
	switch {
	case p == "":
		return "is missing"
	case strings.ContainsRune(p, 0):
		return "has a NUL byte"
	case !filepath.IsAbs(p):
		return "is not absolute"
	case filepath.Clean(p) != p:
		return "is not clean"
	}
	if reason := kernelFault(p); reason != "" && !defence.LayoutKernelFiles.Off() {
		return reason
	}
	info, err := os.Lstat(p)
	if err != nil {
		return fmt.Sprintf("cannot be used: %v", unwrapPath(err))
	}
	if info.Mode()&os.ModeSymlink != 0 && !defence.LayoutLinks.Off() {
		return "is a symbolic link; give the directory that it points to"
	}
	if !info.IsDir() {
		return "is not a directory"
	}
	if real, err := filepath.EvalSymlinks(p); err == nil && real != p && !defence.LayoutLinks.Off() {
		return fmt.Sprintf("goes through a symbolic link; give %q", real)
	}
	for _, own := range private {
		if real, err := filepath.EvalSymlinks(own); err == nil {
			own = real // p has no links: a link on the way to own would hide it
		}
		if (within(p, own) || within(own, p)) && !defence.LayoutOwnState.Off() {
			return "touches berm's own state"
		}
	}
	return ""
}

// Shared memory holds the files that all sandboxes of the process backend see,
// each driver's in a directory of this prefix.
const (
	sharedMemory = "/dev/shm"
	kitPrefix    = "berm-kit-"
	// leasesDir says which host uids sandboxes of root have, whatever the state
	// directories are.
	leasesDir = "/run/berm-uids"
)

// kernelFault refuses what is not files: through it the host could be seen and
// moved from inside, whatever the mode of the mount.
func kernelFault(p string) string {
	if name, below := strings.CutPrefix(p, sharedMemory+"/"); below && !strings.HasPrefix(name, kitPrefix) {
		return ""
	}
	for _, taken := range []string{"/proc", "/sys", "/dev"} {
		if within(p, taken) {
			return "belongs to the system"
		}
	}
	if within(p, leasesDir) || within(leasesDir, p) && p != "/" {
		return "touches berm's own state"
	}
	return ""
}

// checkDestinations refuses equal and nested paths inside: a mount below
// another would need a mount point in somebody's files.
func (r *resolver) checkDestinations() {
	for i, a := range r.mounts {
		for _, b := range r.mounts[i+1:] {
			switch {
			case a.Dest == b.Dest:
				r.fault("%s and %s: both are at %s", a.Name, b.Name, a.Dest)
			case (within(a.Dest, b.Dest) || within(b.Dest, a.Dest)) && !defence.LayoutNesting.Off():
				r.fault("%s and %s: %s and %s are nested", a.Name, b.Name, a.Dest, b.Dest)
			}
		}
	}
}

// checkOverlaps refuses sources of different mode that share files: the
// read-write one would alias the read-only one.
func (r *resolver) checkOverlaps() {
	for i, a := range r.mounts {
		for _, b := range r.mounts[i+1:] {
			if a.Source == "" || b.Source == "" || a.Writable == b.Writable {
				continue
			}
			if (within(a.Source, b.Source) || within(b.Source, a.Source)) && !defence.LayoutOverlap.Off() {
				r.fault("%s and %s: sources %s and %s overlap, and one of them is writable", a.Name, b.Name, a.Source, b.Source)
			}
		}
	}
}

// within reports whether p is dir or below it. Both are clean and absolute.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// unwrapPath drops the operation and path of an *os.PathError, which the caller
// says already.
func unwrapPath(err error) error {
	if inner, ok := err.(*os.PathError); ok { //nolint:errorlint // straight from os.Lstat
		return inner.Err
	}
	return err
}
