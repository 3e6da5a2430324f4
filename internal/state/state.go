// Package state keeps berm's own directory on the host: who is alive, and which
// sandboxes were begun, so that a later opening can remove what a killed host
// process has left behind and never touches what is still in use.
//
// owners/<instance>.lock is held by flock as long as its process lives;
// sandboxes/<id>.json is written before a machine is made and removed after it
// is gone; <instance>.<id>.tmp beside it is one that is being written.
package state

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	ownersDir    = "owners"
	sandboxesDir = "sandboxes"
	lockSuffix   = ".lock"
	intentSuffix = ".json"
	draftSuffix  = ".tmp"
)

// DefaultDir is where berm keeps its state when nobody says otherwise: /run/berm
// for root, else $XDG_RUNTIME_DIR/berm, else /tmp/berm-UID.
func DefaultDir() string {
	if os.Geteuid() == 0 {
		return "/run/berm"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berm")
	}
	return filepath.Join("/tmp", fmt.Sprintf("berm-%d", os.Geteuid()))
}

// Dir is an opened state directory. Its methods may be called concurrently, also
// from several processes.
type Dir struct {
	path string
}

// Open makes the directory if needed and checks that it is the caller's alone: a
// directory that is a link, belongs to another or is open to others is refused.
func Open(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("state directory %q is not absolute", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	for _, dir := range []string{path, filepath.Join(path, ownersDir), filepath.Join(path, sandboxesDir)} {
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			err = os.Chmod(dir, 0o700) // whatever the umask left
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("state directory: %w", err)
		}
		if err := private(dir); err != nil {
			return nil, err
		}
	}
	return &Dir{path: path}, nil
}

// private checks one directory's owner and mode.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	uid, ok := ownerOf(info)
	switch {
	case defence.StatePrivate.Off():
	case !info.IsDir():
		return fmt.Errorf("state directory %s is not a directory", dir)
	case ok && uid != os.Geteuid():
		return fmt.Errorf("state directory %s belongs to uid %d", dir, uid)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("state directory %s has mode %04o; it must be 0700", dir, info.Mode().Perm())
	}
	return nil
}

// Path is the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// Owner is this process's claim to the sandboxes that it makes. Its methods may
// be called concurrently.
type Owner struct {
	dir      *Dir
	instance string
	lock     *os.File
}

// Claim makes a new owner.
func (d *Dir) Claim() (*Owner, error) {
	for {
		instance := NewID()
		lock, err := d.lockOwner(instance, os.O_CREATE|os.O_EXCL)
		if err != nil {
			return nil, fmt.Errorf("claim state directory: %w", err)
		}
		if lock != nil {
			return &Owner{dir: d, instance: instance, lock: lock}, nil
		}
	}
}

// lockOwner takes an owner's lock without waiting. It returns nil when somebody
// else has it, or when the file was removed between opening and locking: a
// sweep that saw the new file unlocked may have done that.
func (d *Dir) lockOwner(instance string, flags int) (*os.File, error) {
	path := filepath.Join(d.path, ownersDir, instance+lockSuffix)
	file, err := openNoFollow(path, flags)
	if err != nil {
		return nil, err
	}
	if locked, err := tryLock(file); !locked && !defence.StateLock.Off() {
		return nil, errors.Join(err, file.Close())
	}
	held, heldErr := file.Stat()
	named, namedErr := os.Stat(path)
	if heldErr != nil || namedErr != nil || !os.SameFile(held, named) {
		return nil, file.Close()
	}
	return file, nil
}

// Instance is the owner's name.
func (o *Owner) Instance() string { return o.instance }

// intent is the content of sandboxes/<id>.json.
type intent struct {
	ID       string    `json:"id"`
	Owner    string    `json:"owner"`
	Backend  string    `json:"backend"`
	PID      int       `json:"pid"`
	Recorded time.Time `json:"recorded"`
}

