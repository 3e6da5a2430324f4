package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/posture"
)

// document is the file in typed form, with the file's own names. The fields of
// the backend stay as they were written.
type document struct {
	Tier                 driver.Tier       `json:"tier"`
	Layout               *driver.Layout    `json:"layout,omitempty"`
	DefaultEgress        *defaultEgress    `json:"defaultEgress,omitempty"`
	Credentials          []credential      `json:"credentials,omitempty"`
	AllowInwardFor       []string          `json:"allowInwardFor,omitempty"`
	Toolchains           *toolchains       `json:"toolchains,omitempty"`
	Network              driver.Network    `json:"network,omitempty"`
	DefaultTimeoutMs     int64             `json:"defaultTimeoutMs,omitempty"`
	DefaultMemoryLimitMb int64             `json:"defaultMemoryLimitMb,omitempty"`
	DefaultMaxProcesses  int64             `json:"defaultMaxProcesses,omitempty"`
	CPUs                 float64           `json:"cpus,omitempty"`
	BestEffort           bool              `json:"bestEffort,omitempty"`
	Env                  map[string]string `json:"env,omitempty"`
	Require              []string          `json:"require,omitempty"`
	StateDir             string            `json:"stateDir,omitempty"`
	Agent                string            `json:"agent,omitempty"`

	backend map[string]json.RawMessage
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// readDocument reads the common fields. A nil factory is a backend that was not
// found; the reading goes on, so that all faults are told together.
func readDocument(o *object, factory *driver.Factory) document {
	var d document
	if factory != nil {
		d.Tier = factory.Tier
	}
	if layout := o.object("layout"); layout != nil {
		read := readLayout(layout)
		d.Layout = &read
	}
	d.Toolchains = readToolchains(o)
	d.readEgress(o, factory)
	// Milliseconds are bounded by what a 32-bit timer takes, the memory by what
	// package berm accepts, processes by the kernel's largest pid.
	d.DefaultTimeoutMs = o.whole("defaultTimeoutMs", 1, math.MaxInt32)
	d.DefaultMemoryLimitMb = o.whole("defaultMemoryLimitMb", 4, math.MaxInt32)
	d.DefaultMaxProcesses = o.whole("defaultMaxProcesses", 1, 1<<22)
	d.CPUs = o.between("cpus", 0.01, 4096)
	d.BestEffort = o.boolean("bestEffort")
	d.readEnv(o)
	d.readRequire(o)
	d.StateDir = o.absolute("stateDir")
	d.Agent = o.absolute("agent")
	return d
}

func (d *document) readEnv(o *object) {
	env := o.object("env")
	if env == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(env.fields)) {
		if !envName.MatchString(name) {
			o.faults.add("%s: not the name of an environment variable ([A-Za-z_][A-Za-z0-9_]*)", env.at(name))
			continue
		}
		if value, ok := env.text(name); ok {
			if d.Env == nil {
				d.Env = map[string]string{}
			}
			d.Env[name] = value
		}
	}
}

func (d *document) readRequire(o *object) {
	known := make([]string, 0, len(posture.Dimensions))
	for _, dimension := range posture.Dimensions {
		known = append(known, string(dimension))
	}
	list(o, "require", "a string", func(place, name string) {
		switch {
		case !slices.Contains(known, name):
			o.faults.add("%s: %s is unknown; known: %s%s", place, quote(name), strings.Join(known, ", "), suggest(name, known))
		case slices.Contains(d.Require, name):
			o.faults.add("%s: %q is given twice", place, name)
		default:
			d.Require = append(d.Require, name)
		}
	})
}

// absolute reads a clean absolute path of the host. Whether it exists is for
// the opening to see: the state directory is made there.
func (o *object) absolute(name string) string {
	path, given := o.text(name)
	switch {
	case !given:
	case !filepath.IsAbs(path):
		o.faults.add("%s: %s is not an absolute path", o.at(name), quote(path))
	case filepath.Clean(path) != path:
		o.faults.add("%s: %s is not clean; write %s", o.at(name), quote(path), quote(filepath.Clean(path)))
	}
	return path
}

func (d document) layout() driver.Layout {
	if d.Layout == nil {
		return driver.Layout{}
	}
	return *d.Layout
}

// config turns the document into what berm.Open takes.
func (d document) config() berm.Config {
	cfg := berm.Config{
		Agent:    berm.AgentProgram{Path: d.Agent},
		StateDir: d.StateDir,
		Layout:   d.layout(),
		Limits: berm.Limits{
			MemoryBytes: d.DefaultMemoryLimitMb << 20,
			Processes:   int(d.DefaultMaxProcesses),
			CPUs:        d.CPUs,
			BestEffort:  d.BestEffort,
		},
		Toolchains: d.Toolchains.config(),

		Network: d.network(),
		Egress:  d.policy(),
		Timeout: time.Duration(d.DefaultTimeoutMs) * time.Millisecond,
		Env:     maps.Clone(d.Env),
	}
	for _, name := range d.Require {
		cfg.Require = cfg.Require.With(posture.Dimension(name), true)
	}
	return cfg
}

// Encode gives the file as JSON, with the fields of the backend as they were
// written. Parse reads it back to the same File. It holds secrets.
func (f *File) Encode() ([]byte, error) { return f.document.encode() }

func (d document) encode() ([]byte, error) {
	common, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(common, &all); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	maps.Copy(all, d.backend)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(all); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return out.Bytes(), nil
}
