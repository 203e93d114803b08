package gooselock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	gooselock "github.com/natslock/locks/adapters/goose"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	(&kit.Surface{
		Funcs: map[string]any{"NewLocker": gooselock.NewLocker, "UntilLost": gooselock.UntilLost},
		Types: map[string]func(*testing.T) any{"Locker": func(t *testing.T) any {
			own := locktest.New()
			t.Cleanup(own.Close)
			return gooselock.NewLocker(own, "a")
		}},
		Args: []any{locks},
		Except: map[string]string{
			"Locker that is nil":                "NewLocker makes it",
			"UntilLost(nil Context)":            "it panics, as context.WithCancel does",
			"Locker.Lock(nil DB)":               "it does not use it",
			"Locker.Unlock(nil Context)":        "it ignores it",
			"Locker.Unlock(nil DB)":             "as Lock",
			"Locker.SessionLock(nil Conn)":      "as Lock",
			"Locker.SessionUnlock(nil Context)": "as Unlock",
			"Locker.SessionUnlock(nil Conn)":    "as Unlock",
		},
	}).RefusesNilAndTooLong(t)
}

// TestEndedBehindAnEarlierMigration checks that a Lock waiting behind a migration that has lost its
// lock ends with its context, and that the error states why on a single line.
func TestEndedBehindAnEarlierMigration(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	l := gooselock.NewLocker(locks, "a")
	if err := l.Lock(t.Context(), nil); err != nil || !locks.Lose("a") {
		t.Fatal(err)
	}
	why := errors.New("the deployment was stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Lock(ctx, nil) }()
	for locks.Client().Stats().Held == 0 {
		runtime.Gosched()
	}
	cancel(why)
	err := <-done
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is not that of the context, on one line: %v", err)
	}
	if n := locks.Client().Stats().Held; n != 0 {
		t.Errorf("%d locks are left", n)
	}
}
