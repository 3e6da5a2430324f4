package agent

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
)

// tree is every process that descends from one command, however it
// daemonises. Methods may be called concurrently.
type tree interface {
	// place prepares a start so that the child is born in the tree.
	place(s *start)
	// lead tells the tree its first process, right after the start.
	lead(pid int)
	// members lists the living processes, without the ended leader. An empty
	// tree costs no scan where the kernel can say so.
	members() ([]int, error)
	// kill ends all of them, also those that are being forked. It may return
	// before the last is gone, but none can run on. After release it does
	// nothing.
	kill() error
	// release frees the tree and is true when no process is left; otherwise it
	// changes nothing and is to be called again.
	release() bool
}

// trees makes them.
type trees interface {
	plant() (tree, error)
	// close frees what is left. All trees were killed before.
	close() error
}

// start is one fork: what the implementations of tree may change.
type start struct {
	attr syscall.SysProcAttr
	// files are the descriptors of the child, from 0 up.
	files []uintptr
	// mark is set by the tree that finds its members by it; 0 is none.
	mark uint64
}

// newTrees picks the strongest way that the boot message offers.
func newTrees(config Config) (trees, error) {
	if dir := config.namedFile(boot.CgroupDir); dir != nil && !defence.CommandCgroup.Off() {
		return newCgroupTrees(dir)
	}
	if (config.Boot.Mark || config.Boot.Shared) && !defence.CommandMark.Off() {
		return newMarkTrees(config.Boot.Shared, orphans{adopted: config.Reap}, config.Boot.MarkBase), nil
	}
	return sessionTrees{orphans: orphans{adopted: config.Reap}}, nil
}

// orphans says whether a scan for descendants can be spared.
type orphans struct {
	// adopted is true where orphans come to this process: without a child of
	// its own it has no descendant at all.
	adopted bool
}

// none is true when there is surely no process below this one, dead or alive.
func (o orphans) none() bool {
	if !o.adopted {
		return false
	}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return errors.Is(err, unix.ECHILD)
}
