package main

import (
	"cmp"
	"strings"
	"time"

	"github.com/natslock/locks/natslock"
)

// sortOrders are the columns to sort by, each with what is most interesting
// first.
var sortOrders = []struct {
	name string
	cmp  func(a, b natslock.Info) int
}{
	{"name", byName},
	{"held", func(a, b natslock.Info) int { return soonest(heldSince(a), heldSince(b)) }},
	{"expires", func(a, b natslock.Info) int { return soonest(endsFirst(a), endsFirst(b)) }},
	{"queue", func(a, b natslock.Info) int { return cmp.Compare(b.Waiting(), a.Waiting()) }},
	{"wait", func(a, b natslock.Info) int { return soonest(waitsSince(a), waitsSince(b)) }},
	{"readers", func(a, b natslock.Info) int { return cmp.Compare(len(b.Readers), len(a.Readers)) }},
	{"holder", func(a, b natslock.Info) int { return strings.Compare(ownerOf(a), ownerOf(b)) }},
}

// soonest compares times; one that is not there comes last.
func soonest(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}

// endsFirst is when the first of the leases ends.
func endsFirst(info natslock.Info) (t time.Time) {
	for _, h := range holdings(info) {
		if t.IsZero() || !h.Expires.IsZero() && h.Expires.Before(t) {
			t = h.Expires
		}
	}
	return t
}

func ownerOf(info natslock.Info) string {
	for _, h := range holdings(info) {
		return h.Owner
	}
	return ""
}
