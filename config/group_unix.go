//go:build unix

package config

import (
	"os/exec"
	"syscall"
)

// killsItsGroup makes the end of a command's context end what it started, too.
func killsItsGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
