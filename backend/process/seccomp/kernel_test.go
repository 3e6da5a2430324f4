//go:build linux

package seccomp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/seccomp"
)

// What the test binary does instead of testing, by its argv[0].
const (
	modeCalls = "berm-test-calls" // make the calls and print their error numbers
	modeOne   = "berm-test-one"   // make one call that should kill
	modeShell = "berm-test-shell" // execute the arguments
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case modeCalls:
		restrict(seccomp.Program)
		_ = json.NewEncoder(os.Stdout).Encode(makeCalls())
	case modeOne:
		if os.Args[2] == "filtered" {
			restrict(seccomp.Program)
		}
		fmt.Println(foreignCall(os.Args[1]))
	case modeShell:
		restrict(seccomp.Program)
		fmt.Fprintln(os.Stderr, syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
		os.Exit(1)
	default:
		os.Exit(m.Run())
	}
}

// restrict locks the goroutine to its thread and puts a filter on it.
func restrict(program func() ([]unix.SockFilter, error)) {
	runtime.LockOSThread()
	prog, err := program()
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err == nil {
		err = seccomp.Load(prog)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// callers are the credentials that every test runs under.
func callers() map[string]*syscall.Credential {
	if os.Getuid() != 0 {
		return map[string]*syscall.Credential{"unprivileged": nil}
	}
	return map[string]*syscall.Credential{"root": nil, "unprivileged": {Uid: 65534, Gid: 65534}}
}

// child prepares the test binary in another mode, in a directory of its own.
func child(t *testing.T, credential *syscall.Credential, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "berm-seccomp")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = args
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Setsid: true}
	return cmd
}

// TestKernel loads the filter for real and makes raw calls.
func TestKernel(t *testing.T) {
	t.Parallel()
	for name, credential := range callers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := child(t, credential, modeCalls)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]int
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatal(err)
			}
			for _, c := range kernelCalls(0, &[][]byte{}) {
				errno, made := got[c.name]
				if !made || syscall.Errno(errno) != c.want {
					t.Errorf("%s: %v (%d), want %v (%d)", c.name, syscall.Errno(errno), errno, c.want, int(c.want))
				}
			}
		})
	}
}

// kernelCall is one raw call and the error number that it should give.
type kernelCall struct {
	name   string
	number uintptr
	args   [6]uintptr
	want   syscall.Errno
}

