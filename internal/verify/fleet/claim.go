package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// answerWithin is how long a client waits for an answer.
const answerWithin = time.Second

// claim is what package claim keeps of one acquisition.
type claim struct {
	C     core.Claim
	Key   string
	Guard string
}

// bid is what package claim does to get one record written.
type bid struct {
	B   core.Bid
	Cur *claim

	Waits   bool // for a place
	Joins   bool // for a reader's record
	Slot    int
	Blind   bool
	Evicted int
	TTL     time.Duration // of a lease
	Token   uint64        // of a lock that is adopted
	Lingers bool

	Sends  bool // an attempt is to be sent, at At; else its answer is awaited until then
	Expect uint64
	At     clock.Instant
	Newest int
}

// result is what an offer comes to.
type result struct {
	Outcome  core.Outcome
	Entry    record.Entry
	N        int
	Revision uint64
}

// offer begins to bid for the key at a revision.
func (b *bid) offer(w *World, expect uint64) {
	b.B.Begin(w.Now)
	b.Expect, b.Sends, b.At = expect, true, w.Now
}

// step goes on with an offer. does says whether it has done anything, and r what the offer has come to.
func (b *bid) step(w *World, c *client) (r result, does bool) {
	if b.Sends {
		if w.Now < b.At {
			return r, false
		}
		if b.B.Passed(b.Expect, w.Now) {
			b.B.Begun = 0
			return result{Outcome: core.Free}, true
		}
		b.send(w, c)
		return r, true
	}
	cl := b.Cur
	reply, more := cl.C.Next()
	switch {
	case !more && w.Now < b.At:
		return r, false
	case !more:
		r.Outcome = core.Again
	default:
		v := cl.C.Judge(reply, b.Newest, w.Now)
		switch {
		case v.Outcome == core.Refused && b.Blind:
			r.Entry.Revision = v.Revision
		case v.Outcome == core.Refused:
			r.Entry = c.read(w, pick(cl.Guard != "", cl.Guard, cl.Key), v.Revision)
			v = cl.C.Found(r.Entry, w.Now)
		}
		if v.Delete != 0 {
			w.discard(c, cl.Key, cl.C.ID, v.Delete)
		}
		if v.Outcome == core.Undecided {
			return result{}, true
		}
		r.Outcome, r.N, r.Revision = v.Outcome, v.N, v.Revision
	}
	if r.Outcome == core.Free {
		b.Expect = 0
	}
	next := b.B.Came(r.Outcome, core.Silence, r.Entry.Revision, w.Now)
	if next.Closes {
		b.close(w)
	}
	if next.Decided != core.Undecided {
		r.Outcome = next.Decided
		return r, true
	}
	b.Sends, b.At = true, w.Now
	switch next.Backoff {
	case core.Short:
		b.At = w.Now.Add(time.Millisecond << min(next.N, 6))
	case core.Outage:
		b.At = w.Now.Add(50 * time.Millisecond << min(next.N, 6))
	}
	if b.B.Bypasses(b.Expect) {
		b.At = min(b.At, max(b.B.Until, w.Now.Add(time.Millisecond)))
	}
	return result{}, true
}

// send sends an attempt.
func (b *bid) send(w *World, c *client) {
	if b.Cur == nil {
		id := w.free(c, pick(b.Waits, "p", ""))
		b.Cur = &claim{Key: w.key(b.Slot)}
		switch {
		case b.Waits:
			b.Cur.Key = placePrefix + id
		case b.Joins:
			b.Cur.Key, b.Cur.Guard = readPrefix+id, gateKey
		}
		b.Cur.C.Begin(id)
		c.Claims = append(c.Claims, b.Cur)
	}
	cl, terms := b.Cur, w.terms(b.Waits)
	if !b.Waits {
		terms.TTL = b.TTL
	}
	b.Newest = cl.C.Send(core.Attempt{Expect: b.Expect, Terms: terms, Sent: w.Now, Floor: c.Highest})
	b.Sends, b.At = false, w.Now.Add(answerWithin)
	s := stored{Key: cl.Key, ID: cl.C.ID, Client: c.ID, Status: record.StatusHeld, Attempt: b.Newest, TTL: terms.TTL, Evictions: uint16(b.Evicted), Permits: uint16(c.Permits)}
	if b.Waits {
		s.Status = record.StatusWaiting
	}
	if b.Joins {
		s.Mode = record.Shared
	}
	if s.Token = b.Token; b.Lingers && w.Scope.recalls() {
		s.Lingers, s.InUse = true, 1
	}
	w.send(message{To: toServer, Client: c.Index, What: s, Expect: b.Expect, Guard: cl.Guard, From: fromClaim, N: uint64(b.Newest)})
}

