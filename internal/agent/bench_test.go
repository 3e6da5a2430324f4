package agent_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// BenchmarkExec is a command's round trip over a link, beside os/exec of the
// same program.
func BenchmarkExec(b *testing.B) {
	b.Run("local", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	remote := func(b *testing.B, in *inside) {
		b.Helper()
		off := false
		req := &agentv1.StartRequest{
			Process: &agentv1.ProcessConfig{Cmd: "/bin/true"}, Stdin: &off, KillOnClose: true, TypedFailures: true,
		}
		for b.Loop() {
			if out, err := in.run(b.Context(), req); err != nil || !out.end.GetExited() {
				b.Fatal(out, err)
			}
		}
	}
	b.Run("session", func(b *testing.B) { remote(b, openOwn(b, bootFor(b.TempDir()), nil)) })
	if os.Getuid() == 0 {
		b.Run("cgroup", func(b *testing.B) {
			cgroup, _ := cgroup2(b)
			remote(b, openOwn(b, bootFor(b.TempDir()), nil, cgroup))
		})
		b.Run("cgroup and tasks", func(b *testing.B) {
			tasks, _ := makeCgroup(b, "/sys/fs/cgroup/pids/berm-test-bench", "tasks")
			cgroup, _ := cgroup2(b)
			remote(b, openOwn(b, bootFor(b.TempDir()), nil, cgroup, tasks))
		})
	}
	b.Run("mark", func(b *testing.B) {
		config := bootFor(b.TempDir())
		config.Mark = true
		remote(b, openOwn(b, config, nil))
	})
}

// BenchmarkOutput is bulk output of programs that write in small and in large
// pieces.
func BenchmarkOutput(b *testing.B) {
	in := open(b, bootFor(b.TempDir()))
	for name, script := range map[string]string{
		"4K writes":   "exec head -c 268435456 /dev/zero",
		"256K writes": "exec dd if=/dev/zero bs=256k count=1024 status=none",
	} {
		b.Run(name, func(b *testing.B) { bulk(b, in, script) })
	}
}

func bulk(b *testing.B, in *inside, script string) {
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		stream, err := in.process.Start(b.Context(), shell(script))
		if err != nil {
			b.Fatal(err)
		}
		n, messages := 0, 0
		for {
			res, err := stream.Receive()
			if err != nil {
				break
			}
			messages++
			n += len(res.GetEvent().GetData().GetStdout())
		}
		if n != size {
			b.Fatal(n)
		}
		b.ReportMetric(float64(size/messages), "B/message")
	}
}
