//go:build linux

package attack_test

import "testing"

// process-tier 1.7 weak 2 and 7, section 5 item 6, attacks 8 and 9.
func TestNamespacesCannotBeMade(t *testing.T) {
	t.Parallel()
	v := attack(t, shared(t), "namespaces")
	v.of("clone ").blocked(t, "EPERM")
	v.of("unshare ").blocked(t, "EPERM")
	// The filter cannot see clone3's flags: here user.max_user_namespaces (ENOSPC)
	// and the missing capability (EPERM) answer.
	v.of("clone3 ").blocked(t, "EPERM", "ENOSPC")
	v.blocked(t, "EPERM", "ENOSPC")
}

func TestNamespacesCannotBeEntered(t *testing.T) {
	t.Parallel()
	attack(t, shared(t), "setns").blocked(t, "EPERM", "EACCES")
}

// process-tier 1.7 "remount / rw" and weak 7.
func TestMountsCannotBeChanged(t *testing.T) {
	t.Parallel()
	b := shared(t)
	before := output(t, b, "cat", "/proc/self/mountinfo")
	attack(t, b, "mount-calls").blocked(t, "EPERM")
	attack(t, b, "new-mounts").blocked(t, "EPERM")
	if after := output(t, b, "cat", "/proc/self/mountinfo"); after != before {
		t.Errorf("the mounts changed:\n%s\n%s", before, after)
	}
}
