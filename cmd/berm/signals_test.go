package main

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// sink is a command that notes its signals.
type sink chan syscall.Signal

func (s sink) Signal(sig syscall.Signal) error {
	s <- sig
	return nil
}

// TestGrace: a command that does not end after a first signal is killed.
func TestGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, w := newWatcher(t.Context())
		defer w.stop()
		command := make(sink, 8)
		w.hold()
		w.received <- syscall.SIGHUP
		synctest.Wait()
		w.attach(command)
		w.received <- syscall.SIGTERM
		if a, b := <-command, <-command; a != syscall.SIGHUP || b != syscall.SIGTERM {
			t.Fatalf("the command got %v and %v", a, b)
		}
		time.Sleep(grace - time.Millisecond)
		if ctx.Err() != nil {
			t.Fatal("killed before its time")
		}
		time.Sleep(2 * time.Millisecond)
		if got := interruptStatus(ctx); got != 143 {
			t.Fatalf("exit status %d", got)
		}
	})
}

// TestBeforeCommand: before there is a command a signal ends the run, and one
// that means nothing to berm does not.
func TestBeforeCommand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, w := newWatcher(t.Context())
		defer w.stop()
		w.received <- syscall.SIGUSR1
		w.received <- syscall.SIGPIPE
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		w.received <- syscall.SIGHUP
		<-ctx.Done()
		var interrupted interruptedError
		if !errors.As(context.Cause(ctx), &interrupted) || interrupted.signal != syscall.SIGHUP {
			t.Fatal(context.Cause(ctx))
		}
	})
}
