package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natslock/locks/natslock"
)

// holding is a claim that was granted, and what it is to its lock.
type holding struct {
	natslock.Holder
	kind  natslock.Kind
	mode  natslock.Mode
	waits bool   // a writer that nobody passes any more, but that readers are still before
	title string // "holder", "writer", "reader 2" or "slot 2"
}

// holdings returns the holders of a lock, the readers after the writer.
func holdings(info natslock.Info) []holding {
	var all []holding
	if info.Holder != nil {
		h := holding{Holder: *info.Holder, kind: info.Kind, mode: natslock.Exclusive, waits: waitsForReaders(info)}
		h.title = h.role()
		all = append(all, h)
	}
	for i, r := range info.Readers {
		all = append(all, holding{Holder: r, kind: info.Kind, mode: natslock.Shared, title: fmt.Sprintf("reader %d", i+1)})
	}
	for _, h := range info.Permits {
		all = append(all, holding{Holder: h, kind: info.Kind, mode: natslock.Exclusive, title: fmt.Sprintf("slot %d", h.Slot)})
	}
	return all
}

// together are those that hold a lock with others: readers, or holders of permits.
func together(info natslock.Info) []natslock.Holder {
	if info.Kind == natslock.KindSemaphore {
		return info.Permits
	}
	return info.Readers
}

// isFree says whether nobody holds the lock or waits for it.
func isFree(info natslock.Info) bool {
	return info.Holder == nil && len(together(info)) == 0 && len(info.Queue) == 0
}

// permitsOf is how many permits of a semaphore are taken, and of how many. Clients that do
// not agree about that are all named.
func permitsOf(info natslock.Info) string {
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

// inOrder sorts readers by when they came. The bucket has them by when they have
// renewed.
func inOrder(readers []natslock.Holder) {
	slices.SortFunc(readers, func(a, b natslock.Holder) int { return cmp.Compare(a.Token, b.Token) })
}

// waitsForReaders says whether the writer is not in yet. It takes the lock's gate
// first, so that no more readers come, and gets in when those inside have left:
// until then both are seen.
func waitsForReaders(info natslock.Info) bool {
	return info.Kind == natslock.KindRW && info.Holder != nil && len(info.Readers) > 0
}

// role is what to call it.
func (h holding) role() string {
	switch {
	case h.kind != natslock.KindRW:
		return "holder"
	case h.mode == natslock.Shared:
		return "reader"
	}
	return "writer"
}

// freed is what its end makes of the lock: where one reader leaves others may
// remain.
func (h holding) freed() string {
	if h.mode == natslock.Shared {
		return "out"
	}
	return "free"
}

// name is that of the holder, with what is remarkable about it.
func (h holding) name() string {
	name := holderName(h.Holder)
	if h.waits {
		name += " (waits for readers)"
	}
	return name
}

// wasIdle says whether no goroutine was inside when the client last renewed the lock.
func (h holding) wasIdle() bool { return h.Idle && h.Broken == nil && !h.Overdue }

// modeName is the mode for a cell of a table, or "idle", "resting" or "handed".
func (h holding) modeName() string {
	switch {
	case h.wasIdle():
		return idleMode
	case h.rests():
		return restingMode
	case h.left():
		return handedMode
	case h.kind == natslock.KindSemaphore:
		return h.title
	}
	return h.mode.String()
}

const (
	idleMode    = "idle"
	restingMode = "resting"
	handedMode  = "handed"
)

// rests says whether nobody holds the lock any more, and its minimum hold goes on.
func (h holding) rests() bool { return h.Resting && !h.Overdue }

// left says whether the record keeps others out although nobody holds the lock by it.
func (h holding) left() bool { return (h.Resting || h.HandedOver) && !h.Overdue }

// allIdle says whether all holders of a lock were idle when their clients last renewed it.
func allIdle(held []holding) bool {
	return len(held) > 0 && !slices.ContainsFunc(held, func(h holding) bool { return !h.wasIdle() })
}

// bothKinds are the names of locks of several kinds: nearly always a mistake, because
// these do not exclude each other.
func bothKinds(infos []natslock.Info) map[string]bool {
	kind, both := make(map[string]natslock.Kind), make(map[string]bool)
	for _, info := range infos {
		if k, found := kind[info.Name]; found && k != info.Kind {
			both[info.Name] = true
		}
		kind[info.Name] = info.Kind
	}
	return both
}

// modeOf is how a lock is held: "shared", "exclusive", or "free" when clients only
// wait for it.
func modeOf(info natslock.Info) string {
	switch {
	case len(together(info)) > 0:
		return natslock.Shared.String()
	case info.Holder != nil:
		return natslock.Exclusive.String()
	}
	return "free"
}

// inWords is a small number in words.
func inWords(n int) string { return [...]string{"no", "one", "two", "three"}[n] }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// lockID names a lock of a kind.
type lockID struct {
	name string
	kind natslock.Kind
}

// idOf returns the id of a lock.
func idOf(info natslock.Info) lockID { return lockID{info.Name, info.Kind} }

// compare orders by name.
func (id lockID) compare(other lockID) int {
	return cmp.Or(strings.Compare(id.name, other.name), cmp.Compare(id.kind, other.kind))
}
