package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// kept is what package session keeps of a record that is kept alive: a lease, or a place.
type kept struct {
	core.Kept
	U core.Use // of a lease

	Key   string
	Token uint64 // the first revision

	Seen      bool   // it was seen ended
	Left      int8   // renewals; -1: for ever
	Confirmed uint64 // the last renewal that is
	ReadAt    uint64 // what a read that is to decide has to contain

	Removal *removal // its release is under way
}

// removal is the release of a record.
type removal struct {
	R      core.Removal
	Status record.Status
	Begun  clock.Instant
	N      uint64 // of the write
	Sends  bool   // a write is to be sent, at At; else its answer is awaited until then
	At     clock.Instant
	Wish   core.Wish // of the last holder
	Leaves bool      // the write is no tombstone
}

// waits says whether it is a place.
func (k *kept) waits() bool { return !k.IsLock() }

func (k *kept) holds(now clock.Instant) bool { return k.State == core.StateHeld && !k.Valid.Over(now) }

// judgeEnd ends a record whose validity is over.
func (k *kept) judgeEnd(w *World) { k.follow(w, k.Check(w.Now)) }

// follow does what an event asks for.
func (k *kept) follow(w *World, u core.Consequence) {
	if u.Confirmed > 0 {
		k.Confirmed = u.Confirmed
	}
	if u.Soon {
		k.RenewAfter(w.Now.Add(50 * time.Millisecond))
	}
	if u.End != core.NoEnd {
		w.Failed = true
	}
	if u.Discards(k.rest(w)) {
		w.discard(w.clientOf(k.Body.ID), k.Key, k.Body.ID, u.Discard)
	}
	if u.Read > 0 {
		k.ReadAt = u.Read
	}
}

// due is when the record needs something.
func (k *kept) due() clock.Instant {
	at := never
	if k.State == core.StateHeld {
		if at = k.Valid.End; k.Left != 0 {
			at = k.Due()
		}
	}
	if k.Removal != nil {
		at = min(at, k.Removal.At)
	}
	return at
}

// step does what is due, or says that nothing is.
func (k *kept) step(w *World, c *client) bool {
	if k.State == core.StateHeld && k.Resolving && !k.Valid.Over(w.Now) {
		k.follow(w, k.Judge(c.read(w, k.Key, k.ReadAt), k.ReadAt, w.Now))
		return true
	}
	if k.State == core.StateHeld && k.due() <= w.Now {
		u, renew := k.Tick(w.Now)
		if renew && k.Left != 0 {
			k.renew(w, c)
		}
		k.follow(w, u)
		return true
	}
	return k.Removal != nil && k.remove(w, c)
}

// renew sends a renewal.
func (k *kept) renew(w *World, c *client) {
	n, _ := k.Send(w.Now, 0)
	if k.waits() && w.Scope.Prompt { // what goes wrong with a place is left to crashes, pauses and the simulator
		if i, there := w.Server.find(k.Key); there && w.Server.Records[i].Revision == k.Last {
			w.Server.Records[i].At = w.Now
			k.follow(w, k.Answered(n, core.Answer{Revision: k.Last}, w.Now))
			return
		}
	}
	if k.Left > 0 {
		k.Left--
	}
	s := stored{
		Key: k.Key, ID: k.Body.ID, Client: c.ID, Status: k.Body.Status, Mode: record.Mode(k.Body.Mode), Renewal: n, Token: k.Token,
		Evictions: k.Body.Evictions, Permits: uint16(c.Permits), TTL: k.Want.TTL,
	}
	if w.Scope.travels() && !k.waits() {
		s.Token = k.Body.Token
	}
	if w.Scope.recalls() {
		s.Lingers, s.InUse = k.Body.Lingers, k.Body.InUse
	}
	w.send(message{To: toServer, Client: c.Index, Expect: k.Last, From: fromRenewal, N: n, What: s})
}

// renewed takes the answer to a renewal.
func (k *kept) renewed(w *World, n uint64, a core.Answer) { k.follow(w, k.Answered(n, a, w.Now)) }

func (w *World) clientOf(id string) *client {
	return w.Clients[slices.IndexFunc(w.Clients, func(c *client) bool { return strings.HasPrefix(id, c.ID) })]
}

// leave ends the record, and has it removed.
func (k *kept) leave(w *World, status record.Status) {
	if k.State == core.StateReleased {
		return
	}
	if k.holds(w.Now) && slices.ContainsFunc(w.clientOf(k.Body.ID).Calls, func(g *call) bool { return g.Entered && g.Lease == k }) {
		w.fail("a lease is released while a goroutine is inside")
	}
	k.ends(w, core.EndReleased, status)
}

func (k *kept) ends(w *World, end core.End, status record.Status) {
	k.Release(end, w.Now)
	k.Removal = &removal{R: core.Removal{ID: k.Body.ID, Revision: k.Last, HandsOff: end == core.EndHandedOff}, Status: status, Begun: w.Now, Sends: true, At: w.Now}
}

// remove goes on with the release.
func (k *kept) remove(w *World, c *client) bool {
	m := k.Removal
	switch {
	case w.Now < m.At:
		return false
	case w.Now.Sub(m.Begun) >= k.Terms.TTL:
		k.Removal = nil
	case m.Sends:
		m.N++
		m.Sends, m.At = false, w.Now.Add(answerWithin)
		s := stored{Key: k.Key, ID: k.Body.ID, Client: c.ID, Status: m.Status, Deleted: true, TTL: record.TombstoneLife}
		body, deletes := k.Closing(m.Wish.Cooldown(w.Now, 0), m.R.Broken != nil)
		if m.Leaves = !deletes; m.Leaves {
			s.Status, s.Renewal, s.Deleted, s.TTL = body.Status, 1, false, time.Duration(body.TTL)*time.Second
			s.Token = pick(m.R.HandsOff, body.Token, 0) // nobody adopts others
		}
		w.send(message{To: toServer, Client: c.Index, Expect: m.R.Revision, From: fromRemoval, N: m.N, What: s})
		if k.waits() && w.Scope.Prompt {
			w.deliver(len(w.Net)-1, 0, -1)
		}
	default:
		k.wrote(w, m.N, core.Answer{Refusal: core.Unsure})
	}
	return true
}

// wrote takes the answer to a write of the release.
func (k *kept) wrote(w *World, n uint64, a core.Answer) {
	m, c := k.Removal, w.clientOf(k.Body.ID)
	if m == nil || m.N != n || m.Sends {
		return
	}
	next := m.R.Wrote(a, !w.Scope.Several)
	if next == core.ReadRecord {
		e := c.read(w, k.Key, max(a.Last, m.R.Revision))
		next = m.R.Found(e, false, a.Last, !w.Scope.Several, w.Now.Sub(m.Begun))
	}
	switch next {
	case core.Removed, core.LostBefore:
		if k.Removal = nil; a.Refusal == core.Acknowledged && k.Key == gateKey && !m.Leaves {
			c.Tombstone, c.LeftAt = a.Revision, w.Now
		}
	case core.WriteAgain:
		m.Sends, m.At = true, w.Now
	default:
		m.Sends, m.At = true, w.Now.Add(50*time.Millisecond)
	}
}
