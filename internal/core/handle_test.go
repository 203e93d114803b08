package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestHandle checks that only the fixed record of the claim that the handle names can be replaced, and only within its
// validity. The record has a TTL of 10 s, hence a margin of 1 s.
func TestHandle(t *testing.T) {
	mine := left(10, 10*second, 0, 0)
	with := func(change func(e *record.Entry)) record.Entry {
		e := mine
		change(&e)
		return e
	}
	for _, c := range []struct {
		name  string
		found record.Entry
		at    time.Duration // on the server's clock
		want  HandleStep
		left  time.Duration
	}{
		{"its record", mine, 2 * second, HandleWrite, 7 * second},
		{"just inside its validity", mine, 9*second - 1, HandleWrite, 1},
		{"its validity is over", mine, 9 * second, HandleLate, 0},
		{"stored too late", left(11, 10*second, 9*second, 9*second), 10 * second, HandleLate, 0},
		{"renewed by its holder", with(func(e *record.Entry) { e.Fixed = false }), second, HandleKept, 0},
		{"another token", with(func(e *record.Entry) { e.Token = 641 }), second, HandleTaken, 0},
		{"another claim, with the token", with(func(e *record.Entry) { e.ID = "you" }), second, HandleTaken, 0},
		{"another claim", stored(12, "you", 1, record.StatusHeld), second, HandleTaken, 0},
		{"unreadable", with(func(e *record.Entry) { e.Unreadable = true }), second, HandleTaken, 0},
		{"a place", with(func(e *record.Entry) { e.Status = record.StatusWaiting }), second, HandleTaken, 0},
		{"broken", with(func(e *record.Entry) { e.Status = record.StatusBroken }), second, HandleBroken, 0},
		{"deleted by a break", ended(11, "me", record.StatusBroken), second, HandleBroken, 0},
		{"deleted", ended(11, "me", record.StatusGone), second, HandleGone, 0},
		{"nothing", record.Entry{}, second, HandleGone, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			step, left := Handle{"me", 640}.Judge(c.found, time.Unix(1_000, 0).Add(c.at))
			require.Equal(t, c.want, step)
			require.Equal(t, c.left, left)
		})
	}
}