// Intend records that a sandbox is about to be made. It must succeed before
// anything of the sandbox exists.
func (o *Owner) Intend(id, backend string) error {
	data, err := json.Marshal(intent{ID: id, Owner: o.instance, Backend: backend, PID: os.Getpid(), Recorded: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("record sandbox: %w", err)
	}
	// The owner's name makes a draft that was never finished removable.
	draft := filepath.Join(o.dir.path, sandboxesDir, o.instance+"."+id+draftSuffix)
	if err := os.WriteFile(draft, data, 0o600); err != nil {
		return errors.Join(fmt.Errorf("record sandbox: %w", err), removeFile(draft))
	}
	if err := os.Rename(draft, o.dir.intentPath(id)); err != nil {
		return errors.Join(fmt.Errorf("record sandbox: %w", err), removeFile(draft))
	}
	return nil
}

// Forget removes the record of a sandbox of which nothing is left.
func (o *Owner) Forget(id string) error { return removeFile(o.dir.intentPath(id)) }

// Close gives up the claim. Its lock file goes too, unless sandboxes are still
// recorded: then a later sweep finds them by it.
func (o *Owner) Close() error {
	intents, err := o.dir.intents()
	ours := func(in intent) bool { return in.Owner == o.instance }
	if err == nil && (!slices.ContainsFunc(intents, ours) || defence.StateUnswept.Off()) {
		err = removeFile(o.lock.Name())
	}
	return errors.Join(err, o.lock.Close())
}

func (d *Dir) intentPath(id string) string {
	return filepath.Join(d.path, sandboxesDir, id+intentSuffix)
}

// Orphans are the sandboxes of one dead owner. Holding it keeps other sweeps
// away.
type Orphans struct {
	dir      *Dir
	instance string
	lock     *os.File
	// IDs are the sandboxes that the owner had begun on the backend.
	IDs []string
	// others is true when the owner had sandboxes on another backend too.
	others bool
}

// Orphans finds dead owners that had sandboxes on a backend, and dead owners
// that had none at all. The caller ends each with Release, also after an error.
func (d *Dir) Orphans(backend string) ([]*Orphans, error) {
	found, err := d.deadOwners()
	if len(found) == 0 {
		return nil, err
	}
	// Only now: an owner whose lock is free makes no more records, so that none
	// can be missed.
	intents, intentsErr := d.intents()
	if intentsErr != nil {
		errs := []error{err, intentsErr}
		for _, o := range found {
			errs = append(errs, o.Release(false))
		}
		return nil, errors.Join(errs...)
	}
	for _, o := range found {
		for _, in := range intents {
			switch {
			case in.Owner != o.instance:
			case in.Backend == backend:
				o.IDs = append(o.IDs, in.ID)
			default:
				o.others = true
			}
		}
	}
	return found, err
}

// deadOwners takes the locks that nobody holds.
func (d *Dir) deadOwners() ([]*Orphans, error) {
	locks, err := os.ReadDir(filepath.Join(d.path, ownersDir))
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	var found []*Orphans
	for _, entry := range locks {
		instance, ok := strings.CutSuffix(entry.Name(), lockSuffix)
		if !ok {
			continue
		}
		lock, err := d.lockOwner(instance, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, fmt.Errorf("look at owner %s: %w", instance, err)
		}
		if lock != nil {
			found = append(found, &Orphans{dir: d, instance: instance, lock: lock})
		}
	}
	return found, nil
}

// intents reads every record. A record that cannot be read is skipped: a half
// written one has nothing behind it, since it is renamed into place first.
func (d *Dir) intents() ([]intent, error) {
	entries, err := os.ReadDir(filepath.Join(d.path, sandboxesDir))
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var out []intent
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), intentSuffix) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(d.path, sandboxesDir, entry.Name()))
		if err != nil {
			continue
		}
		var in intent
		if json.Unmarshal(data, &in) == nil && in.ID+intentSuffix == entry.Name() {
			out = append(out, in)
		}
	}
	return out, nil
}

// Release ends the hold. When swept is true the records are removed, and the
// lock file too unless the owner had sandboxes on another backend.
func (o *Orphans) Release(swept bool) error {
	var errs []error
	if swept {
		for _, id := range o.IDs {
			errs = append(errs, removeFile(o.dir.intentPath(id)))
		}
		errs = append(errs, o.removeDrafts())
		if !o.others {
			errs = append(errs, removeFile(o.lock.Name()))
		}
	}
	return errors.Join(append(errs, o.lock.Close())...)
}

// removeDrafts removes the records that the owner was writing when it died.
// Nothing was made for them yet.
func (o *Orphans) removeDrafts() error {
	if defence.StateDrafts.Off() {
		return nil
	}
	dir := filepath.Join(o.dir.path, sandboxesDir)
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, o.instance+".") && strings.HasSuffix(name, draftSuffix) {
			errs = append(errs, removeFile(filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}

// NewID gives 20 random characters of [a-z0-9], about 103 bits.
func NewID() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 0, 20)
	buf := make([]byte, 32)
	for len(id) < cap(id) {
		// crypto/rand.Read never fails; it ends the program instead.
		_, _ = rand.Read(buf)
		for _, b := range buf {
			// 252 is the largest multiple of 36 in a byte: no character is likelier.
			if b < 252 && len(id) < cap(id) {
				id = append(id, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(id)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
