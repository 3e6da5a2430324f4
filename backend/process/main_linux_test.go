package process

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// Every goroutine that a test made must have ended with it.
func TestMain(m *testing.M) {
	if os.Args[0] == keyringMarker {
		id, _ := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		fmt.Print(id)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
