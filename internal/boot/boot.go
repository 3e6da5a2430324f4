// Package boot is what a backend tells its agent before anything else, as the
// first message on the control socket. Both sides are built from one tree, so
// the format has no version: an agent that cannot read it ends.
package boot

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Config is the first message. Descriptors travel beside it, one for each name
// in Files, in order.
type Config struct {
	// User is the name of the user that payloads run as, Home its directory.
	User string `json:"user"`
	Home string `json:"home"`
	// Dir is the working directory of commands that name none.
	Dir string `json:"dir"`
	// Path is the PATH of commands.
	Path string `json:"path"`
	// TempDir is TMPDIR; empty for /tmp.
	TempDir string `json:"tempDir,omitempty"`
	// Limits on each payload by rlimit, for hosts without cgroups; 0 is none.
	// Processes counts all of the sandbox's processes (RLIMIT_NPROC in its own
	// user namespace), DataBytes is per process (RLIMIT_DATA).
	Processes int   `json:"processes,omitempty"`
	DataBytes int64 `json:"dataBytes,omitempty"`
	// MemoryBytes and CPUs are what the sandbox may use, by whatever means that is
	// enforced: its metrics tell. 0 is all that the host has.
	MemoryBytes int64   `json:"memoryBytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	// Mark makes the agent start commands through its exec mode, which marks
	// them so that their tree can be found without a cgroup.
	Mark bool `json:"mark,omitempty"`
	// MarkBase is what all marks of this agent begin with (MarkBits); 0 lets the
	// agent choose. A backend that gives one can find every process of the
	// sandbox itself, should the agent be gone.
	MarkBase uint64 `json:"markBase,omitempty"`
	// Shared is true where the agent's namespaces are the host's (passthrough):
	// the agent then only ever signals processes that carry its own marks.
	Shared bool `json:"shared,omitempty"`
	// EgressAddress, when not empty, is the loopback address where the agent opens
	// the egress listener that it hands to the host in its hello; another port where
	// that one is taken. Commands then get the variables that lead clients there.
	EgressAddress string `json:"egressAddress,omitempty"`
	// EgressUser and EgressPassword, when not empty, are what the gate asks for of
	// its clients: for a loopback that others can reach too.
	EgressUser     string `json:"egressUser,omitempty"`
	EgressPassword string `json:"egressPassword,omitempty"`
	// Connector is the agent's program as payloads can start it, for its connect
	// mode; empty where they cannot.
	Connector string `json:"connector,omitempty"`
	// TrustDir is a directory on a file system in memory where the agent keeps the
	// certificates that payloads are to trust; empty where there is none.
	TrustDir string `json:"trustDir,omitempty"`
	// Probe, when not nil, is the host's first probe request: the agent begins it
	// at once, and has the answer, or is about to, when it is asked for.
	Probe *Probe `json:"probe,omitempty"`
	// SizedPaths are directories on file systems of the sandbox's own whose size is
	// its disk limit: the agent says when a command has filled one.
	SizedPaths []string `json:"sizedPaths,omitempty"`
	// Files names the descriptors: CgroupDir, TasksPrefix + anything.
	Files []string `json:"files,omitempty"`
}

// Probe is a probe request's lists.
type Probe struct {
	WritePaths      []string `json:"writePaths,omitempty"`
	AbstractSockets []string `json:"abstractSockets,omitempty"`
	SizePaths       []string `json:"sizePaths,omitempty"`
}

// MarkBits is the part of a mark that is the agent's; the rest counts commands.
const MarkBits = uint64(1)<<62 - 1<<32

// NewMarkBase gives a base that no other agent has. It is not small, and below
// the kernel's "unlimited".
func NewMarkBase() uint64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return binary.LittleEndian.Uint64(random[:])&MarkBits | 1<<61
}

// Names of descriptors.
const (
	// CgroupDir is a cgroup v2 directory in which the agent makes one cgroup per
	// command.
	CgroupDir = "cgroup"
	// TasksPrefix begins the name of a cgroup v1 `tasks` file, open for writing,
	// that the thread that starts commands has to join.
	TasksPrefix = "tasks:"
)

// MaxBytes bounds the encoded Config.
const MaxBytes = 64 << 10

// Encode gives the message.
func (c Config) Encode() ([]byte, error) {
	out, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode boot message: %w", err)
	}
	if len(out) > MaxBytes {
		return nil, fmt.Errorf("boot message has %d bytes, more than %d", len(out), MaxBytes)
	}
	return out, nil
}

// Decode reads the message.
func Decode(data []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, fmt.Errorf("decode boot message: %w", err)
	}
	return c, nil
}
