package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natslock/locks/natslock/admin"
)

// Holding is a granted claim and its part in the lock.
type Holding struct {
	admin.Holder
	Kind  admin.Kind
	Mode  admin.Mode
	Waits bool   // a writer that keeps others out while it waits for the readers inside
	Title string // "holder", "writer", "reader 2" or "slot 2"
}

// Holdings returns the holders of a lock, the readers after the writer.
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

// Together returns the holders that share a lock: readers or holders of permits.
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

// PermitsOf returns how many permits are taken, and of how many. If clients disagree about the
// total, it names all totals.
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

// waitsForReaders reports whether the writer is not in yet. A writer first takes the lock's gate,
// which stops new readers, and gets in when the readers inside have left. Until then both are
// visible.
func waitsForReaders(info admin.Info) bool {
	return info.Kind == admin.KindRW && info.Holder != nil && len(info.Readers) > 0
}

// Role returns what the holder is called: "holder", "writer" or "reader".
func (h Holding) Role() string {
	switch {
	case h.Kind != admin.KindRW:
		return "holder"
	case h.Mode == admin.Shared:
		return "reader"
	}
	return "writer"
}

// Freed returns what the lock is after this holding: "free". For a reader it is "out", because
// others may remain.
func (h Holding) Freed() string {
	if h.Mode == admin.Shared {
		return "out"
	}
	return "free"
}

// Name names the holder as HolderName does, and adds whether it waits for readers.
func (h Holding) Name() string {
	name := HolderName(h.Holder)
	if h.Waits {
		name += " (waits for readers)"
	}
	return name
}

// wasIdle reports whether no goroutine was inside when the client last renewed the lock.
func (h Holding) wasIdle() bool { return h.Idle && h.Broken == nil && !h.Overdue }

// ModeName returns the mode for a cell of a table: "idle" for an idle lock, the slot for a
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

// idleMode is the mode of a lock that no goroutine was inside when it was last renewed.
const idleMode = "idle"

// AllIdle reports whether all holders of a lock were idle when their clients last renewed it.
func AllIdle(held []Holding) bool {
	return len(held) > 0 && !slices.ContainsFunc(held, func(h Holding) bool { return !h.wasIdle() })
}

// BothKinds returns the names that locks of several kinds share. That is nearly always a mistake,
// because these locks do not exclude each other.
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

// Count returns n things in words: "1 lock", "2 locks".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
