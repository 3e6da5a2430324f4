//go:build linux

package egress_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stageName is the variable that says which of its lives the test program is in:
// empty for the one that `go test` started, then stageBuild in namespaces of its
// own, then the same process once more, as stageTest, without any privilege that
// its caller does not have.
const (
	stageName  = "BERM_E2E_EGRESS_STAGE"
	stageBuild = "build"
	stageTest  = "test"
	// stageSweep is a process beside, which outlives the others whatever ends them.
	stageSweep = "sweep"
	// stateName has berm's state directory, on the machine's own file system.
	stateName = "BERM_E2E_EGRESS_STATE"
	// reasonName carries why there is no network; the test skips with it.
	reasonName = "BERM_E2E_EGRESS_REASON"
)

func TestMain(m *testing.M) {
	switch os.Getenv(stageName) {
	case "":
		os.Exit(inNamespaces(m))
	case stageSweep:
		os.Exit(sweep())
	case stageBuild:
		// It returns only where it failed.
		err := buildNetwork()
		if errors.Is(err, errImpossible) {
			_ = os.Setenv(stageName, stageTest)
			_ = os.Setenv(reasonName, err.Error())
			os.Exit(m.Run())
		}
		fmt.Fprintln(os.Stderr, "build the network:", err)
		os.Exit(1)
	}
	if err := dieWithParent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// inNamespaces runs this program again in namespaces of its own. With the last
// process in them everything that the test makes is gone: interfaces, routes,
// mounts, and what is in the mounts.
func inNamespaces(m *testing.M) int {
	// The child dies with the thread that made it.
	runtime.LockOSThread()
	sweeper, alive, err := startSweeper()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the sweeper:", err)
		return 1
	}
	defer func() {
		_ = alive.Close()
		_ = sweeper.Wait()
	}()
	child := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:noctx // signals are passed on
	child.Env = append(os.Environ(), stageName+"="+stageBuild)
	child.ExtraFiles = []*os.File{alive}
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		// The ids stay, so that berm is called by whom it would be called by.
		child.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		child.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		child.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		child.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW}
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := child.Start(); err != nil {
		if os.Getuid() == 0 {
			fmt.Fprintln(os.Stderr, "make namespaces:", err)
			return 1
		}
		_ = os.Setenv(stageName, stageTest)
		_ = os.Setenv(reasonName, fmt.Sprintf("namespaces cannot be made here: %v", err))
		return m.Run()
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = child.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			if err == nil {
				return 0
			}
			if errors.As(err, &exit) && exit.Exited() {
				return exit.ExitCode()
			}
			fmt.Fprintln(os.Stderr, "the test's process:", err)
			return 1
		}
	}
}

// aliveFD is the descriptor whose end tells the sweeper that the test is over.
const aliveFD = 3

// startSweeper starts what cleans up after a test that was killed: what berm keeps
// outside the namespaces, which its own next start would find.
func startSweeper() (*exec.Cmd, *os.File, error) {
	state, err := os.MkdirTemp("", "berm-e2e-egress-")
	if err != nil {
		return nil, nil, err
	}
	if err := os.Setenv(stateName, state); err != nil {
		return nil, nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = read.Close() }()
	sweeper := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:noctx // it has to outlive this program
	sweeper.Env = append(os.Environ(), stageName+"="+stageSweep)
	sweeper.ExtraFiles = []*os.File{read}
	sweeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return sweeper, write, sweeper.Start()
}

// sweep waits for the test's end and removes its state directory, and the cgroups
// of sandboxes that are still in it.
func sweep() int {
	_, _ = os.NewFile(aliveFD, "alive").Read(make([]byte, 1))
	state := os.Getenv(stateName)
	left, _ := filepath.Glob(filepath.Join(state, "*", "sandboxes", "*"))
	for _, name := range left {
		// Their processes are being killed.
		for range 100 {
			if sweepCgroups(strings.TrimSuffix(filepath.Base(name), ".json")) {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	_ = os.RemoveAll(state)
	return 0
}

// sweepCgroups removes a sandbox's cgroups, the innermost first, and reports
// whether none is left.
func sweepCgroups(id string) bool {
	gone := true
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(name, "/berm-"+id) {
			found = append(found, name)
		}
		return nil
	})
	for _, name := range slices.Backward(found) {
		gone = os.Remove(name) == nil && gone
	}
	return gone
}

// dieWithParent makes up for what execve has forgotten.
func dieWithParent() error {
	if os.Getenv(parentName) == "" {
		return nil
	}
	unix.CloseOnExec(aliveFD)
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("die with the parent: %w", err)
	}
	if fmt.Sprint(os.Getppid()) != os.Getenv(parentName) {
		return errors.New("the parent is gone")
	}
	return nil
}
