// Package config reads an operator's configuration file: a union of backends,
// told apart by `tier` and one more field, with common fields beside it. The
// result is a driver.Backend and a berm.Config. The list of backends comes from
// the caller, so this package imports none of them.
//
// The reader is strict. A field that it does not know, a duplicate key, a value
// of the wrong type, a missing host directory: all of them are refused, and all
// at once, in one *errdefs.Error whose reasons name the place in the file
// ("layout.outputs.path"). JSON and YAML mean the same; of YAML only what JSON
// can say is accepted, so no anchors, aliases, tags or merge keys.
package config
