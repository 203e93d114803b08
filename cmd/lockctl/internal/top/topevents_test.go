package top

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// claim is a holder or a waiter of a process.
func claim(id string, pid int, revision uint64) *admin.Holder {
	return &admin.Holder{Holder: natslock.Holder{ID: id, PID: pid, Token: revision, Owner: "o", Host: "h"}, Revision: revision}
}

// after applies events in their order.
func after(info admin.Info, events ...admin.Event) admin.Info {
	places := make(places)
	for _, ev := range events {
		ev.ID = ev.Holder.ID
		ev.Token = ev.Holder.Token
		info = places.applied(info, ev)
	}
	return info
}

func idsOf(holders []admin.Holder) (ids []string) {
	for _, h := range holders {
		ids = append(ids, h.ID)
	}
	return ids
}

func ticketsOf(info admin.Info) (tickets []uint64) {
	for _, w := range info.Queue {
		tickets = append(tickets, w.Ticket)
	}
	return tickets
}

const (
	evQueued   = admin.EventQueued
	evGranted  = admin.EventGranted
	evReleased = admin.EventReleased
)

func TestAppliedToMutex(t *testing.T) {
	t.Parallel()
	a, b, c := claim("a", 1, 1), claim("b", 2, 2), claim("c", 3, 3)
	info := after(admin.Info{}, admin.Event{Type: evGranted, Holder: a}, admin.Event{Type: evQueued, Holder: c}, admin.Event{Type: evQueued, Holder: b}, admin.Event{Type: evQueued, Holder: b})
	require.Equal(t, "a", info.Holder.ID)
	require.Equal(t, []uint64{2, 3}, ticketsOf(info), "in their order, each once")

	handed := after(info, admin.Event{Type: evReleased, Holder: a}, admin.Event{Type: evGranted, Holder: claim("b2", 2, 4)})
	require.Equal(t, "b2", handed.Holder.ID)
	require.Equal(t, []uint64{3}, ticketsOf(handed), "the granted claim has another id than its place")
	require.Equal(t, []uint64{2, 3}, ticketsOf(info), "a shot may have it")
	require.Equal(t, handed, after(handed, admin.Event{Type: evGranted, Holder: a}, admin.Event{Type: evReleased, Holder: a}), "what a read has seen")

	left := after(handed, admin.Event{Type: admin.EventGaveUp, Holder: c}, admin.Event{Type: evReleased, Holder: claim("b2", 2, 4)})
	require.True(t, show.IsFree(left))
}

// Where only the server knows what an event leaves behind, the holder stays until the read.
func TestAppliedInDoubt(t *testing.T) {
	t.Parallel()
	held := after(admin.Info{}, admin.Event{Type: evGranted, Holder: claim("a", 1, 1)})
	for _, ev := range []admin.Event{
		{Type: admin.EventExpired, Holder: claim("a", 1, 1)},
		{Type: admin.EventBroken, Holder: claim("a", 1, 2)}, // without an end: deleted
	} {
		require.Equal(t, held, after(held, ev), ev.Type)
	}
	require.True(t, show.IsFree(places{}.applied(held, admin.Event{Type: evReleased, ID: "a"})), "a release without a record")
}

func TestAppliedToReadersAndPermits(t *testing.T) {
	t.Parallel()
	shared := func(typ admin.EventType, h *admin.Holder) admin.Event {
		return admin.Event{Type: typ, Mode: admin.Shared, Holder: h}
	}
	rw := after(admin.Info{Kind: admin.KindRW}, shared(evGranted, claim("b", 2, 2)), shared(evGranted, claim("a", 1, 1)))
	require.Equal(t, []string{"a", "b"}, idsOf(rw.Readers))
	rw = after(rw, admin.Event{Type: evGranted, Holder: claim("w", 3, 3)}, shared(evReleased, claim("a", 1, 1)))
	require.Equal(t, []string{"b"}, idsOf(rw.Readers))
	require.Equal(t, "w", rw.Holder.ID)

	slot := func(id string, number int, revision uint64) admin.Event {
		h := claim(id, 1, revision)
		h.Slot = number
		return admin.Event{Type: evGranted, Holder: h}
	}
	sem := after(admin.Info{Kind: admin.KindSemaphore}, slot("b", 1, 1), slot("a", 0, 2), slot("c", 1, 3), slot("old", 0, 1))
	require.Equal(t, []string{"a", "c"}, idsOf(sem.Permits), "one for each slot, the newest")
}

// A client deletes its place in the queue after the grant. A read between the two has it,
// and then the holder is no waiter.
func TestPictureOfTakenPlaces(t *testing.T) {
	t.Parallel()
	id := show.LockID{Name: "l", Kind: admin.KindMutex}
	place := func(id string, pid int, ticket uint64) admin.Waiter {
		return admin.Waiter{ID: id, PID: pid, Ticket: ticket, Owner: "o", Host: "h"}
	}
	event := func(p *picture, typ admin.EventType, h *admin.Holder) {
		p.event(admin.Event{Type: typ, Name: id.Name, Kind: id.Kind, ID: h.ID, Token: h.Token, Holder: h})
	}
	finds := func(p *picture, queue ...admin.Waiter) {
		p.foundLocked(map[show.LockID]admin.Info{id: {Name: id.Name, Kind: id.Kind, Holder: claim("b3", 2, 5), Queue: queue}}, false)
		p.reading = false
	}
	// Two runs of process 2 wait, and then one of process 3.
	full := func() *picture {
		p := newPicture()
		event(p, evGranted, claim("a", 1, 1))
		for _, h := range []*admin.Holder{claim("b", 2, 2), claim("b2", 2, 3), claim("c", 3, 4)} {
			event(p, evQueued, h)
		}
		require.Equal(t, []uint64{2, 3, 4}, ticketsOf(p.locks[id]))
		return p
	}
	b, b2, c := place("b", 2, 2), place("b2", 2, 3), place("c", 3, 4)

	synctest.Test(t, func(t *testing.T) {
		p := full()
		event(p, evGranted, claim("b3", 2, 5))
		p.begin()
		finds(p, b, b2, c)
		require.Equal(t, []uint64{3, 4}, ticketsOf(p.locks[id]), "granted before the read")
		event(p, evReleased, claim("b3", 2, 5))
		event(p, evQueued, claim("b4", 2, 6))
		require.Equal(t, []uint64{3, 4, 6}, ticketsOf(p.locks[id]), "the process waits again")
	})
	synctest.Test(t, func(t *testing.T) {
		p := full()
		p.begin()
		event(p, evGranted, claim("b3", 2, 5))
		finds(p, b2, c)
		require.Equal(t, []uint64{3, 4}, ticketsOf(p.locks[id]), "granted during the read, which has seen that")
	})
	synctest.Test(t, func(t *testing.T) {
		p := full()
		event(p, evGranted, claim("b3", 2, 5)) // of the second run's place
		for range 2 {
			time.Sleep(placeStays/2 + 1)
			some, _ := p.begin()
			require.Contains(t, some, id, "it is read again")
			finds(p, b, c)
		}
		require.Equal(t, []uint64{2, 4}, ticketsOf(p.locks[id]), "a place that stays belongs to a waiter")
	})
}
