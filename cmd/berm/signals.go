package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// grace is how long a command may take to end after a signal to end.
const grace = 10 * time.Second

// interruptedError is why a run's context has ended: a signal to berm.
type interruptedError struct{ signal syscall.Signal }

func (e interruptedError) Error() string { return "ended by a signal: " + e.signal.String() }

// errReaderGone is why a run's context has ended: nobody reads the output.
var errReaderGone = errors.New("nobody reads the output any more")

// target takes signals; *berm.Cmd is one.
type target interface{ Signal(syscall.Signal) error }

// watcher receives the signals of this process during one run. Before there is a
// command a signal ends the run's context; then signals go to the command. While
// the command is being started they are kept for it: it may run already.
type watcher struct {
	cancel   context.CancelCauseFunc
	received chan os.Signal
	held     chan struct{}
	attached chan target
	done     chan struct{}
	running  sync.WaitGroup
}

// watch starts to receive. The context ends with cause interruptedError when the
// run has to end. Stop must be called.
func watch(ctx context.Context) (context.Context, *watcher) {
	ctx, w := newWatcher(ctx)
	w.subscribe()
	return ctx, w
}

func newWatcher(ctx context.Context) (context.Context, *watcher) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watcher{
		cancel: cancel,
		// Room for a burst: signal delivery never waits.
		received: make(chan os.Signal, 16),
		held:     make(chan struct{}),
		attached: make(chan target),
		done:     make(chan struct{}),
	}
	w.running.Go(w.loop)
	return ctx, w
}

func (w *watcher) subscribe() {
	// PIPE is among them so that a write to a closed pipe returns an error, and
	// the sandbox is removed before the end.
	for _, sig := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE,
	} {
		// What the parent has switched off, as nohup does, stays off.
		if sig == syscall.SIGPIPE || !signal.Ignored(sig) {
			signal.Notify(w.received, sig)
		}
	}
}

// hold keeps what comes from now on for the target that attach will name.
func (w *watcher) hold() { w.held <- struct{}{} }

// attach makes t the target of what was held and of what comes. It follows hold.
func (w *watcher) attach(t target) { w.attached <- t }

// stop ends the watching and waits for it.
func (w *watcher) stop() {
	signal.Stop(w.received)
	close(w.done)
	w.running.Wait()
	w.cancel(nil)
}

func (w *watcher) loop() {
	var to chan syscall.Signal
	var kill <-chan time.Time
	var first syscall.Signal
	defer func() {
		if to != nil {
			close(to)
		}
	}()
	for {
		select {
		case <-w.done:
			return
		case <-w.held:
			to = make(chan syscall.Signal, 8)
		case t := <-w.attached:
			w.forward(t, to)
		case <-kill:
			w.cancel(interruptedError{first})
		case got := <-w.received:
			sig, _ := got.(syscall.Signal)
			ends := sig == syscall.SIGINT || sig == syscall.SIGTERM
			switch {
			case sig == syscall.SIGPIPE:
			case to == nil && sig != syscall.SIGUSR1 && sig != syscall.SIGUSR2:
				w.cancel(interruptedError{sig})
			case to == nil:
			case ends && first != 0:
				w.cancel(interruptedError{first})
			default:
				if ends {
					first, kill = sig, time.After(grace)
				}
				select {
				case to <- sig:
				default: // the command is not taking them; it is killed soon enough
				}
			}
		}
	}
}

// forward passes signals on in a goroutine of its own, because one may have to
// wait for the sandbox, and a second INT must be seen meanwhile.
func (w *watcher) forward(t target, to <-chan syscall.Signal) {
	w.running.Go(func() {
		for sig := range to {
			// A command that has just ended needs no signal.
			_ = t.Signal(sig)
		}
	})
}
