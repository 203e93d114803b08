package show

import (
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/natslock/admin"
)

// ReaderNames returns a table cell for several readers or permit holders, which names the first
// and says how many more there are. readers must not be empty.
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
	first.Broken = nil // counted above
	name := fmt.Sprintf("%s and %d more", HolderName(first), len(readers)-1)
	if broken > 0 {
		name += Alarm.Sprintf(" (%d broken)", broken)
	}
	return name
}

// LastEnd returns a table cell with the time until the last of the leases ends. readers must
// not be empty.
func LastEnd(readers []admin.Holder) string {
	last := slices.MaxFunc(readers, func(a, b admin.Holder) int {
		if a.Expires.IsZero() != b.Expires.IsZero() { // a lease that never ends sorts last
			return map[bool]int{true: 1, false: -1}[a.Expires.IsZero()]
		}
		return a.Expires.Compare(b.Expires)
	})
	return Expiry(last)
}

// BreakQuestion returns the question to ask before breaking h. now is set if the break takes
// effect immediately.
func BreakQuestion(h Holding, now bool) string {
	kept, next := "No client gets in", "The next client gets in"
	if h.Mode == admin.Shared {
		kept, next = "No writer gets in", "A writer gets in"
	}
	if h.Kind == admin.KindSemaphore {
		kept, next = "No client gets its permit", "The next client gets in"
	}
	if now {
		return fmt.Sprintf("Break it NOW? %s while the %s may still be working", next, h.Role())
	}
	question := fmt.Sprintf("Break it? %s before the %s has stopped or its lease has ended", kept, h.Role())
	if !h.Expires.IsZero() {
		question += fmt.Sprintf(", within %v", h.TTL)
	}
	if h.wasIdle() {
		question += ". The lock was idle when last renewed: its client gives it up to any other client that waits"
	}
	return question
}

// HeldSince returns the time of the earliest grant among the current holders, or the zero time
// if there are none.
func HeldSince(info admin.Info) (t time.Time) {
	for _, h := range Holdings(info) {
		if t.IsZero() || h.Since.Before(t) {
			t = h.Since
		}
	}
	return t
}

// WaitsSince returns when the longest waiter began to wait, or the zero time if there are no
// waiters. It ignores waiters whose records state a purpose, because they wait by design.
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
