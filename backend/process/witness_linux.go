package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/posture"
)

// namespaceClaims names the kernel's file of each namespace's claim.
func namespaceClaims() map[posture.Claim]string {
	return map[posture.Claim]string{
		posture.MountNamespace:   "mnt",
		posture.UserNamespace:    "user",
		posture.NetworkNamespace: "net",
		posture.PIDNamespace:     "pid",
		posture.IPCNamespace:     "ipc",
		posture.UTSNamespace:     "uts",
		posture.CgroupNamespace:  "cgroup",
	}
}

// Witness measures the sandbox's first process from outside: its namespaces, who
// it is on the host, and its cgroups' limits. Errors: TransportLost when the
// sandbox has ended.
func (m *machine) Witness(ctx context.Context) ([]posture.Fact, error) {
	if err := ctx.Err(); err != nil {
		return nil, errdefs.Wrap(errdefs.KindOf(err), "witness", err)
	}
	pid := m.child.first.pid
	var facts []posture.Fact
	for claim, name := range namespaceClaims() {
		held, detail := apart(pid, name, m.child.proc.Pid)
		facts = append(facts, posture.Fact{Claim: claim, Witness: posture.Host, Held: held, Detail: detail})
	}
	held, detail := m.unprivileged(pid)
	facts = append(facts, posture.Fact{Claim: posture.UnprivilegedUID, Witness: posture.Host, Held: held, Detail: detail})
	facts = append(facts, limitFact(posture.MemoryLimit, m.group.ProveMemory(pid)),
		limitFact(posture.ProcessLimit, m.group.ProveProcesses(pid)))
	// All of it was about this process only if it is still there now.
	if !m.child.first.alive() && !defence.WitnessAlive.Off() {
		return nil, refused(errdefs.TransportLost, "witness", "the sandbox has ended")
	}
	return facts, nil
}

func limitFact(claim posture.Claim, p cgroup.Proof) posture.Fact {
	return posture.Fact{Claim: claim, Witness: posture.Host, Held: p.Held, Detail: p.Detail}
}

// apart compares one namespace of a process with the caller's, and with
// bubblewrap's own: that is started in namespaces which are not the caller's
// either, and its word that it made others counts for nothing.
func apart(pid int, name string, bubblewrap int) (held bool, detail string) {
	theirs, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", name))
	if err != nil {
		return false, fmt.Sprintf("cannot be read: %v", plainPath(err))
	}
	ours, err := os.Readlink(filepath.Join("/proc/self/ns", name))
	if err != nil {
		return false, fmt.Sprintf("the caller's cannot be read: %v", plainPath(err))
	}
	outer, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(bubblewrap), "ns", name))
	if err != nil {
		return false, fmt.Sprintf("bubblewrap's cannot be read: %v", plainPath(err))
	}
	detail = fmt.Sprintf("%s, the caller's is %s", theirs, ours)
	if outer != ours {
		detail += fmt.Sprintf(", bubblewrap's is %s", outer)
	}
	return theirs != ours && theirs != outer || defence.WitnessNamespaces.Off(), detail
}

// unprivileged reports whether the sandbox's one uid is, on the host, neither
// root nor, for a root caller, another than the leased one.
func (m *machine) unprivileged(pid int) (held bool, detail string) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	data, err := os.ReadFile(filepath.Join(proc, "uid_map"))
	if err != nil {
		return false, fmt.Sprintf("uid_map cannot be read: %v", plainPath(err))
	}
	uids, err := statusField(filepath.Join(proc, "status"), "Uid:")
	if err != nil {
		return false, fmt.Sprintf("uids cannot be read: %v", plainPath(err))
	}
	want := strconv.Itoa(os.Geteuid())
	if m.lease != nil {
		want = strconv.FormatUint(uint64(m.lease.uid), 10)
	}
	held, detail = judgeUIDs(string(data), uids, want)
	// An unprivileged caller's bubblewrap starts below such a map already.
	if inner, why := apart(pid, "user", m.child.proc.Pid); !inner {
		return false, detail + ", " + why
	}
	return held, detail
}

// judgeUIDs wants a map of exactly one uid, onto want, and that want is who the
// process is, four times over.
func judgeUIDs(uidMap, uids, want string) (held bool, detail string) {
	detail = fmt.Sprintf("uid map %q, uids %q", strings.Join(strings.Fields(uidMap), " "), strings.Join(strings.Fields(uids), " "))
	entry := strings.Fields(uidMap)
	if defence.WitnessUID.Off() {
		return true, detail
	}
	if want == "0" || len(entry) != 3 || entry[0] == "0" || entry[1] != want || entry[2] != "1" {
		return false, detail
	}
	fields := strings.Fields(uids)
	for _, uid := range fields {
		if uid != want {
			return false, detail
		}
	}
	return len(fields) == 4, detail
}
