//go:build !linux

// Command payload is for Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "payload: the corpus is for Linux")
	os.Exit(1)
}
