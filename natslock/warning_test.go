package natslock

import (
	"runtime"
	"testing"
	"time"

	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/session"
)

// over is a share in a lease that has ended in the given state.
type over struct {
	noLock
	state session.State
}

func (o over) Status() (session.State, time.Duration, error) {
	if o.state == session.Held {
		return o.state, time.Second, nil
	}
	return o.state, 0, errNoLock
}

// TestWarningDoesNotBeginAfterTheEnd checks that a warning does not start if the holder has left,
// or the lock is lost, by the time it gets to run.
func TestWarningDoesNotBeginAfterTheEnd(t *testing.T) {
	for state, want := range map[session.State]int{session.Held: 1, session.Released: 0, session.Lost: 0, session.Ended: 0} {
		given, done := 0, make(chan struct{})
		cfg := lockConfig{warn: func(*Lock) { given++ }}
		l, err := cfg.handle(func(req call.Request) (cohort.Holding, error) {
			go func() { defer close(done); req.OnWarn() }()
			return over{state: state}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-done
		l.cleanup.Stop()
		if given != want {
			t.Errorf("a lock in state %v was warned %d times, not %d", state, given, want)
		}
	}
}

// TestWarningAtTheGrantGetsAWholeHandle checks that a warning that is already due at the grant gets
// a fully initialized handle. Unlock reads all of it, so the race detector would notice otherwise.
func TestWarningAtTheGrantGetsAWholeHandle(t *testing.T) {
	for range 100 {
		done := make(chan struct{})
		cfg := lockConfig{warn: func(l *Lock) {
			if err := l.Unlock(t.Context()); err != errNoLock {
				t.Error(err)
			}
		}}
		l, err := cfg.handle(func(req call.Request) (cohort.Holding, error) {
			go func() { defer close(done); req.OnWarn() }()
			return over{state: session.Held}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-done
		runtime.KeepAlive(l)
	}
}