func (w *World) terms(waits bool) clock.Terms {
	t := clock.Terms{TTL: w.Scope.TTL, Margin: w.Scope.Margin}
	if waits {
		t.TTL = w.Scope.Place
	}
	return t
}

// free is the least number of an id of the client that nothing refers to: then it is as good as new.
func (w *World) free(c *client, kind string) string {
	used := func(id string) bool {
		has := func(r stored) bool { return r.ID == id || strings.HasSuffix(r.Key, "."+id) }
		if slices.ContainsFunc(w.Server.Records, has) || w.Old != nil && slices.ContainsFunc(w.Old.Records, has) ||
			slices.ContainsFunc(w.Net, func(m message) bool { return has(m.What) }) ||
			slices.ContainsFunc(c.Claims, func(cl *claim) bool { return cl.C.ID == id }) ||
			slices.ContainsFunc(c.Kept, func(k *kept) bool { return k.Body.ID == id }) {
			return true
		}
		for _, x := range w.Clients {
			for _, r := range x.Runs {
				if r.Successor != nil && r.Successor.Pred.ID == id || slices.ContainsFunc(r.Mail, has) || r.Passed.ID == id {
					return true
				}
			}
		}
		return false
	}
	for n := 1; ; n++ {
		if id := fmt.Sprint(c.ID, kind, n); !used(id) {
			return id
		}
	}
}

// answered takes the answer to an attempt.
func (cl *claim) answered(w *World, m message) {
	if cl.C.IsSettled(int(m.N)) { // it is repeated
		return
	}
	if cl.C.Answered(core.Reply{N: int(m.N), Answer: m.Answer, At: w.Now}, !w.Scope.Several) {
		w.discard(w.Clients[m.Client], cl.Key, cl.C.ID, m.Answer.Revision)
	}
}

// discard sends a deletion of a record that nobody believes in.
func (w *World) discard(c *client, key, id string, revision uint64) {
	w.send(message{To: toServer, Client: c.Index, Expect: revision, Late: !w.Scope.Prompt,
		What: stored{Key: key, ID: id, Status: record.StatusGone, Deleted: true, TTL: record.TombstoneLife}})
	if w.Scope.Prompt {
		w.deliver(len(w.Net)-1, 0, -1)
	}
}

// close gives up a claim that is not granted.
func (b *bid) close(w *World) { b.end(w, 0) }

// end ends the claim; n is the attempt that was granted, or 0.
func (b *bid) end(w *World, n int) {
	cl := b.Cur
	if cl == nil {
		return
	}
	b.Cur = nil
	c := w.owner(cl)
	unwanted, open, _ := cl.C.Close(n)
	for _, revision := range unwanted {
		w.discard(c, cl.Key, cl.C.ID, revision)
	}
	if n == 0 {
		for _, t := range core.Takings(cl.C.ID, open, cl.Guard != "", b.Token != 0) {
			if !t.OnlyOwn {
				w.discard(c, cl.Key, cl.C.ID, t.Revision)
			}
		}
	}
}

func (w *World) owner(cl *claim) *client {
	i := slices.IndexFunc(w.Clients, func(c *client) bool { return strings.HasPrefix(cl.C.ID, c.ID) })
	return w.Clients[i]
}

// grant ends the claim that r has granted, and returns the record that is kept alive from now on.
func (b *bid) grant(w *World, r result) *kept {
	cl := b.Cur
	a := cl.C.Attempt(r.N)
	b.end(w, r.N)
	c := w.owner(cl)
	k := &kept{Key: cl.Key, Token: r.Revision, Left: w.Scope.Renewals}
	body := record.Body{ID: cl.C.ID, Status: pick(b.Waits, record.StatusWaiting, record.StatusHeld), Evictions: uint16(b.Evicted)}
	if b.Joins {
		body.Mode = uint8(record.Shared)
	}
	body.Token = b.Token
	k.Begin(body, cl.Key, r.Revision, a.Terms, a.Sent, 1.0/3)
	k.U.Begin(w.Now, -1)
	c.Kept = append(c.Kept, k)
	switch {
	case w.Now >= a.Terms.End(a.Sent):
		w.fail("a grant comes after the end of its validity")
	case slices.Contains(w.Broken, r.Revision):
		w.fail("a grant is of a record that an operator has broken")
	case b.Waits:
	case r.Revision <= w.Granted && !b.Joins && w.Scope.Kind != record.Semaphore:
		w.fail("tokens go backwards")
	case !b.Joins:
		w.Granted = max(w.Granted, r.Revision)
	}
	return k
}
