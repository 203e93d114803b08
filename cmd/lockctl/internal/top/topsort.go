package top

import (
	"cmp"
	"math"
	"strings"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

// rankFor is how long a lock keeps its place in the list. A list whose lines moved with every
// event would be unreadable.
const rankFor = time.Second

// rank determines a lock's place in the list.
type rank struct {
	id                   mirror.ID
	waiting, readers     int
	waits, held, expires time.Time // earliest of each, if any
	grants               float64   // per second, rounded as on the screen
	owner                string
}

func rankOf(info admin.Info, grants float64) *rank {
	return &rank{
		id: mirror.IDOf(info), waiting: info.Waiting(), readers: len(info.Readers), waits: show.WaitsSince(info), held: show.HeldSince(info),
		expires: endsFirst(info), grants: math.Round(10*grants) / 10, owner: ownerOf(info),
	}
}

// sortOrder is a way to sort the list.
type sortOrder struct {
	name string
	cmp  func(a, b *rank) int
}

// sortOrders put the most interesting locks first. Equal locks are sorted by contention, then
// by name.
var sortOrders = []sortOrder{
	{"queue", func(a, b *rank) int { return cmp.Compare(b.waiting, a.waiting) }},
	{"wait", func(a, b *rank) int { return soonest(a.waits, b.waits) }},
	{"held", func(a, b *rank) int { return soonest(a.held, b.held) }},
	{"expires", func(a, b *rank) int { return soonest(a.expires, b.expires) }},
	{"grants", func(a, b *rank) int { return cmp.Compare(b.grants, a.grants) }},
	{"readers", func(a, b *rank) int { return cmp.Compare(b.readers, a.readers) }},
	{"holder", func(a, b *rank) int { return strings.Compare(a.owner, b.owner) }},
	{"name", func(a, b *rank) int { return a.id.Compare(b.id) }},
}

// moreContended compares locks by contention: the longest queue first, then the longest wait, then
// the most grants.
func moreContended(a, b *rank) int {
	return cmp.Or(cmp.Compare(b.waiting, a.waiting), soonest(a.waits, b.waits), cmp.Compare(b.grants, a.grants), a.id.Compare(b.id))
}

// soonest compares times, with the zero time last.
func soonest(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}

// endsFirst returns when the first of the leases ends.
func endsFirst(info admin.Info) (t time.Time) {
	for _, h := range show.Holdings(info) {
		if t.IsZero() || !h.Expires.IsZero() && h.Expires.Before(t) {
			t = h.Expires
		}
	}
	return t
}

func ownerOf(info admin.Info) string {
	for _, h := range show.Holdings(info) {
		return h.Owner
	}
	return ""
}
