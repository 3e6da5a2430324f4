//go:build !unix

package state

import (
	"errors"
	"io/fs"
	"os"
)

// ownerOf does not know.
func ownerOf(fs.FileInfo) (int, bool) { return 0, false }

// openNoFollow refuses: what owns the records cannot be locked here.
func openNoFollow(string, int) (*os.File, error) { return nil, errors.ErrUnsupported }

// tryLock refuses, as openNoFollow does.
func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }
