//go:build linux

package seccomp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/seccomp"
)

// request is struct seccomp_data without the instruction pointer.
type request struct {
	number uint32
	arch   uint32
	args   [6]uint64
}

func (r request) bytes() []byte {
	out := binary.LittleEndian.AppendUint32(nil, r.number)
	out = binary.LittleEndian.AppendUint32(out, r.arch)
	out = binary.LittleEndian.AppendUint64(out, 0x7fff_dead_beef)
	for _, a := range r.args {
		out = binary.LittleEndian.AppendUint64(out, a)
	}
	return out
}

// interpret runs a program as the kernel does, with its checks on the program.
// It returns the action and the number of instructions executed.
func interpret(prog []unix.SockFilter, r request) (seccomp.Action, int, error) {
	data := r.bytes()
	var acc uint32
	for pc, steps := 0, 1; pc < len(prog); pc, steps = pc+1, steps+1 {
		in := prog[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if in.K%4 != 0 || int(in.K)+4 > len(data) {
				return 0, steps, fmt.Errorf("load at %d", in.K)
			}
			acc = binary.LittleEndian.Uint32(data[in.K:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(acc >= in.K)
		case unix.BPF_RET | unix.BPF_K:
			return seccomp.Action(in.K), steps, nil
		default:
			return 0, steps, fmt.Errorf("instruction %#x", in.Code)
		}
	}
	return 0, 0, errors.New("ran off the end")
}

// nativeArch and lastCall are stated again here, apart from the package.
func nativeArch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

const lastCall = unix.SYS_FILE_SETATTR

// reference evaluates the table of rules directly.
func reference(rules []seccomp.Rule, r request) seccomp.Action {
	if r.arch != nativeArch() {
		return seccomp.KillProcess
	}
	if r.number == ^uint32(0) {
		return seccomp.Errno(unix.ENOSYS)
	}
	if runtime.GOARCH == "amd64" && r.number >= 0x40000000 {
		return seccomp.KillProcess
	}
	if r.number > lastCall {
		return seccomp.Errno(unix.ENOSYS)
	}
	for _, rule := range rules {
		if rule.Number == r.number && holds(rule.When, r) {
			return rule.Action
		}
	}
	return seccomp.Allow
}

func holds(conditions []seccomp.Condition, r request) bool {
	for _, c := range conditions {
		low := uint32(r.args[c.Arg]) & c.Mask
		switch c.Op {
		case seccomp.Equal:
			if low != c.Value {
				return false
			}
		case seccomp.NotEqual:
			if low == c.Value {
				return false
			}
		case seccomp.NonZero:
			if r.args[c.Arg] == 0 {
				return false
			}
		}
	}
	return true
}

func program(t testing.TB) []unix.SockFilter {
	t.Helper()
	prog, err := seccomp.Program()
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// TestPolicy states the decisions that matter by hand, apart from the table.
func TestPolicy(t *testing.T) {
	t.Parallel()
	const high = 1 << 32
	eperm, enosys := seccomp.Errno(unix.EPERM), seccomp.Errno(unix.ENOSYS)
	family, einval := seccomp.Errno(unix.EAFNOSUPPORT), seccomp.Errno(unix.EINVAL)
	cases := []struct {
		name   string
		number uint32
		args   [6]uint64
		want   seccomp.Action
	}{
		{"read", unix.SYS_READ, [6]uint64{}, seccomp.Allow},
		{"execve", unix.SYS_EXECVE, [6]uint64{}, seccomp.Allow},
		{"clone3", unix.SYS_CLONE3, [6]uint64{}, seccomp.Allow},
		{"ptrace", unix.SYS_PTRACE, [6]uint64{}, seccomp.Allow},
		{"unix", unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX}, seccomp.Allow},
		{"unix high", unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX | high}, seccomp.Allow},
		{"inet", unix.SYS_SOCKET, [6]uint64{unix.AF_INET}, seccomp.Allow},
		{"inet6", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6}, seccomp.Allow},
		{"vsock", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK}, family},
		{"vsock high", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK | high}, family},
		{"vsock high family of unix", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK | unix.AF_UNIX<<32}, family},
		{"packet", unix.SYS_SOCKET, [6]uint64{unix.AF_PACKET}, family},
		{"alg", unix.SYS_SOCKET, [6]uint64{unix.AF_ALG}, family},
		{"unspec", unix.SYS_SOCKET, [6]uint64{0}, family},
		{"route", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, seccomp.Allow},
		{"audit", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, family},
		{"socketpair", unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_UNIX}, seccomp.Allow},
		{"socketpair tipc", unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_TIPC}, family},
		{"ioctl", unix.SYS_IOCTL, [6]uint64{0, unix.TCGETS}, seccomp.Allow},
		{"TIOCSTI", unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSTI}, eperm},
		{"TIOCSTI high", unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSTI | high}, eperm},
		{"TIOCLINUX high", unix.SYS_IOCTL, [6]uint64{0, unix.TIOCLINUX | 7<<32}, eperm},
		{"chmod 0755", unix.SYS_FCHMODAT, [6]uint64{0, 0, 0o755}, seccomp.Allow},
		{"chmod sticky", unix.SYS_FCHMODAT, [6]uint64{0, 0, 0o1777}, seccomp.Allow},
		{"chmod u+s", unix.SYS_FCHMODAT, [6]uint64{0, 0, 0o4755}, eperm},
		{"fchmod g+s", unix.SYS_FCHMOD, [6]uint64{0, 0o2755}, eperm},
		{"fchmodat2", unix.SYS_FCHMODAT2, [6]uint64{0, 0, 0o4000, 0}, eperm},
		{"open, stray mode", unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_RDONLY, 0o6777}, seccomp.Allow},
		{"open directory, stray mode", unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_DIRECTORY, 0o6777}, seccomp.Allow},
		{"create", unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_CREAT | unix.O_RDWR, 0o666}, seccomp.Allow},
		{"create u+s", unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_CREAT | unix.O_RDWR, 0o4755}, eperm},
		{"O_TMPFILE u+s", unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_TMPFILE | unix.O_RDWR, 0o4755}, eperm},
		{"openat2", unix.SYS_OPENAT2, [6]uint64{}, enosys},
		{"mkdir", unix.SYS_MKDIRAT, [6]uint64{0, 0, 0o777}, seccomp.Allow},
		{"mkdir g+s", unix.SYS_MKDIRAT, [6]uint64{0, 0, 0o2777}, eperm},
		{"fifo", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFIFO | 0o600}, seccomp.Allow},
		{"socket node", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFSOCK | 0o600}, seccomp.Allow},
		{"regular node", unix.SYS_MKNODAT, [6]uint64{0, 0, 0o600}, seccomp.Allow},
		{"set-id node", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFREG | 0o4755}, eperm},
		{"whiteout", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFCHR | 0o600}, eperm},
		{"block device", unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFBLK}, eperm},
		{"rename", unix.SYS_RENAMEAT2, [6]uint64{0, 0, 0, 0, unix.RENAME_NOREPLACE}, seccomp.Allow},
		{"rename whiteout", unix.SYS_RENAMEAT2, [6]uint64{0, 0, 0, 0, unix.RENAME_WHITEOUT}, einval},
		{"thread", unix.SYS_CLONE, [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, seccomp.Allow},
		{"fork", unix.SYS_CLONE, [6]uint64{uint64(unix.SIGCHLD)}, seccomp.Allow},
		{"clone user", unix.SYS_CLONE, [6]uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, eperm},
		{"clone net", unix.SYS_CLONE, [6]uint64{unix.CLONE_NEWNET}, eperm},
		{"unshare files", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_FILES}, seccomp.Allow},
		{"unshare time", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_NEWTIME}, eperm},
		{"unshare user", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_NEWUSER}, eperm},
		{"own limits", unix.SYS_PRLIMIT64, [6]uint64{0, unix.RLIMIT_NOFILE, 1}, seccomp.Allow},
		{"agent's limits", unix.SYS_PRLIMIT64, [6]uint64{1, unix.RLIMIT_NOFILE, 1}, eperm},
		{"nice", unix.SYS_SETPRIORITY, [6]uint64{unix.PRIO_PROCESS, 0, 5}, seccomp.Allow},
		{"renice agent", unix.SYS_SETPRIORITY, [6]uint64{unix.PRIO_PROCESS, 1, 5}, eperm},
		{"renice user", unix.SYS_SETPRIORITY, [6]uint64{unix.PRIO_USER, 0, 5}, eperm},
		{"affinity of self", unix.SYS_SCHED_SETAFFINITY, [6]uint64{0}, seccomp.Allow},
		{"affinity of agent", unix.SYS_SCHED_SETAFFINITY, [6]uint64{1}, eperm},
		{"queue a signal", unix.SYS_RT_SIGQUEUEINFO, [6]uint64{1, uint64(unix.SIGUSR1), high}, seccomp.Allow},
		{"queue a fault", unix.SYS_RT_SIGQUEUEINFO, [6]uint64{7, uint64(unix.SIGSEGV) | high, high}, eperm},
		{"queue to an agent's thread", unix.SYS_RT_TGSIGQUEUEINFO, [6]uint64{1, 7, uint64(unix.SIGUSR1), high}, eperm},
		{"raise a fault again", unix.SYS_RT_TGSIGQUEUEINFO, [6]uint64{7, 7, uint64(unix.SIGSEGV), high}, seccomp.Allow},
		{"kill by pidfd", unix.SYS_PIDFD_SEND_SIGNAL, [6]uint64{3, uint64(unix.SIGSEGV), 0}, seccomp.Allow},
		{"forge by pidfd", unix.SYS_PIDFD_SEND_SIGNAL, [6]uint64{3, uint64(unix.SIGBUS), high}, eperm},
		{"signal by pidfd", unix.SYS_PIDFD_SEND_SIGNAL, [6]uint64{3, uint64(unix.SIGUSR1), high}, seccomp.Allow},
		{"descriptor flags", unix.SYS_FCNTL, [6]uint64{3, unix.F_GETFL, uint64(unix.SIGSEGV)}, seccomp.Allow},
		{"news by a real-time signal", unix.SYS_FCNTL, [6]uint64{3, unix.F_SETSIG, 40}, seccomp.Allow},
		{"news by a fault", unix.SYS_FCNTL, [6]uint64{3, unix.F_SETSIG | high, uint64(unix.SIGSYS)}, eperm},
		{"lease", unix.SYS_FCNTL, [6]uint64{3, unix.F_SETLEASE | high, unix.F_WRLCK}, einval},
		{"delegation", unix.SYS_FCNTL, [6]uint64{3, 1040}, einval},
		{"lease asked", unix.SYS_FCNTL, [6]uint64{3, unix.F_GETLEASE}, seccomp.Allow},
		{"personality", unix.SYS_PERSONALITY, [6]uint64{0}, seccomp.Allow},
		{"personality asked", unix.SYS_PERSONALITY, [6]uint64{0xffffffff}, seccomp.Allow},
		{"setarch -R", unix.SYS_PERSONALITY, [6]uint64{0x40000}, seccomp.Allow},
		{"linux32", unix.SYS_PERSONALITY, [6]uint64{8}, eperm},
		{"read implies exec", unix.SYS_PERSONALITY, [6]uint64{0x400000}, eperm},
		{"keyctl", unix.SYS_KEYCTL, [6]uint64{}, enosys},
		{"bpf", unix.SYS_BPF, [6]uint64{}, eperm},
		{"io_uring", unix.SYS_IO_URING_SETUP, [6]uint64{}, eperm},
		{"mount", unix.SYS_MOUNT, [6]uint64{}, eperm},
		{"setns", unix.SYS_SETNS, [6]uint64{}, eperm},
		{"open by handle", unix.SYS_OPEN_BY_HANDLE_AT, [6]uint64{}, eperm},
		{"move a mount", unix.SYS_MOVE_MOUNT, [6]uint64{}, eperm},
		{"set the clock", unix.SYS_CLOCK_SETTIME, [6]uint64{}, eperm},
		{"adjust the clock", unix.SYS_CLOCK_ADJTIME, [6]uint64{}, eperm},
		{"load a module", unix.SYS_FINIT_MODULE, [6]uint64{}, eperm},
		{"reboot", unix.SYS_REBOOT, [6]uint64{}, eperm},
		{"kernel log", unix.SYS_SYSLOG, [6]uint64{}, eperm},
		{"perf events", unix.SYS_PERF_EVENT_OPEN, [6]uint64{}, eperm},
		{"add a key", unix.SYS_ADD_KEY, [6]uint64{}, enosys},
		{"secret memory", unix.SYS_MEMFD_SECRET, [6]uint64{}, enosys},
		{"newer than the table", 500, [6]uint64{}, enosys},
	}
	prog := program(t)
	for _, c := range cases {
		got, _, err := interpret(prog, request{number: c.number, arch: nativeArch(), args: c.args})
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

func TestForeignABIs(t *testing.T) {
	t.Parallel()
	prog := program(t)
	for _, r := range []request{
		{arch: unix.AUDIT_ARCH_I386, number: 102},
		{arch: unix.AUDIT_ARCH_ARM, number: 1},
		{arch: 0},
	} {
		if got, _, err := interpret(prog, r); err != nil || got != seccomp.KillProcess {
			t.Errorf("%+v: %v, %v", r, got, err)
		}
	}
}

// TestLength holds the program short and the way of a common call quick.
func TestLength(t *testing.T) {
	t.Parallel()
	prog := program(t)
	longest := 0
	for number := range uint32(lastCall + 2) {
		_, steps, err := interpret(prog, request{number: number, arch: nativeArch()})
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, steps)
	}
	_, steps, err := interpret(prog, request{number: unix.SYS_READ, arch: nativeArch()})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d instructions; read takes %d, the longest %d", len(prog), steps, longest)
	if len(prog) > 400 || steps > 14 || longest > 40 {
		t.Error("the program has grown")
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	prog := program(t)
	data := seccomp.Encode(prog)
	if len(data) != 8*len(prog) {
		t.Fatalf("%d bytes for %d instructions", len(data), len(prog))
	}
	for i, want := range prog {
		at := data[8*i:]
		got := unix.SockFilter{
			Code: binary.NativeEndian.Uint16(at), Jt: at[2], Jf: at[3], K: binary.NativeEndian.Uint32(at[4:]),
		}
		if got != want {
			t.Fatalf("instruction %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	for _, r := range seccomp.Describe() {
		if r.Call == "" || r.Why == "" || r.Action.String() == "" {
			t.Errorf("rule without a name or a reason: %+v", r)
		}
	}
}

// TestDifferential compares the program with the table for every call and every
// value that a rule names, and its neighbours, with and without high bits.
func TestDifferential(t *testing.T) {
	t.Parallel()
	prog, rules := program(t), seccomp.Describe()
	for _, rule := range rules {
		values := []uint64{0, 1, 0o4000, 0o2000, 1<<32 - 1, 1 << 32}
		for _, other := range rules {
			if other.Number != rule.Number {
				continue
			}
			for _, c := range other.When {
				v := uint64(c.Value)
				values = append(values, v, v+1, v|1<<32, uint64(c.Mask), uint64(c.Mask&-c.Mask))
			}
		}
		slices.Sort(values)
		values = slices.Compact(values)
		for _, first := range values {
			for _, second := range values {
				r := request{number: rule.Number, arch: nativeArch(),
					args: [6]uint64{first, second, first, second, first, second}}
				compare(t, prog, rules, r)
				r.args[0], r.args[1] = second, 0
				r.args[2] = second
				compare(t, prog, rules, r)
			}
		}
	}
	for number := range uint32(700) {
		compare(t, prog, rules, request{number: number, arch: nativeArch()})
	}
}

func compare(t *testing.T, prog []unix.SockFilter, rules []seccomp.Rule, r request) {
	t.Helper()
	got, _, err := interpret(prog, r)
	if want := reference(rules, r); err != nil || got != want {
		t.Fatalf("%+v: %v, %v; the table says %v", r, got, err, want)
	}
}

// FuzzFilter compares the program with the table for any call.
func FuzzFilter(f *testing.F) {
	arch := nativeArch()
	for _, r := range seccomp.Describe() {
		args := [6]uint64{}
		for _, c := range r.When {
			args[c.Arg] = uint64(c.Value) | uint64(c.Mask)<<32
		}
		f.Add(r.Number, arch, args[0], args[1], args[2], args[3], args[4])
	}
	f.Add(uint32(0), arch, uint64(0), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(^uint32(0), arch, uint64(0), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(0x40000029), arch, uint64(1), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(102), uint32(unix.AUDIT_ARCH_I386), uint64(1), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(lastCall+1), arch, uint64(1), uint64(0), uint64(0), uint64(0), uint64(0))
	prog, rules := program(f), seccomp.Describe()
	f.Fuzz(func(t *testing.T, number, arch uint32, a, b, c, d, e uint64) {
		compare(t, prog, rules, request{number: number, arch: arch, args: [6]uint64{a, b, c, d, e}})
	})
}
