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

func FuzzParseMounts(f *testing.F) {
	f.Add("41 31 0:37 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseMounts(strings.NewReader(text))
		if err == nil && len(found) > strings.Count(text, "\n")+1 {
			t.Errorf("%d hierarchies", len(found))
		}
	})
}
