package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natslock/locks/natslock/admin"
)

// Holding is a granted claim to a lock and its role in that lock.
type Holding struct {
	admin.Holder
	Kind  admin.Kind
	Mode  admin.Mode
	Waits bool   // a writer that keeps others out while it waits for the readers inside
	Title string // "holder", "writer", "reader 2" or "slot 2"
}

// Holdings returns a lock's holders, with the writer ahead of the readers.
func Holdings(info admin.Info) []Holding {
	var all []Holding
	if info.Holder != nil {
		h := Holding{Holder: *info.Holder, Kind: info.Kind, Mode: admin.Exclusive, Waits: waitsForReaders(info)}
		h.Title = h.Role()
		all = append(all, h)
	}
	for i, r := range info.Readers {
		all = append(all, Holding{Holder: r, Kind: info.Kind, Mode: admin.Shared, Title: fmt.Sprintf("reader %d", i+1)})
	}
	for _, h := range info.Permits {
		all = append(all, Holding{Holder: h, Kind: info.Kind, Mode: admin.Exclusive, Title: fmt.Sprintf("slot %d", h.Slot)})
	}
	return all
}

// Together returns the holders that share a lock: readers or permit holders.
func Together(info admin.Info) []admin.Holder {
	if info.Kind == admin.KindSemaphore {
		return info.Permits
	}
	return info.Readers
}

// IsFree reports whether the lock has no holders and no waiters.
func IsFree(info admin.Info) bool {
	return info.Holder == nil && len(Together(info)) == 0 && len(info.Queue) == 0
}

// PermitsOf returns how many permits are taken, as in "2 of 5". If clients disagree about the
// total, it lists every total.
func PermitsOf(info admin.Info) string {
	var numbers []int
	for _, h := range info.Permits {
		numbers = append(numbers, h.Of)
	}
	for _, w := range info.Queue {
		numbers = append(numbers, w.Of)
	}
	slices.Sort(numbers)
	var of []string
	for _, n := range slices.Compact(numbers) {
		if n > 0 { // an unreadable record has none
			of = append(of, fmt.Sprint(n))
		}
	}
	return fmt.Sprintf("%d of %s", len(info.Permits), cmp.Or(strings.Join(of, " or "), "?"))
}

// waitsForReaders reports whether the writer is still waiting for readers to leave. A writer
// first takes the lock's gate, which keeps out new readers, and enters once the readers inside
// have left. Until then, both the writer and the readers are visible.
func waitsForReaders(info admin.Info) bool {
	return info.Kind == admin.KindRW && info.Holder != nil && len(info.Readers) > 0
}

// Role returns "holder", "writer" or "reader".
func (h Holding) Role() string {
	switch {
	case h.Kind != admin.KindRW:
		return "holder"
	case h.Mode == admin.Shared:
		return "reader"
	}
	return "writer"
}

// Freed returns what the lock becomes when this holding ends: "free", or "out" for a reader,
// because other readers may remain.
func (h Holding) Freed() string {
	if h.Mode == admin.Shared {
		return "out"
	}
	return "free"
}

// Name returns the holder's name, with a note if it is a writer that is waiting for readers.
func (h Holding) Name() string {
	name := HolderName(h.Holder)
	if h.Waits {
		name += " (waits for readers)"
	}
	return name
}

// wasIdle reports whether no goroutine was inside when the client last renewed the lock.
func (h Holding) wasIdle() bool { return h.Idle && h.Broken == nil && !h.Overdue }

// ModeName returns the mode for a table cell: "idle" for an idle lock, and the slot for a
// semaphore.
func (h Holding) ModeName() string {
	switch {
	case h.wasIdle():
		return idleMode
	case h.Kind == admin.KindSemaphore:
		return h.Title
	}
	return h.Mode.String()
}

// idleMode is the mode shown for a lock that was idle when it was last renewed.
const idleMode = "idle"

// AllIdle reports whether the lock has holders and all of them were idle when last renewed.
func AllIdle(held []Holding) bool {
	return len(held) > 0 && !slices.ContainsFunc(held, func(h Holding) bool { return !h.wasIdle() })
}

// BothKinds returns the names shared by locks of different kinds. Sharing a name is nearly
// always a mistake, because such locks do not exclude each other.
func BothKinds(infos []admin.Info) map[string]bool {
	kind, both := make(map[string]admin.Kind), make(map[string]bool)
	for _, info := range infos {
		if k, found := kind[info.Name]; found && k != info.Kind {
			both[info.Name] = true
		}
		kind[info.Name] = info.Kind
	}
	return both
}

// modeOf returns the mode of a lock: "shared", "exclusive", or "free" if it only has waiters.
func modeOf(info admin.Info) string {
	switch {
	case len(Together(info)) > 0:
		return admin.Shared.String()
	case info.Holder != nil:
		return admin.Exclusive.String()
	}
	return "free"
}

// InWords returns n in words. n must not exceed three.
func InWords(n int) string { return [...]string{"no", "one", "two", "three"}[n] }

// Count returns n with its noun, as in "1 lock" or "2 locks".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
