package keeper

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Granted describes a granted claim, which becomes a lease or a place.
type Granted struct {
	Kind     record.Kind
	Once     bool   // the key is never claimed again
	Name     string // the lock's name
	Key      string
	Revision uint64      // the record's
	Body     record.Body // with the claim's id; repeated by renewals
	Terms    clock.Terms
	Sent     clock.Instant // when the granted attempt was sent
}

// Record is the record of a lease or a place that this client keeps alive. [core.Kept] defines its states and judges
// its events; Record carries out the judgments.
type Record struct {
	keeper *Keeper
	owner  Owner

	Name string
	Key  string

	// The following fields are guarded by the keeper's mutex.
	core.Kept
	failure *error        // why the last renewal was not confirmed; nil if unknown
	flights []flight      // unanswered renewals
	over    chan struct{} // closed once the holder has ended the record; nil before [Record.BeginEnd]
	slot    slot
}

// flight is an unanswered renewal. forget gives up the wait for its answer.
type flight struct {
	n      uint64
	forget func()
}

// Owner is the lease or place whose record is kept alive. All methods except Over are called with the mutex held.
type Owner interface {
	// NextDuty returns the time of the owner's next duty, or due if that is earlier.
	NextDuty(due clock.Instant) clock.Instant
	// Perform carries out the duties that are due.
	Perform(now clock.Instant)
	// Confirmed handles the confirmation of renewal n.
	Confirmed(n uint64)
	// Refused handles the refusal of a renewal by a server that may accept a later one.
	Refused(err error)
	// NoRoom handles the refusal of renewal n for lack of room. It reports whether the next renewal is smaller and so
	// may fit.
	NoRoom(n uint64, err error) (smaller bool)
	// AtRisk handles a failure that may prevent any further renewal from being confirmed.
	AtRisk(err error)
	// Cooldown returns how long the record has to keep others out if its holder leaves now.
	Cooldown(now clock.Instant) time.Duration
	// NoteEnd records the end. why describes the evidence. NoteEnd is called once.
	NoteEnd(end core.End, why string)
	// Over handles the consequences of the end. It is called once, after NoteEnd, without the mutex.
	Over()
}

// Make initializes k as the record of a granted claim that belongs to owner. The record is not renewed until
// [Keeper.Take] is called.
func (r *Keeper) Make(k *Record, g Granted, owner Owner) {
	k.keeper, k.owner, k.Kind, k.Once, k.Name, k.Key = r, owner, g.Kind, g.Once, g.Name, g.Key
	k.Begin(g.Body, g.Key, g.Revision, g.Terms, g.Sent)
	k.slot.index, k.slot.ready = -1, core.NotReady
}

// Owner returns the lease or place that the record belongs to.
func (k *Record) Owner() Owner { return k.owner }

// EndIfOver ends the record if its validity is over at time now. The mutex must be held.
func (k *Record) EndIfOver(now clock.Instant) {
	if u := k.Check(now); u.End != core.NoEnd {
		k.Apply(u, "")
	}
}

// Status returns the state and the remaining validity. It does no I/O, and because it reads the clock itself, the
// result is right even if the renewer has not run yet.
func (k *Record) Status() (core.State, time.Duration) {
	r := k.keeper
	r.mu.Lock()
	defer r.Unlock()
	now := r.b.Instant()
	k.EndIfOver(now)
	return k.State, k.Valid.End.Sub(now)
}

// Confirmation returns the sending time and the revision of the last acknowledged write.
func (k *Record) Confirmation() (sent clock.Instant, revision uint64) {
	k.keeper.mu.Lock()
	defer k.keeper.mu.Unlock()
	return k.LastSent, k.Last
}

// SetSize sets the number of goroutines behind the record. The next renewal stores it.
func (k *Record) SetSize(n int) {
	k.keeper.mu.Lock()
	defer k.keeper.mu.Unlock()
	k.Body.Size = int32(n)
}

// Moved reschedules the record with the renewer after its times have changed. The mutex must be held.
func (k *Record) Moved() {
	if k.State == core.StateHeld {
		k.keeper.schedule(k, k.owner.NextDuty(k.Due()))
	}
}

// Fail ends a held record that its holder did not ask to end. why describes the evidence. The mutex must be held.
func (k *Record) Fail(end core.End, why string) {
	k.Apply(k.EndUnasked(end, core.NoReason, k.keeper.b.Instant()), why)
}

// EndBy ends the record on behalf of its holder, unless it has already ended. The mutex must be held.
func (k *Record) EndBy(end core.End) {
	if u := k.EndByHolder(end, k.keeper.b.Instant()); u.End != core.NoEnd {
		k.ended(u.End, "")
	}
}

