package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/config"
	"github.com/berm-dev/berm/driver"
)

// FuzzParse checks that what parses encodes to JSON which parses to the same and
// has known fields only, and that the same content written as YAML means the
// same, or is refused for the same reasons.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, `{`, `{}`, `[]`, `null`, `{"tier":"process"}`, `{"tier":"passthrough","allow":true}`,
		`{"tier":"process","engine":"auto"}`, `{"tier":"process","tier":"process"}`,
		`{"tier":"process","uidRange":[1,2,3]}`,
		`{"tier":"process","env":{"A":"1","B":"\u00e9\n\t\"\\"}}`,
		`{"tier":"process","cpus":0.25,"defaultTimeoutMs":1,"defaultMemoryLimitMb":4}`,
		`{"tier":"process","require":["limits","network"],"bestEffort":true}`,
		`{"tier":"process","defaultEgress":{"kind":"host"},"network":"host"}`,
		`{"tier":"process","layout":{"workdir":"/usr"}}`,
		`{"tier":"process","layout":{"outputs":{"source":{"hostDir":{"hostPath":"/usr"}},"path":"/o"}}}`,
		`{"tier":"process","layout":{"skills":[{"id":"a","source":{"hostDir":{"hostPath":"/usr"}}}],"readOnly":["/etc"]}}`,
		`{"tier":"process","layout":{"uploads":{"source":{"azureFileShare":{"shareName":"x"}}}}}`,
		`{"tier":"process","stateDir":"/x","agent":"/y"}`,
		`{"tier":"process","stateDirs":"/x"}`, `{"tier":"process","layout":{"workdir":"/usr","work":1}}`, `{"tier":"process","defaultEgress":{"kind":"host","x":{}}}`,
		`{"tier":"process","layout":{"outputs":{"source":{"hostDir":{"hostPath":"/usr","x":1}}}}}`, `{"tier":"process","allow":true}`,
		"tier: process\n", "tier: 'process'\nenv: {A: \"1\"}\n", "tier: process\nenv:\n  A: |\n    x\n    y\n",
		"tier: process\nrequire:\n- limits\n- network\n", "tier: &a process\nx: *a\n", "--- \ntier: process\n...\n",
		`{"tier":"process","network":"gated","allowInwardFor":["a.example.com:5000"]}`,
		`{"tier":"process","defaultEgress":{"kind":"static","allow":["a.example.com",".b.example","tcp://c.example:22","192.0.2.0/24"]}}`,
		`{"tier":"process","defaultEgress":{"kind":"resolver","command":["/bin/list","-x"],"allow":["a.example.com"]}}`,
		`{"tier":"process","defaultEgress":{"kind":"resolver","url":"https://a.example/list?k=v"},"credentials":[]}`,
		`{"tier":"process","credentials":[{"id":"i","host":"a.example.com","methods":["GET"],"paths":["/v1"],"header":"X-T","prefix":"Bearer ","value":"hunter2hunter2"},{"host":"b.example.com","env":"A","placeholder":"placeholder_0000"},{"host":"c.example.com","file":"/run/x"}]}`,
		"tier: process\ndefaultEgress: {kind: allow-all}\ncredentials: [{host: a.example.com, env: B, x: y}]\n",
		"? tier\n: process\n", "tier: process\n<<: {a: b}\n", "tier: >-\n  process\n", "tier: process # c\nenv: {}\n",
		"tier: process\ncpus: .5\n", "tier: process\ncpus: 1e0\n", "a:\n - - - - b\n", "\xef\xbb\xbftier: process\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := config.Parse(data, factories())
		if err != nil {
			if file != nil || err.Error() == "" {
				t.Fatalf("a refusal with a file, or without a text: %v, %v", file, err)
			}
			refusedAlike(t, data)
			return
		}
		onlyKnown(t, data)
		first, err := file.Encode()
		if err != nil {
			t.Fatal(err)
		}
		sameAs(t, "JSON", first, first)
		sameAs(t, "YAML", first, toYAML(t, first))
		if _, err := file.Redacted(); err != nil {
			t.Fatal(err)
		}
	})
}

