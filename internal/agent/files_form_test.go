package agent_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// part is one part of a form: its field, its file name as it stands between the
// quotes, and its content.
type part struct{ field, name, content string }

// formOf writes a form as clients of this wire do.
func formOf(parts ...part) (body, kind string) {
	const boundary = "----formdata-0123456789"
	var out strings.Builder
	for _, p := range parts {
		out.WriteString("--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + p.field + "\"; filename=\"" + p.name + "\"\r\nContent-Type: application/octet-stream\r\n\r\n" + p.content + "\r\n")
	}
	return out.String() + "--" + boundary + "--\r\n", "multipart/form-data; boundary=" + boundary
}

func TestForms(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	for name, test := range map[string]struct {
		query []string
		parts []part
		code  int
		// want are names below home and contents.
		want map[string]string
	}{
		"path in the query": {[]string{"path", "q/a.txt"}, []part{{"file", "blob", "1"}}, 200, map[string]string{"q/a.txt": "1"}},
		"full names":        {nil, []part{{"file", home + "/f/one.txt", "1"}, {"file", "f/two.txt", ""}, {"file", "~/f/three", "3"}}, 200, map[string]string{"f/one.txt": "1", "f/two.txt": "", "f/three": "3"}},
		"other parts":       {nil, []part{{"note", "o/no", "x"}, {"file", "o/yes", "1"}}, 200, map[string]string{"o/yes": "1"}},
		"odd names":         {nil, []part{{"file", `n/a\"b\\c\d ü;x=1`, "1"}}, 200, map[string]string{`n/a"b\c\d ü;x=1`: "1"}},
		"line ends":         {nil, []part{{"file", "l/a", "\r\n--\r\n----formdata\r\n"}}, 200, map[string]string{"l/a": "\r\n--\r\n----formdata\r\n"}},
		"twice":             {nil, []part{{"file", "t/a", "1"}, {"file", "t/x/../a", "2"}}, 400, map[string]string{"t/a": "1"}},
		"two for one path":  {[]string{"path", "p/a"}, []part{{"file", "x", "1"}, {"file", "y", "2"}}, 400, map[string]string{"p/a": "1"}},
		"no name":           {nil, []part{{"file", "", "1"}}, 400, nil},
		"a directory":       {nil, []part{{"file", home, "1"}}, 400, nil},
		"no parts":          {nil, nil, 400, nil},
	} {
		body, kind := formOf(test.parts...)
		rec := call(t, a.Data(), "POST", filesURL(test.query...), body, "Content-Type: "+kind)
		if rec.Code != test.code {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
		var answer []struct{ Name, Type, Path string }
		if rec.Code == 200 && (json.Unmarshal(rec.Body.Bytes(), &answer) != nil || len(answer) != len(test.want) || rec.Header().Get("Content-Type") != "application/json") {
			t.Errorf("%s: %s", name, rec.Body)
		}
		for _, one := range answer {
			below := strings.TrimPrefix(one.Path, home+"/")
			if _, wanted := test.want[below]; !wanted || one.Type != "file" || one.Name != below[strings.LastIndexByte(below, '/')+1:] {
				t.Errorf("%s: %+v", name, one)
			}
		}
		for file, content := range test.want {
			if data, err := os.ReadFile(home + "/" + file); err != nil || string(data) != content {
				t.Errorf("%s: %s: %q %v", name, file, data, err)
			}
		}
	}
}
