package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/berm-dev/berm/driver"
)

// shape is one row of the union: a tier, and the field that tells its backends
// apart.
type shape struct {
	tier   driver.Tier
	key    string
	values []string
}

// shapes is the whole union, also what this program has no backend for: such a
// file is right, and refused for another reason than a typing error.
func shapes() []shape {
	return []shape{
		{driver.TierProcess, "engine", []string{"auto", "bubblewrap", "seatbelt"}},
		{driver.TierContainer, "runtime", []string{"docker", "runsc", "aci-standby-pool", "kubernetes"}},
		{driver.TierMicroVM, "service", []string{"e2b", "fly-machines", "self-hosted", "local"}},
		{driver.TierPassthrough, "", nil},
	}
}

// selectFactory finds the backend that the file names, nil with a fault.
func selectFactory(o *object, factories []driver.Factory) *driver.Factory {
	_, present := o.fields["tier"]
	tier, given := o.text("tier")
	if !present {
		o.faults.add("tier: is missing; known here: %s", strings.Join(builtTiers(factories), ", "))
	}
	if !given {
		return nil
	}
	of := slices.DeleteFunc(slices.Clone(factories), func(f driver.Factory) bool { return string(f.Tier) != tier })
	if len(of) == 0 {
		refuseTier(o.faults, tier, factories)
		return nil
	}
	key := of[0].Key
	if key == "" {
		return &of[0]
	}
	value, present := o.peek(key)
	if !present {
		if len(of) > 1 {
			o.faults.add("%s: is missing; known here: %s", key, strings.Join(builtValues(of), ", "))
			return nil
		}
		return &of[0]
	}
	if value == "" {
		return nil // of the wrong type, or empty, which peek has refused
	}
	for i := range of {
		if slices.Contains(of[i].Values, value) {
			return &of[i]
		}
	}
	refuseValue(o.faults, tier, key, value, of)
	return nil
}

// peek reads a string and leaves it for the backend, which may want it too.
func (o *object) peek(name string) (string, bool) {
	value, present := o.fields[name]
	text, ok := o.text(name)
	if ok {
		o.fields[name] = value
	}
	if ok && text == "" {
		o.faults.add("%s: is empty", o.at(name))
	}
	return text, present
}

func refuseTier(f *faults, tier string, factories []driver.Factory) {
	built := builtTiers(factories)
	var known []string
	for _, s := range shapes() {
		known = append(known, string(s.tier))
	}
	if slices.Contains(known, tier) {
		f.lacks("tier: no backend for %q is built into this program; known here: %s", tier, strings.Join(built, ", "))
		return
	}
	f.add("tier: %s is unknown; known here: %s%s", quote(tier), strings.Join(built, ", "), suggest(tier, known))
}

func refuseValue(f *faults, tier, key, value string, of []driver.Factory) {
	built := builtValues(of)
	var known []string
	for _, s := range shapes() {
		if string(s.tier) == tier && s.key == key {
			known = s.values
		}
	}
	if slices.Contains(known, value) {
		f.lacks("%s: no backend for %q is built into this program; known here: %s", key, value, strings.Join(built, ", "))
		return
	}
	f.add("%s: %s is unknown; known here: %s%s", key, quote(value), strings.Join(built, ", "), suggest(value, slices.Concat(built, known)))
}

func builtTiers(factories []driver.Factory) []string {
	var out []string
	for _, f := range factories {
		if !slices.Contains(out, string(f.Tier)) {
			out = append(out, string(f.Tier))
		}
	}
	return out
}

func builtValues(factories []driver.Factory) []string {
	var out []string
	for _, f := range factories {
		out = append(out, f.Values...)
	}
	return out
}

// decodeBackend hands the fields that are left to the backend and refuses those
// that it leaves in turn. The raw fields are kept for Encode.
func decodeBackend(o *object, factory *driver.Factory) (driver.Backend, map[string]json.RawMessage) {
	raw, kept := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for name, value := range o.fields {
		encoded, err := json.Marshal(value)
		if err != nil {
			o.faults.add("%s: %v", o.at(name), err)
			continue
		}
		raw[name] = encoded
		kept[name] = encoded
	}
	fields := driver.NewFields(raw)
	backend, reasons := factory.Decode(fields)
	o.faults.invalid = append(o.faults.invalid, reasons...)
	left := fields.Left()
	for name := range kept {
		if !slices.Contains(left, name) || factory.Key != "" && name == factory.Key {
			delete(o.fields, name)
		} else {
			delete(kept, name)
		}
	}
	return backend, kept
}

// quote shows a value from the file, cut short.
func quote(text string) string {
	const longest = 200
	if len(text) > longest {
		return fmt.Sprintf("%q...", text[:longest])
	}
	return fmt.Sprintf("%q", text)
}