// kernelCalls gives the calls for a terminal. Their memory is in keep.
func kernelCalls(terminal uintptr, keep *[][]byte) []kernelCall {
	here := unix.AT_FDCWD
	at := uintptr(here)
	path := func(s string) uintptr {
		data := append([]byte(s), 0)
		*keep = append(*keep, data)
		return uintptr(unsafe.Pointer(&data[0]))
	}
	const high = 1 << 32
	const eperm, family, enosys = syscall.EPERM, syscall.EAFNOSUPPORT, syscall.ENOSYS
	create := uintptr(unix.O_CREAT | unix.O_RDWR | unix.O_CLOEXEC)
	self := uintptr(os.Getpid())
	forged := strings.Repeat("\xff", 128) // a siginfo whose code is negative: "sent by a program"
	return append([]kernelCall{
		{"unix", unix.SYS_SOCKET, [6]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}, 0},
		{"unix with high bits", unix.SYS_SOCKET, [6]uintptr{unix.AF_UNIX | high, unix.SOCK_STREAM}, 0},
		{"inet", unix.SYS_SOCKET, [6]uintptr{unix.AF_INET, unix.SOCK_STREAM}, 0},
		{"route", unix.SYS_SOCKET, [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, 0},
		{"audit", unix.SYS_SOCKET, [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, family},
		{"netfilter", unix.SYS_SOCKET, [6]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, family},
		{"vsock", unix.SYS_SOCKET, [6]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}, family},
		{"vsock with high bits", unix.SYS_SOCKET, [6]uintptr{unix.AF_VSOCK | high, unix.SOCK_STREAM}, family},
		{"packet", unix.SYS_SOCKET, [6]uintptr{unix.AF_PACKET, unix.SOCK_RAW}, family},
		{"alg", unix.SYS_SOCKET, [6]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET}, family},
		{"tiocsti", unix.SYS_IOCTL, [6]uintptr{terminal, unix.TIOCSTI, path("x")}, eperm},
		{"tiocsti with high bits", unix.SYS_IOCTL, [6]uintptr{terminal, unix.TIOCSTI | high, path("x")}, eperm},
		{"tioclinux", unix.SYS_IOCTL, [6]uintptr{terminal, unix.TIOCLINUX | high, path("\x02")}, eperm},
		{"create", unix.SYS_OPENAT, [6]uintptr{at, path("file"), create, 0o666}, 0},
		{"open with a stray mode", unix.SYS_OPENAT, [6]uintptr{at, path("file"), unix.O_RDONLY, 0o6777}, 0},
		{"create u+s", unix.SYS_OPENAT, [6]uintptr{at, path("s1"), create, 0o4755}, eperm},
		{"O_TMPFILE u+s", unix.SYS_OPENAT, [6]uintptr{at, path("."), unix.O_TMPFILE | unix.O_RDWR, 0o4755}, eperm},
		{"openat2", unix.SYS_OPENAT2, [6]uintptr{at, path("file"), path(strings.Repeat("\x00", 24)), 24}, enosys},
		{"chmod", unix.SYS_FCHMODAT, [6]uintptr{at, path("file"), 0o755}, 0},
		{"fchmodat u+s", unix.SYS_FCHMODAT, [6]uintptr{at, path("file"), 0o4755}, eperm},
		{"fchmodat2 u+s", unix.SYS_FCHMODAT2, [6]uintptr{at, path("file"), 0o4755, 0}, eperm},
		// No descriptor: without the filter it would change whatever the input is.
		{"fchmod g+s", unix.SYS_FCHMOD, [6]uintptr{^uintptr(0), 0o2755}, eperm},
		{"mkdir", unix.SYS_MKDIRAT, [6]uintptr{at, path("dir"), 0o755}, 0},
		{"mkdir g+s", unix.SYS_MKDIRAT, [6]uintptr{at, path("dir2"), 0o2755}, eperm},
		{"fifo", unix.SYS_MKNODAT, [6]uintptr{at, path("fifo"), unix.S_IFIFO | 0o600}, 0},
		{"whiteout", unix.SYS_MKNODAT, [6]uintptr{at, path("white"), unix.S_IFCHR | 0o600, 0}, eperm},
		{"mknod u+s", unix.SYS_MKNODAT, [6]uintptr{at, path("s2"), unix.S_IFREG | 0o4755}, eperm},
		{"rename", unix.SYS_RENAMEAT2, [6]uintptr{at, path("file"), at, path("file2"), unix.RENAME_NOREPLACE}, 0},
		{"rename whiteout", unix.SYS_RENAMEAT2, [6]uintptr{at, path("file2"), at, path("file"), unix.RENAME_WHITEOUT}, syscall.EINVAL},
		{"keyctl", unix.SYS_KEYCTL, [6]uintptr{unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2)}, enosys},
		{"bpf", unix.SYS_BPF, [6]uintptr{^uintptr(0)}, eperm},
		{"io_uring", unix.SYS_IO_URING_SETUP, [6]uintptr{0}, eperm},
		{"aio", unix.SYS_IO_SETUP, [6]uintptr{0}, enosys},
		{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{^uintptr(0)}, eperm},
		{"clone user", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)}, eperm},
		{"unshare user", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}, eperm},
		{"prlimit", unix.SYS_PRLIMIT64, [6]uintptr{uintptr(os.Getppid()), unix.RLIMIT_NOFILE}, eperm},
		{"prlimit self", unix.SYS_PRLIMIT64, [6]uintptr{0, unix.RLIMIT_NOFILE, 0, path(strings.Repeat("\x00", 16))}, 0},
		{"renice 1", unix.SYS_SETPRIORITY, [6]uintptr{unix.PRIO_PROCESS, 1, 5}, eperm},
		{"queue a fault", unix.SYS_RT_SIGQUEUEINFO, [6]uintptr{self, uintptr(unix.SIGSEGV), path(forged)}, eperm},
		{"news by a fault", unix.SYS_FCNTL, [6]uintptr{terminal, unix.F_SETSIG, uintptr(unix.SIGBUS)}, eperm},
		{"news by a signal", unix.SYS_FCNTL, [6]uintptr{terminal, unix.F_SETSIG, uintptr(unix.SIGUSR1)}, 0},
		{"lease", unix.SYS_FCNTL, [6]uintptr{0, unix.F_SETLEASE, unix.F_RDLCK}, syscall.EINVAL},
		{"mount", unix.SYS_MOUNT, [6]uintptr{}, eperm},
		{"personality", unix.SYS_PERSONALITY, [6]uintptr{8}, eperm},
		{"not a call", ^uintptr(0), [6]uintptr{}, enosys},
		{"too new a call", 600, [6]uintptr{}, enosys},
	}, nativeCalls(path)...)
}

