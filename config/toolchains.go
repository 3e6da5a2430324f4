package config

import (
	"encoding/json"
	"path/filepath"

	"github.com/berm-dev/berm"
)

// toolchains is `toolchains`: "auto", "none", or a list of folders.
type toolchains struct {
	word  string
	roots []string
}

// MarshalJSON gives the form that was read.
func (t *toolchains) MarshalJSON() ([]byte, error) {
	if t.word != "" {
		return json.Marshal(t.word)
	}
	return json.Marshal(t.roots)
}

func readToolchains(o *object) *toolchains {
	const name = "toolchains"
	switch value := o.take(name).(type) {
	case nil:
	case string:
		if value == "auto" || value == "none" {
			return &toolchains{word: value}
		}
		o.faults.add("%s: %s is unknown; write auto, none, or a list of folders%s", o.at(name), quote(value), suggest(value, []string{"auto", "none"}))
	case []any:
		t := &toolchains{roots: []string{}}
		for i, entry := range value {
			root, ok := entry.(string)
			switch {
			case !ok:
				o.faults.add("%s: must be a string, not %s", index(o.at(name), i), typeName(entry))
			case !filepath.IsAbs(root) || filepath.Clean(root) != root:
				o.faults.add("%s: %s is not a clean absolute path", index(o.at(name), i), quote(root))
			default:
				t.roots = append(t.roots, root)
			}
		}
		return t
	default:
		o.faults.add("%s: must be auto, none, or a list of folders, not %s", o.at(name), typeName(value))
	}
	return nil
}

func (t *toolchains) config() berm.Toolchains {
	if t == nil {
		return berm.Toolchains{}
	}
	return berm.Toolchains{Auto: t.word == "auto", Roots: t.roots}
}
