package berm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/internal/defence"
)

// AgentProgram says where the agent's program is. With both fields empty, Open
// looks at $BERM_AGENT, beside the running executable, and in PATH, in this
// order; a found program that is not usable is an error, not a reason to look
// further.
type AgentProgram struct {
	// Path is an absolute path of the program.
	Path string
	// Image is the program itself; it wins over Path. It must not be changed.
	Image []byte
}

const (
	agentName = "berm-agent"
	agentEnv  = "BERM_AGENT"
	// maxAgentBytes bounds what is read into memory; a stripped agent has about
	// a tenth of it.
	maxAgentBytes = 128 << 20
)

// agentFix makes the agent's program where it is found.
const agentFix = "CGO_ENABLED=0 go install github.com/berm-dev/berm/cmd/" + agentName + "@latest"

// agentError says that there is no usable agent program.
type agentError struct{ error }

// Unwrap gives the reason.
func (e *agentError) Unwrap() error { return e.error }

// load finds and reads the agent.
func (a AgentProgram) load() (driver.Agent, error) {
	if len(a.Image) > 0 {
		return checkAgent(driver.Agent{Image: a.Image, Origin: "built in"})
	}
	path, err := a.find()
	if err != nil {
		return driver.Agent{}, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return driver.Agent{}, fmt.Errorf("agent program: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxAgentBytes:
		return driver.Agent{}, fmt.Errorf("agent program %s is not a regular file of at most %d bytes", path, maxAgentBytes)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		return driver.Agent{}, fmt.Errorf("agent program: %w", err)
	}
	return checkAgent(driver.Agent{Image: image, Origin: path})
}

func (a AgentProgram) find() (string, error) {
	if a.Path != "" {
		if !filepath.IsAbs(a.Path) {
			return "", fmt.Errorf("agent program %q is not an absolute path", a.Path)
		}
		return a.Path, nil
	}
	if path := os.Getenv(agentEnv); path != "" {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("%s=%q is not an absolute path", agentEnv, path)
		}
		return path, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), agentName)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("agent program: %w", err)
		}
	}
	if path, err := exec.LookPath(agentName); err == nil {
		return filepath.Abs(path)
	}
	return "", fmt.Errorf("the agent program %s was not found in $%s, beside the executable or in PATH; "+
		"install it with: %s", agentName, agentEnv, agentFix)
}

// checkAgent refuses a program that could not run in a sandbox: a dynamic one
// would need the sandbox's loader, and one of another machine would not start.
func checkAgent(agent driver.Agent) (driver.Agent, error) {
	file, err := elf.NewFile(bytes.NewReader(agent.Image))
	if err != nil {
		return driver.Agent{}, fmt.Errorf("agent program (%s) is not an ELF executable: %w", agent.Origin, err)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if want, ok := machines[runtime.GOARCH]; ok && file.Machine != want {
		return driver.Agent{}, fmt.Errorf("agent program (%s) is for %v, this machine is %s", agent.Origin, file.Machine, runtime.GOARCH)
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP && !defence.AgentStatic.Off() {
			return driver.Agent{}, fmt.Errorf("agent program (%s) is dynamically linked; build it with CGO_ENABLED=0", agent.Origin)
		}
	}
	return agent, nil
}
