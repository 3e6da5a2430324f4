package process

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine that a test made must have ended with it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
