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

// rankFor is the time for which a lock keeps its place among the others. Its line could not be read
// if it moved with each event.
const rankFor = time.Second

// rank decides the order of a lock.
type rank struct {
	id                   mirror.ID
	waiting, readers     int
	waits, held, expires time.Time // the first of each; zero: none
	grants               float64   // each second, to the digit that is shown
	owner                string
}

func rankOf(info admin.Info, grants float64) *rank {
	return &rank{
		id: mirror.IDOf(info), waiting: info.Waiting(), readers: len(info.Readers), waits: show.WaitsSince(info), held: show.HeldSince(info),
		expires: endsFirst(info), grants: math.Round(10*grants) / 10, owner: ownerOf(info),
	}
}

// sortOrder is an order of the list.
type sortOrder struct {
	name string
	cmp  func(a, b *rank) int
}

// sortOrders has each with what is most interesting first. Equal locks are ordered by how
// contended they are, then by name.
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

// moreContended orders locks with queues of one length: the longest wait first, then the
// most grants.
func moreContended(a, b *rank) int {
	return cmp.Or(cmp.Compare(b.waiting, a.waiting), soonest(a.waits, b.waits), cmp.Compare(b.grants, a.grants), a.id.Compare(b.id))
}

// soonest compares times; one that is not there comes last.
func soonest(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return map[bool]int{true: 1, false: -1}[a.IsZero()]
	}
	return a.Compare(b)
}

// endsFirst returns the end of the lease that ends first.
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