// tick does whatever is due: ending the record, the owner's duties, a renewal.
func (k *Record) tick(now clock.Instant) {
	r := k.keeper
	r.mu.Lock()
	defer r.Unlock()
	if k.State != core.StateHeld {
		return
	}
	u, renew := k.Tick(now)
	if k.State == core.StateHeld {
		k.owner.Perform(now)
	}
	if renew {
		r.wantRenewal(k)
	}
	k.Apply(u, "")
}

// Apply carries out a judgment. why describes the evidence for an end, if the caller knows it. Whatever must not
// happen under the mutex is deferred to [Keeper.Unlock]. The mutex must be held.
func (k *Record) Apply(u core.Consequence, why string) {
	r := k.keeper
	if u.Confirmed > 0 {
		k.failure = nil
		if u.Enough {
			r.pace.Drop(k) // no longer waits for its turn
		}
		k.owner.Confirmed(u.Confirmed)
		if answered := k.landed(u.Confirmed); len(answered) > 0 {
			r.later(sequel{k: k, answered: answered})
		}
	}
	if u.Soon {
		k.RenewAfter(r.b.Instant().Add(clock.InFlightBackoff(int(k.Retries))))
	}
	if u.End != core.NoEnd {
		k.ended(u.End, why)
	}
	if u.Discard > 0 && u.Discards(k.owner.Cooldown(r.b.Instant())) {
		r.later(sequel{k: k, discard: u.Discard})
	}
	if u.Read > 0 {
		k.resolveLater(u.Read, u.Proven)
	}
	k.Moved()
}

// ended handles the end of the record. The mutex must be held.
func (k *Record) ended(end core.End, why string) {
	if why == "" || k.Why == core.BreakHinted {
		why = k.reason()
	}
	r := k.keeper
	r.forget(k)
	k.owner.NoteEnd(end, why)
	r.later(sequel{k: k, over: true, open: k.flights})
	k.flights = nil
}

// reason describes the evidence for the end. The mutex must be held.
func (k *Record) reason() string {
	if k.Why == core.Unconfirmed && k.Abandoned {
		return "its handle was dropped without Unlock, so the client stopped renewing it"
	}
	switch k.Why {
	case core.Unconfirmed:
		why := "its lease ended without a confirmation from the server" + k.Failed()
		if k.slot.ready != core.NotReady {
			why += ": its renewal was still queued, because the service answers fewer than are due"
		}
		return why
	case core.ConfirmedLate:
		return "the confirmation of its renewal arrived after its validity had ended"
	case core.RecordGone:
		return "its record no longer exists"
	case core.RecordDeleted:
		return "its record was deleted"
	case core.BreakHinted:
		return *k.Break
	}
	return ""
}

// Failed explains, for an error text, why renewals were not confirmed; it returns "" if the reason is unknown. The
// mutex must be held.
func (k *Record) Failed() string {
	if k.failure == nil {
		return ""
	}
	return fmt.Sprintf(": its renewal failed: %v", *k.failure)
}

// Entry returns the record as the client knows it, for errors and views.
func (k *Record) Entry() record.Entry {
	r := k.keeper
	r.mu.Lock()
	defer r.mu.Unlock()
	age := r.b.Instant().Sub(k.LastSent)
	return record.Entry{
		Record: kvstore.Record{Key: k.Key, Revision: k.Last, TTL: k.Terms.TTL, Time: r.b.Now().Add(-age)},
		Body:   k.Body,
	}
}

// RecordRead judges the record by entry, which was read under the record's key from a state that contains revision.
func (k *Record) RecordRead(entry record.Entry, revision uint64) {
	r := k.keeper
	r.mu.Lock()
	defer r.Unlock()
	u := k.Kept.RecordRead(entry, revision, r.b.Instant())
	why := ""
	switch k.Why {
	case core.RecordBroken:
		why = entry.BrokenBecause()
	case core.RecordReplaced:
		why = fmt.Sprintf("its record was replaced at revision %d", entry.Revision)
	}
	k.Apply(u, why)
	if u.Doubted {
		r.cfg.Doubted()
	}
}

// LoseAbsent reads every held record, and ends those that are no longer in the bucket or whose read fails. It leaves
// the others alone, because the client may already have been granted them in the new bucket. Comparing revisions would
// prove nothing: the new bucket's revisions may start below the old one's if the clock they are derived from is
// behind.
func (r *Keeper) LoseAbsent(read func(key string, revision uint64) (record.Entry, error), why string) {
	var all []*Record
	r.Each(func(k *Record) { all = append(all, k) })
	for _, k := range all {
		_, revision := k.Confirmation()
		entry, err := read(k.Key, revision)
		if err == nil && entry.Live() && entry.From(k.Body.ID) { //safety:bucket-new
			continue
		}
		r.mu.Lock()
		k.Fail(core.EndLost, why)
		r.Unlock()
	}
}
