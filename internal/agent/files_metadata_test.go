package agent_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/agent"
)

// noted gives the metadata that Stat and ListDir tell of a file, which are the
// same.
func noted(tb testing.TB, a *agent.Agent, dir, name string) map[string]string {
	tb.Helper()
	var one struct {
		Entry struct{ Metadata map[string]string }
	}
	rec := call(tb, a.Data(), "POST", "/filesystem.Filesystem/Stat", `{"path":"`+dir+"/"+name+`"}`, "Content-Type: application/json")
	if rec.Code != 200 || json.Unmarshal(rec.Body.Bytes(), &one) != nil {
		tb.Fatalf("%d %s", rec.Code, rec.Body)
	}
	var all struct {
		Entries []struct {
			Name     string
			Metadata map[string]string
		}
	}
	rec = call(tb, a.Data(), "POST", "/filesystem.Filesystem/ListDir", `{"path":"`+dir+`"}`, "Content-Type: application/json")
	if rec.Code != 200 || json.Unmarshal(rec.Body.Bytes(), &all) != nil {
		tb.Fatalf("%d %s", rec.Code, rec.Body)
	}
	for _, e := range all.Entries {
		if e.Name == name && !maps.Equal(e.Metadata, one.Entry.Metadata) {
			tb.Errorf("%s: %v in the listing, %v by itself", name, e.Metadata, one.Entry.Metadata)
		}
	}
	return one.Entry.Metadata
}

