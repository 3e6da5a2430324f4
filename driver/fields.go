package driver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Fields are the parts of a configuration object that nobody has taken yet. It
// is for one goroutine.
type Fields struct {
	raw map[string]json.RawMessage
}

// NewFields takes ownership of raw.
func NewFields(raw map[string]json.RawMessage) *Fields { return &Fields{raw: raw} }

// Take decodes one field into v, whose type decides what is accepted, and
// removes it from f. An absent field leaves v as it is. The returned reason is
// empty when all is well.
func Take[T any](f *Fields, name string, v *T) (reason string) {
	raw, ok := f.raw[name]
	if !ok {
		return ""
	}
	delete(f.raw, name)
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Sprintf("%s: %v", name, err)
	}
	return ""
}

// Left lists the names that were not taken, sorted.
func (f *Fields) Left() []string { return slices.Sorted(maps.Keys(f.raw)) }
