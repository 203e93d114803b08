package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

const (
	isHeld byte = iota
	isLost
	isBroken
	isReleased
)

// kept is what package session keeps of a record that is kept alive: a lease, or a place.
type kept struct {
	ID, Key string
	Waits   bool // a place
	Mode    record.Mode
	Evicted int
	Lingers bool
	Token   uint64
	Granted clock.Instant
	Grants  int

	State     byte
	Seen      bool // it was seen ended
	Terms     clock.Terms
	Valid     core.Validity
	Last      uint64
	LastSent  clock.Instant
	Sent      []renewal
	N         uint64
	Next      clock.Instant
	Confirmed uint64 // the last renewal that is
	Left      int8   // renewals; -1: for ever
	Resolving bool
	ResolveAt uint64

	Removal *removal // its release is under way
}

type renewal struct {
	N  uint64
	At clock.Instant
}

// removal is the release of a record.
type removal struct {
	R      core.Removal
	Status record.Status
	Begun  clock.Instant
	N      uint64 // of the write
	Sends  bool   // a write is to be sent, at At; else its answer is awaited until then
	At     clock.Instant
}

func (k *kept) holds(now clock.Instant) bool { return k.State == isHeld && !k.Valid.Over(now) }

func (k *kept) status() record.Status {
	if k.Waits {
		return record.StatusWaiting
	}
	return record.StatusHeld
}

// judgeEnd ends a record whose validity is over.
func (k *kept) judgeEnd(w *World) {
	if k.State == isHeld && k.Valid.Over(w.Now) {
		k.lose(w, isLost)
	}
}

func (k *kept) lose(w *World, state byte) {
	if k.State == isHeld {
		k.State, k.Valid.End = state, min(k.Valid.End, w.Now)
		k.Resolving, k.Sent = false, nil
		w.Failed = true
	}
}

// due is when the record needs something.
func (k *kept) due() clock.Instant {
	at := never
	if k.State == isHeld {
		at = k.Valid.End
		if k.Left != 0 && !k.Resolving {
			at = min(at, k.Next)
		}
	}
	if k.Removal != nil {
		at = min(at, k.Removal.At)
	}
	return at
}

// step does what is due, or says that nothing is.
func (k *kept) step(w *World, c *client) bool {
	switch {
	case k.State == isHeld && k.Valid.Over(w.Now):
		k.lose(w, isLost)
	case k.State == isHeld && k.Resolving:
		k.judge(w, c.read(w, k.Key, k.ResolveAt))
	case k.State == isHeld && k.Left != 0 && w.Now >= k.Next:
		k.renew(w, c)
	case k.Removal != nil:
		return k.remove(w, c)
	default:
		return false
	}
	return true
}

// renew sends a renewal.
func (k *kept) renew(w *World, c *client) {
	if k.Waits && w.Scope.Prompt { // what goes wrong with a place is left to crashes, pauses and the simulator
		if i, there := w.Server.find(k.Key); there && w.Server.Records[i].Revision == k.Last {
			w.Server.Records[i].At, k.Next = w.Now, w.renewal(w.Now, k.Terms)
			k.Valid.Renewed(w.Now, k.Terms)
			return
		}
	}
	if k.Left > 0 {
		k.Left--
	}
	k.N++
	k.Sent = append(k.Sent, renewal{k.N, w.Now})
	k.Next = w.Now.Add(max(k.Terms.TTL/15, 50*time.Millisecond))
	k.Valid.Renewing(w.Now, k.Terms)
	w.send(message{To: toServer, Client: c.Index, Expect: k.Last, From: fromRenewal, N: k.N, What: stored{
		Key: k.Key, ID: k.ID, Client: c.ID, Status: k.status(), Mode: k.Mode, Renewal: k.N, Token: k.Token, Evictions: uint16(k.Evicted), Permits: uint16(c.Permits), TTL: k.Terms.TTL,
	}})
}

// renewed takes the answer to a renewal.
func (k *kept) renewed(w *World, n uint64, a core.Answer) {
	switch {
	case a.Refusal == core.Acknowledged:
		k.confirmed(w, n, a.Revision)
	case k.State != isHeld || a.Refusal != core.Conflict:
	case (a.Last == 0 || a.Last > k.Last) && !k.Resolving:
		k.Resolving, k.ResolveAt = true, max(a.Last, k.Last)
	case a.Last == k.Last && n == k.N:
		k.Next = min(k.Next, w.Now)
	}
}

// confirmed takes an acknowledged renewal.
func (k *kept) confirmed(w *World, n, revision uint64) {
	switch {
	case k.State == isReleased, k.State == isBroken:
		return
	case k.State == isHeld && k.Valid.InTime(w.Now):
		i := slices.IndexFunc(k.Sent, func(r renewal) bool { return r.N == n })
		if i < 0 {
			return
		}
		at := k.Sent[i].At
		k.Sent = slices.Delete(k.Sent, 0, i+1)
		if revision > k.Last {
			k.Last, k.LastSent = revision, at
		}
		k.Confirmed = n
		k.Valid.Renewed(at, k.Terms)
		k.Next = w.renewal(at, k.Terms)
		return
	}
	k.lose(w, isLost)
	w.discard(w.clientOf(k.ID), k.Key, k.ID, revision)
}

func (w *World) clientOf(id string) *client {
	return w.Clients[slices.IndexFunc(w.Clients, func(c *client) bool { return strings.HasPrefix(id, c.ID) })]
}

// judge decides by the record under the key.
func (k *kept) judge(w *World, e record.Entry) {
	k.Resolving = false
	found, _ := core.Find(e, k.ID, k.status(), k.Last, k.N)
	switch found {
	case core.AsKnown:
	case core.Confirms:
		k.confirmed(w, e.Renewal, e.Revision)
	case core.FoundBroken:
		k.Last = e.Revision
		k.lose(w, isBroken)
	case core.FoundEarlier:
		k.lose(w, isLost)
		w.discard(w.clientOf(k.ID), k.Key, k.ID, e.Revision)
	default:
		k.lose(w, isLost)
	}
}

// leave ends the record, and has it removed.
func (k *kept) leave(w *World, status record.Status) {
	if k.State == isReleased {
		return
	}
	k.State, k.Valid.End, k.Resolving, k.Sent = isReleased, min(k.Valid.End, w.Now), false, nil
	k.Removal = &removal{R: core.Removal{ID: k.ID, Revision: k.Last}, Status: status, Begun: w.Now, Sends: true, At: w.Now}
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
		w.send(message{To: toServer, Client: c.Index, Expect: m.R.Revision, From: fromRemoval, N: m.N, What: stored{
			Key: k.Key, ID: k.ID, Client: c.ID, Status: m.Status, Deleted: true, TTL: record.TombstoneLife,
		}})
		if k.Waits && w.Scope.Prompt {
			w.deliver(len(w.Net)-1, 0, -1)
		}
	default:
		k.wrote(w, m.N, core.Answer{Refusal: core.Unsure})
	}
	return true
}

// wrote takes the answer to a write of the release.
func (k *kept) wrote(w *World, n uint64, a core.Answer) {
	m, c := k.Removal, w.clientOf(k.ID)
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
		if k.Removal = nil; a.Refusal == core.Acknowledged && k.Key == gateKey {
			c.Tombstone, c.LeftAt = a.Revision, w.Now
		}
	case core.WriteAgain:
		m.Sends, m.At = true, w.Now
	default:
		m.Sends, m.At = true, w.Now.Add(50*time.Millisecond)
	}
}
