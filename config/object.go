package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/errdefs"
)

// faults collects every reason of one reading.
type faults struct {
	invalid     []string
	unsupported []string
}

func (f *faults) add(format string, args ...any) {
	f.invalid = append(f.invalid, fmt.Sprintf(format, args...))
}

// lacks adds what is right in itself and cannot be done by this program.
func (f *faults) lacks(format string, args ...any) {
	f.unsupported = append(f.unsupported, fmt.Sprintf(format, args...))
}

func (f *faults) none() bool { return len(f.invalid)+len(f.unsupported) == 0 }

// err is nil without faults. The kind is Unsupported only when nothing else is
// wrong: mending the file would not help then.
func (f *faults) err() error {
	if f.none() {
		return nil
	}
	kind := errdefs.Invalid
	if len(f.invalid) == 0 {
		kind = errdefs.Unsupported
	}
	return errdefs.New(kind, operation, slices.Concat(f.invalid, f.unsupported)...)
}

// object reads one object of the file, field by field. Every name that was asked
// for is known; what is left at the end is refused.
type object struct {
	path   string
	fields map[string]any
	known  []string
	faults *faults
}

func (o *object) at(name string) string { return join(o.path, name) }

// take gives a field's value, nil when it is absent.
func (o *object) take(name string) any {
	o.known = append(o.known, name)
	value := o.fields[name]
	delete(o.fields, name)
	return value
}

// takeAs gives a field of one JSON type.
func takeAs[T any](o *object, name, article string) (T, bool) {
	value := o.take(name)
	typed, ok := value.(T)
	if !ok && value != nil {
		o.faults.add("%s: must be %s, not %s", o.at(name), article, typeName(value))
	}
	return typed, ok
}

func (o *object) text(name string) (string, bool) {
	return takeAs[string](o, name, "a string")
}

func (o *object) boolean(name string) bool {
	value, _ := takeAs[bool](o, name, "true or false")
	return value
}

// whole reads a whole number from low to high; 0 when the field is absent.
func (o *object) whole(name string, low, high int64) int64 {
	number, ok := takeAs[json.Number](o, name, "a whole number")
	if !ok {
		return 0
	}
	value, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || value < low || value > high {
		o.faults.add("%s: must be a whole number from %d to %d, not %s", o.at(name), low, high, printable(number.String()))
		return 0
	}
	return value
}

// between reads a number from low to high; 0 when the field is absent.
func (o *object) between(name string, low, high float64) float64 {
	number, ok := takeAs[json.Number](o, name, "a number")
	if !ok {
		return 0
	}
	value, err := number.Float64()
	if err != nil || value < low || value > high {
		o.faults.add("%s: must be a number from %g to %g, not %s", o.at(name), low, high, printable(number.String()))
		return 0
	}
	return value
}

// object reads a nested object, nil when the field is absent.
func (o *object) object(name string) *object {
	fields, ok := takeAs[map[string]any](o, name, "an object")
	if !ok {
		return nil
	}
	return &object{path: o.at(name), fields: fields, faults: o.faults}
}

// list reads a list of T with the place of each entry.
func list[T any](o *object, name, article string, each func(place string, value T)) {
	values, _ := takeAs[[]any](o, name, "a list")
	for i, value := range values {
		if value == nil {
			continue // scrub has refused it
		}
		at := index(o.at(name), i)
		typed, ok := value.(T)
		if !ok {
			o.faults.add("%s: must be %s, not %s", at, article, typeName(value))
			continue
		}
		each(at, typed)
	}
}

// done refuses what nobody asked for. More are names that are known besides.
func (o *object) done(more ...string) {
	candidates := slices.Concat(o.known, more)
	for _, name := range slices.Sorted(maps.Keys(o.fields)) {
		hint := suggest(name, candidates)
		for _, elsewhere := range more {
			if strings.HasSuffix(elsewhere, "."+name) {
				hint = fmt.Sprintf("; did you mean %q?", elsewhere)
			}
		}
		o.faults.add("%s: unknown field%s", o.at(name), hint)
	}
}

// scrub refuses nulls and NUL bytes anywhere below value, and takes the nulls
// out. A null would be a second way to leave a field out, and in YAML it is what
// a forgotten value looks like. A NUL byte would end a path or a name early for
// the kernel; in the layout, whose check is driver.Layout's, it is left alone.
func scrub(value any, path string, f *faults) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if v[name] == nil {
				f.add("%s: has no value; leave the field out instead", join(path, name))
				delete(v, name)
				continue
			}
			scrub(v[name], join(path, name), f)
		}
	case []any:
		for i, entry := range v {
			if entry == nil {
				f.add("%s: has no value; leave the entry out instead", index(path, i))
				continue
			}
			scrub(entry, index(path, i), f)
		}
	case string:
		if strings.ContainsRune(v, 0) && !strings.HasPrefix(path, "layout.") {
			f.add("%s: has a NUL byte", path)
		}
	}
}

func typeName(value any) string {
	switch value.(type) {
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	}
	return "an object"
}
