package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/agent/detach"
)

// detachLimit bounds the wait for the helper, in seconds.
const detachLimit = 10

// errNotDetached says that no way led to a detached mount.
var errNotDetached = errors.New("this caller can make no user and mount namespace to detach it in")

// detach opens a directory as the root of a detached mount, for a caller that may
// not do that itself: the agent's program does, as root of namespaces of its own.
func (d *bubble) detach(dir string) (*os.File, error) {
	<-d.sealed
	if d.agent == nil {
		return nil, errors.New("there is no agent's program")
	}
	fault := errNotDetached
	for _, way := range waysApart() {
		if way == (ownMounts{}) {
			break
		}
		file, err := d.detachBy(way, dir)
		if err == nil {
			return file, nil
		}
		fault = errors.Join(fault, err)
	}
	return nil, fault
}

func (d *bubble) detachBy(way ownMounts, dir string) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "detach"), os.NewFile(uintptr(pair[1]), "detach")
	defer ours.Close()
	attr := &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{d.input, nil, nil, theirs, d.agent}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	const agentFD = 4
	path, argv := way.wrap("/proc/self/fd/"+strconv.Itoa(agentFD), []string{"berm-agent", "detach", dir}, attr, true)
	helper, err := d.forker.start(path, argv, attr)
	err = errors.Join(err, theirs.Close())
	if err != nil {
		return nil, fmt.Errorf("start the helper: %w", err)
	}
	file, err := receiveDir(int(ours.Fd()), dir)
	if err != nil {
		_ = helper.Kill() // it has ended, or hangs
	}
	if state, waitErr := helper.Wait(); err == nil && (waitErr != nil || !state.Success()) {
		err = errors.Join(fmt.Errorf("the helper ended with %v", state), waitErr, file.Close())
	}
	if err != nil {
		return nil, err
	}
	return file, nil
}

// receiveDir takes the helper's answer. The descriptor has to be of dir itself.
func receiveDir(socket int, dir string) (*os.File, error) {
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: detachLimit}); err != nil {
		return nil, err
	}
	data, control := make([]byte, detach.Refusal), make([]byte, unix.CmsgSpace(4))
	var n, oob int
	var err error
	for {
		n, oob, _, _, err = unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("hear from the helper: %w", err)
	case n == detach.Refusal:
		return nil, fmt.Errorf("detach the mount: %w", syscall.Errno(int(data[0])|int(data[1])<<8))
	case n == 0 || oob == 0:
		return nil, errors.New("the helper ended before it had answered")
	}
	messages, err := unix.ParseSocketControlMessage(control[:oob])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("the helper's answer is malformed"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("the helper's answer is malformed"), err)
	}
	file := os.NewFile(uintptr(fds[0]), dir)
	var want, got unix.Stat_t
	err = errors.Join(unix.Lstat(dir, &want), unix.Fstat(fds[0], &got))
	if err != nil || want.Dev != got.Dev || want.Ino != got.Ino {
		return nil, errors.Join(fmt.Errorf("%s was exchanged", dir), err, file.Close())
	}
	return file, nil
}
