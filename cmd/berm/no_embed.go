//go:build !berm_embed

package main

// embeddedAgent is empty in a plain `go build`: the library then looks for the
// agent by itself.
func embeddedAgent() []byte { return nil }
