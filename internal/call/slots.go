package call

import (
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// A semaphore works like a mutex with several keys to claim. Each permit is a slot, and claiming a slot is like
// claiming a mutex: the server refuses a second holder. So there can never be more holders than slots, however many
// clients there are and whatever fails.
//
// One queue serves all slots, strictly first come, first served: only the first waiter claims slots, and newcomers
// queue behind any waiter. Clients may disagree about the number of permits. A client claims only slots below its own
// number. The first waiter waits for one of those, and all others wait behind it, even while a slot that it does not
// know of is free. Newcomers claim the highest free slot, to leave the lower ones to waiters that know of fewer.
//
// A client has one place in the queue for all its goroutines, and after a grant it queues again as long as more of
// them are waiting. It passes its permits on among them: see package cohort.

// await waits for the end of the place from which a permit was granted: other permits may be free, and a one-shot
// acquire must not mistake the place for that of a waiter. Without an answer, await waits for at most a quarter of the
// lease's validity.
func (a *Call) await(left <-chan struct{}, l *session.Lease) {
	_, validity, _ := l.Status()
	a.deleted(left, min(bucket.AnswerTimeout, validity/4)) //safety:place-wait
}

// key returns key k of the lock.
func (a *Call) key(k int) string {
	if a.Counts() {
		return a.Keys.Slot(k)
	}
	return a.Keys.Gate
}

// aim aims the next claim at key k.
func (a *Call) aim(k int) {
	if a.Counts() {
		a.bid.Aim(a.Keys.Slot(k))
	}
}

// pattern returns the pattern of the lock's keys.
func (a *Call) pattern() string {
	if a.Counts() {
		return a.Keys.Slots()
	}
	return a.Keys.Gate
}

// readSlots lists the slots, and what is under the pattern beside ("" for nothing), in one state that contains
// revision. For a user that may not do so with one request, it reads the slots first, so the rest is from a state that
// contains them.
func (a *Call) readSlots(revision uint64, beside string, opts ...kvstore.ListOption) (all []record.Entry, rest []kvstore.Record, left int, err error) {
	b, pattern, given := a.c.b, a.Keys.Slots(), len(opts)
	opts = append(opts, kvstore.Tombstones())
	if beside != "" {
		opts = append(opts, kvstore.Also(beside))
	}
	l, err := b.ListSoon(a.ctx, pattern, revision, opts...)
	if err != nil && beside != "" && a.Over() == nil {
		if l, err = b.ListSoon(a.ctx, pattern, revision, kvstore.Tombstones()); err == nil {
			var other kvstore.Listing
			other, err = b.ListSoon(a.ctx, beside, max(revision, l.Revision), opts[:given]...) //safety:slots-first
			left = leftOut(other)
			l.Records = append(l.Records, other.Records...)
		}
	}
	if err != nil {
		return nil, nil, 0, err
	}
	a.surveyed = max(l.Revision, 1) // an empty state names no revision
	all = make([]record.Entry, a.Req.Permits)
	for _, r := range l.Records {
		switch k, ok := record.ParseKey(r.Key); {
		case ok && k.Prefix == record.SlotPrefix:
			if k.Slot < len(all) {
				all[k.Slot] = record.Of(r)
			}
		case !r.Deleted:
			rest = append(rest, r)
		}
	}
	return all, rest, left + leftOut(l), nil
}
