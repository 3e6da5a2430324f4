package driver

// Factory describes one backend to the configuration reader, so that the reader
// imports no backend. The zero Key means that the tier has a single backend.
type Factory struct {
	// Tier is the configuration's `tier`.
	Tier Tier
	// Key is the discriminator within the tier ("engine", "runtime", "service"),
	// empty when the tier has none.
	Key string
	// Values are the discriminator's values that select this backend.
	Values []string
	// Name is the backend's name, as `--backend` takes it.
	Name string
	// Default is the backend's configuration with nothing said.
	Default func() Backend
	// Decode reads the fields that belong to this backend. Fields has every field
	// that the reader does not know itself; Decode removes what it takes by
	// calling Fields.Take. It returns a nil Backend and all reasons on faults.
	Decode func(fields *Fields) (Backend, []string)
	// Keys are the fields that Decode takes, for the nearest-name hint.
	Keys []string
}
