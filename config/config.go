package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"unicode/utf8"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

const operation = "read configuration"

// File is what a configuration file says. It is immutable.
type File struct {
	// Backend is ready for berm.Open; never nil.
	Backend driver.Backend
	// BackendName is the backend's name, as the command line takes it.
	BackendName string
	// Config has what is common to all backends.
	Config berm.Config

	document document
}

// Load reads the file at path, JSON or YAML, for one of the backends that the
// factories describe. Errors: NotFound and Denied for the file itself, Invalid
// with every reason for its content, Unsupported when it is right but asks for
// what this program does not have.
func Load(path string, factories []driver.Factory) (*File, error) {
	data, err := readFile(path)
	if err != nil {
		kind := errdefs.KindOf(err)
		if kind == errdefs.Internal {
			kind = errdefs.Invalid
		}
		return nil, errdefs.Wrap(kind, operation, err)
	}
	file, err := Parse(data, factories)
	var known *errdefs.Error
	if errors.As(err, &known) {
		named := *known
		named.Op = operation + " " + path
		return nil, &named
	}
	return file, err
}

// readFile reads at most one byte more than is allowed, so that a device or an
// endless pipe cannot fill the memory.
func readFile(path string) ([]byte, error) {
	// Opening a pipe that nobody writes to would wait for ever.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// Parse reads the content of a configuration file. What begins with "{" is JSON,
// everything else YAML. The host directories that it names must exist; nothing
// is changed. Errors are as for Load.
func Parse(data []byte, factories []driver.Factory) (*File, error) {
	fields, err := decode(data)
	if err != nil {
		return nil, errdefs.New(errdefs.Invalid, operation, err.Error())
	}
	f := &faults{}
	scrub(fields, "", f)
	o := &object{fields: fields, faults: f}
	factory := selectFactory(o, factories)
	doc := readDocument(o, factory)
	var backend driver.Backend
	if factory != nil {
		backend, doc.backend = decodeBackend(o, factory)
		o.done(append(factory.Keys, belowLayout()...)...)
	}
	if backend != nil {
		checkLayout(f, doc.layout(), backend.Declare())
	} else if f.none() {
		f.add("tier: the backend gave no reason why it refuses its fields")
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return &File{Backend: backend, BackendName: factory.Name, Config: doc.config(), document: doc}, nil
}

// decode gives the file's one object.
func decode(data []byte) (map[string]any, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxBytes)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !utf8.Valid(data) {
		return nil, errors.New("the file is not UTF-8")
	}
	read := decodeYAML
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		read = decodeJSON
	}
	value, err := read(data)
	if err != nil {
		return nil, err
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the file must hold an object, not %s", typeName(value))
	}
	return fields, nil
}
