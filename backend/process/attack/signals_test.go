//go:build linux

package attack_test

import (
	"slices"
	"strings"
	"testing"
)

// attacks 2 "unhandled TERM, HUP, QUIT end a Go PID 1" and its test "payload
// signals the agent: sandbox survives or ends typed".
func TestSignalsToTheAgent(t *testing.T) {
	t.Parallel()
	b := fresh(t, defaults())
	for _, way := range []string{"kill", "threads", "queue", "pidfd", "news", "parent", "terminal"} {
		v := attack(t, b, "signals", way)
		alive(t, b)
		if way == "terminal" {
			v.of("2 TIOCSPGRP").blocked(t, "ENOTTY", "EPERM", "ESRCH")
			continue
		}
		sent := slices.DeleteFunc(slices.Clone(v), func(a attempt) bool { return a.Errno != "" })
		if len(sent) == 0 {
			t.Errorf("%s: no signal could be sent, so this proves nothing: %+v", way, v[0])
		}
		// What a Go program takes for a fault of its own is refused where the sender
		// says where it comes from, whatever thread is named.
		for _, signal := range []string{"4 ", "5 ", "7 ", "8 ", "11 ", "16 ", "31 "} {
			switch way {
			case "queue":
				v.of(signal).blocked(t, "EPERM")
			case "pidfd":
				v.of(signal+"code").blocked(t, "EPERM", "EINVAL")
			case "news":
				v.of(signal+"news F_SETSIG").blocked(t, "EPERM")
			}
		}
	}
}

// attacks 2 "never signal.Ignore: payloads inherit it", its test "SigIgn of a
// payload is 0".
func TestPayloadsSignals(t *testing.T) {
	t.Parallel()
	status := output(t, shared(t), "cat", "/proc/self/status")
	for _, name := range []string{"SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"} {
		if value := field(status, name); value == "" || strings.Trim(value, "0") != "" {
			t.Errorf("%s is %q", name, value)
		}
	}
}