// hasAttributes says whether files in dir can have user attributes.
func hasAttributes(tb testing.TB, dir string) bool {
	tb.Helper()
	err := unix.Setxattr(dir, "user.berm-test", []byte("x"), 0)
	_ = unix.Removexattr(dir, "user.berm-test")
	return err == nil
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if !hasAttributes(t, home) {
		t.Skip("the file system of temporary files has no user attributes")
	}
	upload := func(name string, headers ...string) (int, map[string]string) {
		rec := call(t, a.Data(), "POST", filesURL("path", home+"/"+name), "x", append(headers, "Content-Type: "+octets)...)
		var answer []struct{ Metadata map[string]string }
		if rec.Code == 200 && (json.Unmarshal(rec.Body.Bytes(), &answer) != nil || len(answer) != 1) {
			t.Fatal(rec.Body)
		}
		if rec.Code != 200 {
			return rec.Code, nil
		}
		return rec.Code, answer[0].Metadata
	}
	want := map[string]string{"author": "me, and you", "empty": "", "long-key_1": "~"}
	code, got := upload("f", "X-Metadata-Author: me, and you", "x-metadata-EMPTY: ", "X-Metadata-Long-Key_1: ~")
	if code != 200 || !maps.Equal(got, want) || !maps.Equal(noted(t, a, home, "f"), want) {
		t.Errorf("%d %v %v", code, got, noted(t, a, home, "f"))
	}
	// Each upload replaces all.
	if code, got = upload("f", "X-Metadata-B: 1"); code != 200 || !maps.Equal(got, map[string]string{"b": "1"}) || len(noted(t, a, home, "f")) != 1 {
		t.Errorf("%d %v", code, got)
	}
	if code, got = upload("f"); code != 200 || got != nil || noted(t, a, home, "f") != nil {
		t.Errorf("%d %v", code, got)
	}
	for name, headers := range map[string][]string{
		"control": {"X-Metadata-A: a\tb"}, "not ASCII": {"X-Metadata-A: ü"}, "twice": {"X-Metadata-A: 1", "X-Metadata-A: 2"},
		"no key": {"X-Metadata-: 1"}, "long key": {"X-Metadata-" + strings.Repeat("k", 247) + ": 1"}, "much": {"X-Metadata-A: " + strings.Repeat("v", 4096)},
	} {
		if code, _ := upload("refused", headers...); code != 400 {
			t.Errorf("%s: %d", name, code)
		}
	}
	if _, err := os.Lstat(home + "/refused"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a refused upload wrote")
	}
	if code, got := upload("edge", "X-Metadata-"+strings.Repeat("k", 246)+": "+strings.Repeat("v", 2000)); code != 200 || len(got) != 1 {
		t.Errorf("%d %v", code, got)
	}
	form, kind := formOf(part{"file", home + "/one", "1"}, part{"file", home + "/two", "2"})
	if rec := call(t, a.Data(), "POST", "/files", form, "Content-Type: "+kind, "X-Metadata-A: 1"); rec.Code != 200 || strings.Count(rec.Body.String(), `"metadata":{"a":"1"}`) != 2 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// What a payload writes beside its files is no way to answers without end, nor to
// such as cannot be read.
func TestMetadataOfPayloads(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if !hasAttributes(t, home) {
		t.Skip("the file system of temporary files has no user attributes")
	}
	set := func(name, key, value string) bool {
		return unix.Lsetxattr(home+"/"+name, "user."+key, []byte(value), 0) == nil
	}
	if err := os.WriteFile(home+"/f", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !set("f", "e2b.good", "1") || !set("f", "e2b.bad", "\xff\x00") || !set("f", "e2b.b\xffd", "1") || !set("f", "e2b.", "1") || !set("f", "other", "1") {
		t.Fatal("attributes cannot be set")
	}
	if got := noted(t, a, home, "f"); !maps.Equal(got, map[string]string{"good": "1"}) {
		t.Errorf("%v", got)
	}
	if err := os.Symlink("f", home+"/link"); err != nil {
		t.Fatal(err)
	}
	if got := noted(t, a, home, "link"); !maps.Equal(got, map[string]string{"good": "1"}) {
		t.Errorf("link: %v", got)
	}
	// Some file systems have room for 4 KiB only; the one in memory has more.
	dir, err := os.MkdirTemp("/dev/shm", "berm-test-")
	if err != nil {
		t.Skipf("no file system in memory: %v", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.WriteFile(dir+"/big", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !hasAttributes(t, dir) {
		t.Skip("the file system in memory has no user attributes")
	}
	for i := range 64 {
		if err := unix.Lsetxattr(dir+"/big", "user.e2b.key"+strings.Repeat("x", i), []byte(strings.Repeat("v", 1000)), 0); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for key, value := range noted(t, a, dir, "big") {
		total += len(key) + len(value)
	}
	if total == 0 || total > 4096 {
		t.Errorf("%d bytes", total)
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	write := func(files ...string) {
		for _, name := range files {
			if err := os.WriteFile(home+"/"+name, []byte(name+";"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("a", "b", "c", "d", "e")
	if err := errors.Join(os.Mkdir(home+"/dir", 0o755), os.Symlink("e", home+"/same"), os.Link(home+"/e", home+"/hard"), os.Symlink("nowhere", home+"/broken")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		body string
		code int
		want string
	}{
		{`{"source_paths":["a","~/b","` + home + `/c"],"destination":"new/abc","username":"user"}`, 200, `{"name":"abc","type":"file","path":"` + home + `/new/abc"}`},
		{`{"source_paths":["d","none"],"destination":"x"}`, 404, ""},
		{`{"source_paths":["d","broken"],"destination":"x"}`, 404, ""},
		{`{"source_paths":["d","dir"],"destination":"x"}`, 400, ""},
		{`{"source_paths":["d","d"],"destination":"x"}`, 400, ""},
		{`{"source_paths":["d","./d"],"destination":"x"}`, 400, ""},
		{`{"source_paths":["d","e"],"destination":"e"}`, 400, ""},
		{`{"source_paths":["same"],"destination":"e"}`, 400, ""},
		{`{"source_paths":["hard"],"destination":"e"}`, 400, ""},
		{`{"source_paths":["d"],"destination":"dir"}`, 400, ""},
		{`{"source_paths":["d"],"destination":""}`, 400, ""},
		{`{"source_paths":[],"destination":"x"}`, 400, ""},
		{`{"source_paths":["d"],"destination":"x","username":"root"}`, 401, ""},
		{`{"source_paths":["` + strings.Repeat(`d","`, 10_001) + `"],"destination":"x"}`, 400, ""},
		{`{`, 400, ""},
	} {
		rec := call(t, a.Data(), "POST", "/files/compose", test.body)
		if rec.Code != test.code || test.want != "" && rec.Body.String() != test.want {
			t.Errorf("%.80s: %d %.200s", test.body, rec.Code, rec.Body)
		}
	}
	if data, err := os.ReadFile(home + "/new/abc"); string(data) != "a;b;c;" || err != nil {
		t.Errorf("%q %v", data, err)
	}
	for name, there := range map[string]bool{"a": false, "b": false, "c": false, "d": true, "e": true, "same": true, "hard": true, "x": false} {
		if _, err := os.Lstat(home + "/" + name); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	write("f", "g")
	if rec := call(t, a.Data(), "POST", "/files/compose", `{"source_paths":["f","g"],"destination":"d"}`); rec.Code != 200 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if data, err := os.ReadFile(home + "/d"); string(data) != "f;g;" || err != nil {
		t.Errorf("%q %v", data, err)
	}
}
