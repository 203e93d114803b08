package call

import (
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// A semaphore works like a mutex with several keys. Each permit is a slot, and claiming a slot is like claiming a
// mutex: the server refuses a second holder. So there can never be more holders than slots, no matter how many clients
// there are or what fails.
//
// One queue serves all slots, strictly first come, first served: only the first waiter claims slots, and newcomers
// queue behind any waiter. Clients may disagree about the number of permits. A client claims only slots below its own
// number. The first waiter waits for one of those, and everyone else waits behind it even if a slot beyond the first
// waiter's number is free. Newcomers claim the highest free slot, which leaves the lower ones to waiters with smaller
// numbers.
//
// A client has one place in the queue for all its goroutines. It passes its permits around among them, and queues again
// after a grant while more of them are waiting: see package cohort.

// await waits until the place from which a permit was granted is deleted, because other permits may be free and a
// one-shot acquire must not mistake the place for a waiter's. It waits no longer than a quarter of the lease's
// validity.
func (a *Call) await(left <-chan struct{}, l *session.Lease) {
	_, validity, _ := l.Status()
	a.deleted(left, min(bucket.AnswerTimeout, validity/4)) //safety:place-wait
}

func (a *Call) key(k int) string {
	if a.Counts() {
		return a.Keys.Slot(k)
	}
	return a.Keys.Gate
}

func (a *Call) aim(k int) {
	if a.Counts() {
		a.bid.Aim(a.Keys.Slot(k))
	}
}

func (a *Call) pattern() string {
	if a.Counts() {
		return a.Keys.Slots()
	}
	return a.Keys.Gate
}

// readSlots lists the slots and whatever matches beside (nothing if it is "") in one state that contains revision. For
// a user who is not allowed to read both in one request, it reads the slots first, so that the rest comes from a state
// that contains the slots it read.
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
	a.surveyed = max(l.Revision, 1) // an empty state names no revision, and 0 means unknown
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
