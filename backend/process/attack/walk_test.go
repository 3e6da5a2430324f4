//go:build linux

package attack_test

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// refusedNumbers must be refused whatever their arguments are. The list is
// written a second time, beside the filter's own, on purpose.
func refusedNumbers() map[string][]int {
	return map[string][]int{
		"EPERM": {
			unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER,
			unix.SYS_IO_URING_REGISTER, unix.SYS_FANOTIFY_INIT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE,
			unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_SYSLOG,
			unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP,
			unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
			unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOUNT_SETATTR,
			unix.SYS_SETNS, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME,
			unix.SYS_ADJTIMEX,
		},
		"ENOSYS": {
			unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_MEMFD_SECRET, unix.SYS_LOOKUP_DCOOKIE,
			unix.SYS_NFSSERVCTL, unix.SYS_OPENAT2, 480, 499, 510, 519,
		},
	}
}

// process-tier 1.7 weak 7 "no syscall denylist": every call, with arguments that
// do no harm; the agent lives.
func TestWalkOverAllCalls(t *testing.T) {
	t.Parallel()
	b := fresh(t, defaults())
	v := attack(t, b, "walk")
	alive(t, b)
	byName := map[string]attempt{}
	for _, a := range v {
		byName[a.Name] = a
	}
	for errno, numbers := range refusedNumbers() {
		for _, number := range numbers {
			for _, argument := range []int{0, -1} {
				if a := byName[fmt.Sprintf("%d of %d", number, argument)]; a.Errno != errno {
					t.Errorf("call %d with %d: %q %s, want %s", number, argument, a.Errno, a.Detail, errno)
				}
			}
		}
	}
	// Most calls are answered: the walk did not end at the first one.
	silent := slices.DeleteFunc(slices.Clone(v), func(a attempt) bool { return a.Errno != "none" })
	if len(v) < 1000 || len(silent) > 40 {
		t.Errorf("%d calls were made, %d without an answer: %+v", len(v), len(silent), silent)
	}
}
