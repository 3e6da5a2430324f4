package process

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// favouredMarker makes the test program play a caller with a high priority.
const favouredMarker = "BERM_TEST_FAVOURED"

// TestFavouredCaller is not a test: it is the caller of TestPriorityIsNotHandedOn.
func TestFavouredCaller(t *testing.T) {
	if os.Getenv(favouredMarker) == "" {
		t.Skip("it is started by another test")
	}
	d, _ := opened(t)
	spec := plainSpec(d)
	if d.cgroups.Support().CPUs {
		spec.Limits.CPUs = 1 // a real-time process could not join its cgroup
	}
	out, _ := run(t, created(t, d, spec), "cut -d' ' -f18,19,40,41 /proc/self/stat")
	// Batch processing is the less for it.
	if out != "20 0 0 0\n" && out != "20 0 0 3\n" {
		t.Errorf("a payload's priority, nice value, real-time priority and policy are %q", out)
	}
}

// TestPriorityIsNotHandedOn: a payload of a caller that comes before others does not.
func TestPriorityIsNotHandedOn(t *testing.T) {
	t.Parallel()
	for name, attr := range map[string]unix.SchedAttr{
		"real-time": {Policy: unix.SCHED_FIFO, Priority: 3}, "nice": {Policy: unix.SCHED_NORMAL, Nice: -7}, "batch": {Policy: unix.SCHED_BATCH, Nice: -7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed := make(chan string, 1)
			go func() {
				// A child has the policy of the thread that forks it.
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				attr.Size = unix.SizeofSchedAttr
				if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
					failed <- "not here: " + err.Error()
					return
				}
				defer func() {
					usual := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
					if err := unix.SchedSetAttr(0, &usual, 0); err != nil {
						t.Errorf("the thread keeps its policy: %v", err)
					}
				}()
				cmd := exec.Command(os.Args[0], "-test.run=^TestFavouredCaller$")
				cmd.Env = append(os.Environ(), favouredMarker+"=1")
				out, err := cmd.CombinedOutput()
				if err != nil {
					failed <- err.Error() + "\n" + string(out)
				}
				close(failed)
			}()
			if got := <-failed; strings.HasPrefix(got, "not here: ") {
				t.Skipf("this caller may take no priority: %s", got)
			} else if got != "" {
				t.Error(got)
			}
		})
	}
}