// makeCalls makes the calls on a pseudo-terminal of its own.
func makeCalls() map[string]int {
	out := map[string]int{}
	terminal, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "no terminal:", err)
		os.Exit(1)
	}
	var keep [][]byte
	calls := kernelCalls(uintptr(terminal), &keep)
	for _, c := range calls {
		a := c.args
		result, _, errno := unix.RawSyscall6(c.number, a[0], a[1], a[2], a[3], a[4], a[5])
		if c.number == unix.SYS_CLONE && errno == 0 && result == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0) // the child that should not be
		}
		out[c.name] = int(errno)
	}
	runtime.KeepAlive(keep)
	return out
}

// TestForeign: other ABIs end the process.
func TestForeign(t *testing.T) {
	t.Parallel()
	if len(foreignCalls()) == 0 {
		t.Skip("this architecture's tests have no machine code for another ABI")
	}
	for name, credential := range callers() {
		for _, call := range foreignCalls() {
			t.Run(name+"/"+call, func(t *testing.T) {
				t.Parallel()
				// Without the filter the process lives, even where the kernel lacks the ABI:
				// else the test proves nothing.
				if out, err := child(t, credential, modeOne, call, "free").CombinedOutput(); err != nil {
					t.Skipf("the kernel has no such ABI: %v, %s", err, out)
				}
				cmd := child(t, credential, modeOne, call, "filtered")
				out, err := cmd.CombinedOutput()
				status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
				if !ok || !status.Signaled() || status.Signal() != syscall.SIGSYS {
					t.Errorf("%v, %s", err, out)
				}
			})
		}
	}
}

// TestUsualThings: what programs do goes on working.
func TestUsualThings(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{
		"pipeline":   `test "$(printf 'b\na\n' | sort | head -n 1 | tr a-z A-Z)" = A`,
		"files":      `mkdir -p a/b && echo x > a/b/c && cp a/b/c d && mv d e && chmod 755 e && ln -s e f && rm -r a e f`,
		"fifo":       `mkfifo p && (echo hello > p &) && test "$(cat p)" = hello`,
		"background": `sleep 0 & wait $!; (exit 3); test $? = 3`,
		"limits":     `ulimit -n 64 && test "$(ulimit -n)" = 64`,
		"nice":       `nice -n 5 true`,
		"mktemp":     `t=$(mktemp -d) && tar -C / -cf $t/x.tar etc/hostname && tar -C $t -xf $t/x.tar && rm -r $t`,
		"trap":       `trap 'exit 0' TERM; kill -TERM $$; sleep 5; exit 1`,
		"python":     `command -v python3 >/dev/null || exit 0; python3 -c "import os,socket,subprocess,threading,tempfile,multiprocessing; subprocess.check_call(['true']); t=threading.Thread(target=print); t.start(); t.join(); socket.socketpair(); s=socket.socket(); s.bind(('127.0.0.1',0)); tempfile.TemporaryFile(); p=os.fork(); p or os._exit(0); os.waitpid(p,0)"`,
	}
	for name, credential := range callers() {
		for what, script := range scripts {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				out, err := child(t, credential, modeShell, "/bin/sh", "-c", script).CombinedOutput()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		t.Run(name+"/go", func(t *testing.T) {
			t.Parallel()
			// The test binary under its own filter: the runtime's threads, os/exec, files.
			var out bytes.Buffer
			cmd := child(t, credential, modeShell, "/proc/self/exe", "-test.run", "^TestGo$", "-test.v")
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "--- PASS: TestGo") {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
}

// TestGo does what Go programs do; TestUsualThings runs it under the filter.
func TestGo(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("sh", "-c", "echo $((6*7))").Output()
	if err != nil || string(out) != "42\n" {
		t.Errorf("%q, %v", out, err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(root.MkdirAll("a/b", 0o755), root.WriteFile("a/b/c", []byte("x"), 0o600)); err != nil {
		t.Error(err)
	}
	if _, err := root.ReadFile("a/b/c"); err != nil {
		t.Error(err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	if err := seccomp.Load(nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("empty: %v", err)
	}
}
