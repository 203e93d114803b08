package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natslock/locks/natslock/admin"
)

// Holding is a claim that was granted, and what it is to its lock.
type Holding struct {
	admin.Holder
	Kind  admin.Kind
	Mode  admin.Mode
	Waits bool   // a writer that keeps others out, and waits for readers inside
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

// Together returns the holders that share a lock: readers, or holders of permits.
func Together(info admin.Info) []admin.Holder {
	if info.Kind == admin.KindSemaphore {
		return info.Permits
	}
	return info.Readers
}

// IsFree reports whether nobody holds the lock or waits for it.
func IsFree(info admin.Info) bool {
	return info.Holder == nil && len(Together(info)) == 0 && len(info.Queue) == 0
}

// PermitsOf returns the number of permits that are taken, and their total. If clients disagree
// about the total, it names all numbers.
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
		if n > 0 { // an unreadable record names none
			of = append(of, fmt.Sprint(n))
		}
	}
	return fmt.Sprintf("%d of %s", len(info.Permits), cmp.Or(strings.Join(of, " or "), "?"))
}

// waitsForReaders reports whether the writer is not in yet. It takes the lock's gate
// first, so that no more readers come, and gets in when those inside have left:
// until then both are seen.
func waitsForReaders(info admin.Info) bool {
	return info.Kind == admin.KindRW && info.Holder != nil && len(info.Readers) > 0
}

// Role returns the word for the holding: "holder", "writer" or "reader".
func (h Holding) Role() string {
	switch {
	case h.Kind != admin.KindRW:
		return "holder"
	case h.Mode == admin.Shared:
		return "reader"
	}
	return "writer"
}

// Freed returns the word for the end of the holding: "free", or "out" for a reader, because others
// may remain.
func (h Holding) Freed() string {
	if h.Mode == admin.Shared {
		return "out"
	}
	return "free"
}

// Name names the holder, as HolderName does, and reports whether it waits for readers.
func (h Holding) Name() string {
	name := HolderName(h.Holder)
	if h.Waits {
		name += " (waits for readers)"
	}
	return name
}

// wasIdle reports whether no goroutine was inside when the client last renewed the lock.
func (h Holding) wasIdle() bool { return h.Idle && h.Broken == nil && !h.Overdue }

// ModeName returns the mode for a cell of a table, or "idle", or the slot of a semaphore.
func (h Holding) ModeName() string {
	switch {
	case h.wasIdle():
		return idleMode
	case h.Kind == admin.KindSemaphore:
		return h.Title
	}
	return h.Mode.String()
}

// idleMode is the mode of a lock that nobody was inside when it was last renewed.
const idleMode = "idle"

// AllIdle reports whether all holders of a lock were idle when their clients last renewed it.
func AllIdle(held []Holding) bool {
	return len(held) > 0 && !slices.ContainsFunc(held, func(h Holding) bool { return !h.wasIdle() })
}

// BothKinds returns the names of locks of several kinds: nearly always a mistake, because
// these do not exclude each other.
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

// modeOf returns the mode of a lock: "shared", "exclusive", or "free" if clients only
// wait for it.
func modeOf(info admin.Info) string {
	switch {
	case len(Together(info)) > 0:
		return admin.Shared.String()
	case info.Holder != nil:
		return admin.Exclusive.String()
	}
	return "free"
}

// InWords returns a number in words, up to three.
func InWords(n int) string { return [...]string{"no", "one", "two", "three"}[n] }

// Count returns a number of things: "1 lock", "2 locks".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