// refusedAlike holds a JSON object against the same in YAML: both are refused in
// the same words.
func refusedAlike(t *testing.T, data []byte) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value map[string]any
	if decoder.Decode(&value) != nil || value == nil {
		return
	}
	// Once more, so that no name is there twice.
	plain, err := json.Marshal(value)
	if err != nil {
		return
	}
	_, asJSON := config.Parse(plain, factories())
	_, asYAML := config.Parse(toYAML(t, plain), factories())
	if fmt.Sprint(asJSON) != fmt.Sprint(asYAML) {
		t.Fatalf("%s\nas JSON: %v\nas YAML: %v\n%s", plain, asJSON, asYAML, toYAML(t, plain))
	}
}

// onlyKnown fails for JSON that was accepted with a field that the schema does not
// have: nothing is accepted and then ignored.
func onlyKnown(t *testing.T, text []byte) {
	t.Helper()
	if !json.Valid(text) {
		return // YAML
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var schema struct {
		Tier, Engine, Network, StateDir, Agent, APIToken string
		Layout                                           driver.Layout
		DefaultEgress                                    struct {
			Kind, URL      string
			Allow, Command []string
		}
		Credentials []struct {
			ID, Host, Header, Prefix, Value, Env, File, Placeholder string
			Methods, Paths                                          []string
		}
		AllowInwardFor                                              []string
		DefaultTimeoutMs, DefaultMemoryLimitMb, DefaultMaxProcesses int64
		CPUs                                                        float64
		BestEffort, Allow                                           bool
		Env                                                         map[string]string
		Require                                                     []string
		UIDRange                                                    []int
	}
	if err := decoder.Decode(&schema); err != nil {
		t.Fatalf("accepted: %v\n%s", err, text)
	}
	if schema.Tier == "" {
		t.Fatalf("accepted without a tier:\n%s", text)
	}
}

func sameAs(t *testing.T, language string, want, text []byte) {
	t.Helper()
	file, err := config.Parse(text, factories())
	if err != nil {
		t.Fatalf("as %s: %v\n%s", language, err, text)
	}
	got, err := file.Encode()
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("as %s: %v\n%s\nbecame\n%s", language, err, want, got)
	}
}

// toYAML writes JSON in YAML's block style.
func toYAML(t *testing.T, data []byte) []byte {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value map[string]any
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	writeYAML(&out, value, 0)
	return out.Bytes()
}

func writeYAML(out *bytes.Buffer, value any, depth int) {
	indent := strings.Repeat("  ", depth)
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			out.WriteString(" {}\n")
			return
		}
		out.WriteString("\n")
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out.WriteString(indent + quoteYAML(key) + ":")
			writeYAML(out, v[key], depth+1)
		}
	case []any:
		if len(v) == 0 {
			out.WriteString(" []\n")
			return
		}
		out.WriteString("\n")
		for _, entry := range v {
			out.WriteString(indent + "-")
			writeYAML(out, entry, depth+1)
		}
	case string:
		out.WriteString(" " + quoteYAML(v) + "\n")
	default:
		text, _ := json.Marshal(v)
		out.WriteString(" " + string(text) + "\n")
	}
}

// quoteYAML writes every character that is not plain ASCII as an escape of
// YAML's own, which knows no surrogate pairs.
func quoteYAML(text string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		if r >= ' ' && r <= '~' && r != '"' && r != '\\' {
			b.WriteRune(r)
			continue
		}
		b.WriteString(`\U`)
		for shift := 28; shift >= 0; shift -= 4 {
			b.WriteByte(hex[r>>shift&15])
		}
	}
	b.WriteByte('"')
	return b.String()
}
