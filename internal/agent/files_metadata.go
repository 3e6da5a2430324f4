package agent

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Metadata lies in extended attributes beside a file's content.
const (
	metadataHeader   = "X-Metadata-"
	metadataPrefix   = "user.e2b."
	maxMetadataKey   = 255 - len(metadataPrefix) // the kernel's bound on a name
	maxMetadataBytes = 4096                      // of all keys and values
	maxXattrNames    = 64 << 10                  // the kernel's bound on a list
)

// metadataOf reads an upload's metadata from its header, nil for none.
func metadataOf(header http.Header) (map[string]string, error) {
	var out map[string]string
	total := 0
	for _, name := range slices.Sorted(maps.Keys(header)) {
		key, found := strings.CutPrefix(name, metadataHeader)
		if !found {
			continue
		}
		key = strings.ToLower(key)
		values := header[name]
		switch {
		case len(values) != 1:
			return nil, faultf(connect.CodeInvalidArgument, "metadata %q is given more than once", key)
		case key == "" || len(key) > maxMetadataKey:
			return nil, faultf(connect.CodeInvalidArgument, "a metadata key has %d bytes, not 1 to %d", len(key), maxMetadataKey)
		case !isPrintable(key) || !isPrintable(values[0]):
			return nil, faultf(connect.CodeInvalidArgument, "metadata %q is not printable ASCII", key)
		}
		if total += len(key) + len(values[0]); total > maxMetadataBytes {
			return nil, faultf(connect.CodeInvalidArgument, "metadata has more than %d bytes", maxMetadataBytes)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = values[0]
	}
	return out, nil
}

// writeMetadata puts metadata beside a new file's content. A file system that has
// no such attributes does without.
func writeMetadata(fd int, metadata map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		err := unix.Fsetxattr(fd, metadataPrefix+key, []byte(metadata[key]), 0)
		switch {
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
			return nil
		case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
			return unix.ENOSPC
		case err != nil:
			return err
		}
	}
	return nil
}

// readMetadata reads an entry's metadata, nil for none. The attributes are the
// payload's to write, so what no upload could have written is left out. The path
// through /proc is how the kernel reads those of a name in an open directory
// without opening the file.
func readMetadata(dir int, name string) map[string]string {
	p := "/proc/self/fd/" + strconv.Itoa(dir) + "/" + name
	size, err := unix.Llistxattr(p, nil)
	if err != nil || size <= 0 || size > maxXattrNames {
		return nil
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(p, list); err != nil {
		return nil
	}
	var out map[string]string
	total := 0
	value := make([]byte, maxMetadataBytes+1)
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		key, found := strings.CutPrefix(name, metadataPrefix)
		if !found || key == "" || !isPrintable(key) {
			continue
		}
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil || !isPrintable(string(value[:n])) {
			continue
		}
		if total += len(key) + n; total > maxMetadataBytes && !defence.MetadataBound.Off() {
			break
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = string(value[:n])
	}
	return out
}
