package cgroup

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseMounts(t *testing.T) {
	t.Parallel()
	const table = `22 27 0:21 / /proc rw - proc proc rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
41 31 0:37 / /sys/fs/cgroup/uni\040fied rw,relatime - cgroup2 cgroup2 rw,nsdelegate
42 31 0:37 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
garbage
`
	got, err := parseMounts(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []hierarchy{
		{root: "/sys/fs/cgroup/memory", controllers: []string{"memory"}},
		{root: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu"}},
		{root: "/sys/fs/cgroup/uni fied", v2: true, nsDelegate: true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestParseOwn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"9:name=systemd:/\n0::/user.slice/a\n": "/user.slice/a",
		"0::/\n":                               "/",
		"4:memory:/x\n":                        "",
		"0::relative\n":                        "",
	} {
		if got := parseOwn(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestCounter(t *testing.T) {
	t.Parallel()
	if n, ok := counter("under_oom 0\noom_kill 7\n", "oom_kill"); !ok || n != 7 {
		t.Errorf("%d %v", n, ok)
	}
	for _, bad := range []string{"", "oom_kill", "oom_kill x", "oom_kill_more 3"} {
		if _, ok := counter(bad, "oom_kill"); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// FuzzParseMounts: what was found, written as the kernel writes it, is found again.
func FuzzParseMounts(f *testing.F) {
	for _, text := range []string{
		"41 31 0:37 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n", "41 31 0:37 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "", "\n", " - ", "a - b",
		"35 31 0:32 / /m rw - cgroup cgroup rw,memory\n", "35 31 0:32 / /m rw - cgroup cgroup rw,pids,cpu\n", "35 31 0:32 / /m rw - cgroup cgroup rw,freezer\n", "35 31 0:32 / /m rw - cgroup cgroup rw,cpu,cpu\n",
		"35 31 0:32 / /m rw shared:9 master:1 - cgroup cgroup rw,memory\n", "1 1 0:1 / /a\\040b rw - cgroup2 c rw\n", "1 1 0:1 / /a\\011b\\012c\\134d rw - cgroup2 c rw\n", "1 1 0:1 / \\040-\\040 rw - cgroup2 c rw\n",
		"1 1 0:1 / /a rw - cgroup2 c rw\n1 1 0:1 / /b rw - cgroup2 c rw,nsdelegate\n", "1 1 0:1 / /a rw - cgroup2 c\n", "1 1 0:1 / /a - cgroup2 c rw\n", "1 1 0:1 / /\\1340 rw - cgroup2 c rw\n",
		"1 1 0:1 / /a rw - ext4 c rw,memory\n", "1 1 0:1 / /a rw - cgroup x - memory\n", "1 1 0:1 / /\xff rw - cgroup2 c rw\r\n", "1 1 0:1 / /a rw - cgroup c memory,pids,cpu,memory",
	} {
		f.Add(text)
	}
	escape := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`)
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseMounts(strings.NewReader(text))
		if err != nil {
			return
		}
		var again strings.Builder
		for _, h := range found {
			kind, options := "cgroup", append([]string{"rw"}, h.controllers...)
			if h.v2 {
				kind = "cgroup2"
			}
			if h.nsDelegate {
				options = append(options, "nsdelegate")
			}
			again.WriteString("41 31 0:37 / " + escape.Replace(h.root) + " rw shared:1 - " + kind + " c " + strings.Join(options, ",") + "\n")
		}
		if got, err := parseMounts(strings.NewReader(again.String())); err != nil || !reflect.DeepEqual(got, found) {
			t.Errorf("%q: found %+v, and in %q %+v, %v", text, found, again.String(), got, err)
		}
	})
}
