package execmode

import (
	"syscall"
	"testing"
)

// The filter is run by the kernel in the tests of marked trees; here its jumps
// are checked against its length.
func TestMarkFilterIsClosed(t *testing.T) {
	t.Parallel()
	calls, _ := rlimitNumbers()
	program := markFilter(calls)
	for i, ins := range program {
		if ins.Code&0x07 == syscall.BPF_JMP && i+1+int(max(ins.Jt, ins.Jf)) >= len(program) {
			t.Errorf("instruction %d jumps out", i)
		}
	}
}

func FuzzDecodeLimits(f *testing.F) {
	f.Add(Limits{Processes: 3, DataBytes: 1 << 30, Mark: 1<<62 - 1, Optional: true}.Encode())
	for _, text := range []string{
		"", ":", ":::", "0:0:0:0", "0:0:0", "0:0:0:0:0", "7fffffff:0:0:1", "80000000:0:0:0", "0:7fffffffffffffff:7fffffffffffffff:2", "0:8000000000000000:0:0", "-1:0:0:0", "+1:0:0:0", "0x1:0:0:0", " 1:0:0:0",
		"1:2:3:4\n", "G:0:0:0", "A:b:C:d", "00000000000000000001:0:0:0", "1_0:0:0:0", "1::2:3",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limits, err := DecodeLimits(text)
		if err != nil {
			return
		}
		again, err := DecodeLimits(limits.Encode())
		if err != nil || again != limits {
			t.Errorf("%q: %v, %v, %v", text, limits, again, err)
		}
	})
}
