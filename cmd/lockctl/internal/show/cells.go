package show

import (
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/natslock/admin"
)

// ReaderNames names readers, or holders of permits, in a cell: the first one, and the number of
// the others. readers is not empty.
func ReaderNames(readers []admin.Holder) string {
	if len(readers) == 1 {
		return HolderName(readers[0])
	}
	broken := 0
	for _, r := range readers {
		if r.Broken != nil {
			broken++
		}
	}
	first := readers[0]
	first.Broken = nil // counted
	name := fmt.Sprintf("%s and %d more", HolderName(first), len(readers)-1)
	if broken > 0 {
		name += Alarm.Sprintf(" (%d broken)", broken)
	}
	return name
}

// LastEnd returns the time at which all holders are out if they are all dead, for a cell. readers is not empty.
func LastEnd(readers []admin.Holder) string {
	last := slices.MaxFunc(readers, func(a, b admin.Holder) int {
		if a.Expires.IsZero() != b.Expires.IsZero() { // never is last
			return map[bool]int{true: 1, false: -1}[a.Expires.IsZero()]
		}
		return a.Expires.Compare(b.Expires)
	})
	return Expiry(last)
}

// BreakQuestion says what a break would do, at once if now is set, and asks for it.
func BreakQuestion(h Holding, now bool) string {
	kept, next := "Nobody", "The next one"
	if h.Mode == admin.Shared {
		kept, next = "No writer", "A writer"
	}
	if h.Kind == admin.KindSemaphore {
		kept, next = "Nobody with its permit", "The next one"
	}
	if now {
		return fmt.Sprintf("Break it NOW? %s gets in while the %s may still be at work", next, h.Role())
	}
	question := fmt.Sprintf("Break it? %s gets in before the %s has stopped or its lease is over", kept, h.Role())
	if !h.Expires.IsZero() {
		question += fmt.Sprintf(", in %v at the latest", h.TTL)
	}
	if h.wasIdle() {
		question += ". The lock was idle when last renewed: its client gives it to any other that waits"
	}
	return question
}

// HeldSince returns the time of the first grant among the present holders. It is zero if
// there is none.
func HeldSince(info admin.Info) (t time.Time) {
	for _, h := range Holdings(info) {
		if t.IsZero() || h.Since.Before(t) {
			t = h.Since
		}
	}
	return t
}

// WaitsSince returns the time at which the longest waiter came. Waiters that wait by design, as their records say, do
// not count. It is zero if no other waits.
func WaitsSince(info admin.Info) (t time.Time) {
	for _, w := range info.Queue {
		if w.Purpose != "" {
			continue
		}
		if t.IsZero() || w.Since.Before(t) {
			t = w.Since
		}
	}
	return t
}
