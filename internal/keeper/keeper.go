package keeper

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/worker"
)

const (
	// linger is how long the renewer keeps running when there is nothing to renew, so that taking and releasing a lock
	// repeatedly does not start a goroutine each time.
	linger = time.Second
	// napMax limits a single sleep while there are records, because Go's timers stop while the machine is suspended but
	// leases do not.
	napMax = time.Second
)

// Config holds the callbacks through which a keeper reports to its client.
type Config struct {
	// Holding is called at least once a second while there are records.
	Holding func()
	// Doubted is called when a record has disappeared, because the bucket may have disappeared too. It must not block.
	Doubted func()
	// Warn logs a warning. It must not block.
	Warn func(msg string, args ...any)
}

// Keeper renews all of a client's records, ends those whose validity is over, and removes them from the bucket.
//
// The renewer is one goroutine with one timer for all records. It does no I/O at all, because the context of a lease
// has to end with its validity, whatever the network does. The sender, a second goroutine, encodes due renewals in the
// order chosen by the pace. Cleanup runs in the worker group.
//
// The mutex guards all records and the renewer. It is held for a few instructions at a time, never across I/O or a call
// to user code. Whatever an event under the mutex leads to (ending a context, deleting a record) is deferred until
// [Keeper.Unlock].
type Keeper struct {
	Work *worker.Group // cleanup that Close waits for

	cfg     Config
	b       *bucket.Bucket
	sender  *worker.Worker // sends renewals, and ends subscriptions for callers that hold the mutex
	orphans orphans

	mu      sync.Mutex
	sequel  sequel   // the first one deferred to Unlock, and nearly always the only one
	sequels []sequel // the rest

	// The renewer's state, guarded by mu.
	due     dueHeap // all held records
	pace    core.Pace[*Record, *Write]
	behind  bool // renewals are late, so no new lock is taken
	locks   int  // number of locks in due; the rest are places
	running bool
	stopped bool
	wake    chan struct{}
	sleep   clock.Instant // when the goroutine wakes by itself
	empty   chan struct{} // closed once no lock is held; nil if no Close is waiting for that
	wg      sync.WaitGroup
}

// New returns a keeper. It starts nothing.
func New(b *bucket.Bucket, cfg Config) *Keeper {
	return &Keeper{Work: worker.NewGroup(), cfg: cfg, b: b, sender: worker.New(), wake: make(chan struct{}, 1)}
}

// sequel is the consequence of an event, to be carried out once the mutex is released.
type sequel struct {
	k        *Record
	over     bool     // the record has ended
	open     []flight // unanswered renewals of an ended record; each may still create a record that must be deleted
	answered []flight // renewals whose answers are no longer awaited
	discard  uint64   // the revision of an unwanted record; 0 if there is none
}

// do carries out the sequel. Unwanted records are discarded so that other clients need not wait for their TTLs.
func (s *sequel) do() {
	for _, f := range s.answered {
		if f.forget != nil {
			f.forget()
		}
	}
	for _, f := range s.open {
		if f.forget != nil {
			s.k.keeper.Await(&Orphan{}, f.forget)
		}
	}
	if s.over {
		s.k.owner.Over()
	}
	if s.discard > 0 {
		s.k.keeper.Discard(s.k.Key, s.k.Body.ID, s.discard)
	}
}

// later defers s until the mutex is released.
func (r *Keeper) later(s sequel) {
	if r.sequel.k == nil {
		r.sequel = s
	} else {
		r.sequels = append(r.sequels, s)
	}
}

// Lock locks all of the client's records.
func (r *Keeper) Lock() { r.mu.Lock() }

// Unlock releases the mutex and then does what was deferred. The caller must not hold another mutex if a record may
// have ended.
func (r *Keeper) Unlock() {
	first, others := r.sequel, r.sequels
	r.sequel, r.sequels = sequel{}, nil
	r.mu.Unlock()
	if first.k == nil {
		return
	}
	first.do()
	for i := range others {
		others[i].do()
	}
}

// Send runs fn on the sender, for callers that hold a mutex that fn may lock.
func (r *Keeper) Send(fn func()) { r.sender.Add(fn) }

// Take hands a record made by [Keeper.Make] to the renewer.
func (r *Keeper) Take(k *Record) {
	r.mu.Lock()
	defer r.Unlock()
	due := k.owner.NextDuty(k.Due())
	k.slot.due = due
	heap.Push(&r.due, k)
	r.pace.Add(k.Granted)
	if k.IsLock() {
		r.locks++
	}
	r.start(due)
	r.nudge(due)
	if r.stopped { // granted while the client was closing, so it would not be renewed
		k.Fail(core.EndClosed, "")
	}
}

// forget drops a record that has ended. mu must be held.
func (r *Keeper) forget(k *Record) {
	if k.slot.index < 0 {
		return
	}
	heap.Remove(&r.due, int(k.slot.index))
	r.pace.Remove(k, k.Granted)
	if k.IsLock() {
		r.locks--
	}
	if r.empty != nil && r.locks == 0 {
		close(r.empty)
		r.empty = nil
	}
}

// start starts the renewer unless it is already running. The renewer has nothing to do before due. mu must be held.
func (r *Keeper) start(due clock.Instant) {
	if !r.stopped && !r.running {
		r.running, r.sleep = true, due
		r.wg.Go(r.run)
	}
}

// nudge wakes the renewer if it would sleep past due. mu must be held.
func (r *Keeper) nudge(due clock.Instant) {
	if due < r.sleep {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// schedule sets when the renewer returns to a held record. mu must be held.
func (r *Keeper) schedule(k *Record, due clock.Instant) {
	if k.slot.index >= 0 {
		k.slot.due = due
		heap.Fix(&r.due, int(k.slot.index))
		r.nudge(due)
	}
}

// wantRenewal queues a renewal of k, unless a sufficient one is already in flight. mu must be held.
func (r *Keeper) wantRenewal(k *Record) {
	if k.slot.index >= 0 && !r.pace.UnderWay(k.Enough(), r.b.Instant()) {
		r.pace.QueueRenewal(k, k.Late(), k.Valid.End)
		r.pump()
	}
}

// postpone keeps the client from taking new locks while renewals of its held locks are late because the service cannot
// keep up. mu must be held.
func (r *Keeper) postpone(now clock.Instant) {
	by := r.pace.Behind(now)
	if by == 0 && !r.behind {
		return
	}
	var why error
	if by > 0 {
		why = fmt.Errorf("%w: no new locks while renewals of held locks are %v late (%d pending)",
			bucket.ErrUnavailable, by.Round(time.Millisecond), r.pace.Ready())
	}
	r.b.Postpone(why)
	switch begins := by > 0; {
	case begins && !r.behind:
		r.cfg.Warn("renewals are late: the client takes no new locks until they catch up", "bucket", r.b.KV.Bucket(), "held", r.locks, "error", why)
		r.behind = true
	case !begins:
		r.cfg.Warn("renewals are on time again", "bucket", r.b.KV.Bucket(), "held", r.locks)
		r.behind = false
	}
}

// pump makes the sender send whatever is ready. mu must be held.
func (r *Keeper) pump() {
	if r.pace.Resumes() {
		r.pace.Pumping = r.sender.Add(r.sendReady)
	}
}

// sendReady sends whatever is ready. It runs on the sender.
func (r *Keeper) sendReady() {
	for {
		now := r.b.Instant()
		r.mu.Lock()
		k, w, n := r.pace.Next(now)
		if n == 0 {
			r.pace.Pumping = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		if w != nil {
			w.send(n, now)
		} else if !k.renew(n) {
			r.mu.Lock()
			r.pace.WriteNotSent(n)
			r.mu.Unlock()
		}
	}
}

// answerArrived handles the answer to write number n, which was sent at time sent. refused is true if the connection
// rejected the write.
func (r *Keeper) answerArrived(n uint64, sent, now clock.Instant, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if refused {
		r.pace.WriteRefused(n)
	} else {
		r.pace.AnswerArrived(n, now.Sub(sent), now)
	}
	r.pump()
}

// run is the renewer.
func (r *Keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := false
	var ripe []*Record
	for {
		r.mu.Lock()
		now := r.b.Instant()
		ripe = ripe[:0]
		for len(r.due) > 0 && r.due[0].slot.due <= now {
			k := r.due[0]
			ripe = append(ripe, k)
			k.slot.due = now.Add(napMax) // until tick sets the actual time
			heap.Fix(&r.due, 0)
		}
		r.mu.Unlock()
		for i, k := range ripe {
			k.tick(now)
			ripe[i] = nil
		}
		r.mu.Lock()
		r.pace.TimePassed(now)
		r.pump()
		r.postpone(now)
		if len(r.due) > 0 { //safety:bucket-verified
			r.cfg.Holding()
		}
		nap := napMax
		switch {
		case len(r.due) > 0:
			idle = false
			nap = min(nap, r.due[0].slot.due.Sub(now))
		case r.pace.Finals() > 0 && !r.stopped:
			idle = false
		default:
			if idle || r.stopped {
				r.running = false
				r.mu.Unlock()
				return
			}
			idle = true
			nap = linger
		}
		r.sleep = now.Add(nap)
		r.mu.Unlock()
		timer.Reset(max(nap, 0))
		select {
		case <-timer.C:
		case <-r.wake:
		}
	}
}

// Each calls fn for every held record. It holds the mutex during each call and releases it in between.
func (r *Keeper) Each(fn func(k *Record)) {
	r.mu.Lock()
	all := slices.Clone(r.due)
	r.mu.Unlock()
	for _, k := range all {
		r.mu.Lock()
		if k.State == core.StateHeld {
			fn(k)
		}
		r.Unlock()
	}
}

// RenewAll makes every renewal due now. It is called when the connection is back, because whatever was in flight when
// it broke is lost. No renewal may wait any longer: a server that lost records in a restart refuses to renew those
// locks, and other clients can already claim them. The pace limits how many renewals are in flight, and later renewals
// are spread out again.
func (r *Keeper) RenewAll() {
	now := r.b.Instant()
	r.mu.Lock()
	r.pace.Reset()
	r.mu.Unlock()
	r.Each(func(k *Record) { k.Apply(k.Reconnected(now, k.phase()), "") })
}

// WarnAll tells the owner of every held record that the record is at risk.
func (r *Keeper) WarnAll(why error) {
	r.Each(func(k *Record) { k.owner.AtRisk(why) })
}

// LoseAll ends every record, and returns the names of the locks among them.
func (r *Keeper) LoseAll(end core.End, why string) (locks []string) {
	r.Each(func(k *Record) {
		if k.IsLock() {
			locks = append(locks, k.Name)
		}
		k.Fail(end, why)
	})
	return locks
}

// AtRisk returns an error if a record has gone unconfirmed for more than two thirds of its validity, or the server has
// refused to renew a lock.
func (r *Keeper) AtRisk() error {
	now := r.b.Instant()
	var n int
	var name, why string
	r.Each(func(k *Record) {
		refused := k.IsLock() && k.Renews() && k.failure != nil && kvstore.Refused(*k.failure)
		if refused || k.Kept.AtRisk(now) {
			if n++; why == "" {
				name, why = k.Name, k.Failed()
			}
		}
	})
	if n > 0 {
		more := ""
		if n > 1 {
			more = fmt.Sprintf(", as are those of %d more", n-1)
		}
		return fmt.Errorf("%w: the renewal of lock %q is overdue%s%s", bucket.ErrUnavailable, name, more, why)
	}
	return nil
}

// RenewalLag returns the longest delay of any lock's renewal, or 0 if all are on time.
func (r *Keeper) RenewalLag() (late time.Duration) {
	now := r.b.Instant()
	r.Each(func(k *Record) {
		if k.IsLock() {
			late = max(late, k.Lag(now))
		}
	})
	return late
}

// Held returns the number of locks held.
func (r *Keeper) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.locks
}

// Close waits for the locks to be released until ctx ends, then ends all remaining records and returns the names of the
// locks among them. Work for ended records continues: see [Keeper.Finish].
func (r *Keeper) Close(ctx context.Context) (left []string) {
	r.mu.Lock()
	var empty chan struct{}
	if r.locks > 0 {
		empty = make(chan struct{})
		r.empty = empty
	}
	r.mu.Unlock()
	if empty != nil {
		select {
		case <-empty:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	r.empty = nil
	r.stopped, r.pace.Open = true, true
	r.pump()
	r.mu.Unlock()
	left = r.LoseAll(core.EndClosed, "")
	r.mu.Lock()
	r.sleep = clock.Instant(1<<63 - 1)
	r.nudge(0)
	r.mu.Unlock()
	r.wg.Wait()
	return left
}

// Finish waits for pending writes and cleanup until grace ends, then cancels what is left.
func (r *Keeper) Finish(grace context.Context) {
	r.sender.Stop(grace)
	r.Work.Wait(grace)
	r.Work.Cancel()
	r.Work.Wait(context.Background())
	r.orphans.close()
}

// slot is a record's position in the heaps. It is guarded by the mutex.
type slot struct {
	due   clock.Instant
	index int32 // in the keeper's heap; -1 if the record is not there
	ready int32 // in the pace's heap
}

// Slot implements [core.Paced].
func (k *Record) Slot() *int32 { return &k.slot.ready }

// dueHeap orders records by when the renewer has to return to them.
type dueHeap []*Record

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].slot.due < h[j].slot.due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot.index, h[j].slot.index = int32(i), int32(j)
}
func (h *dueHeap) Push(x any) {
	k := x.(*Record)
	k.slot.index = int32(len(*h))
	*h = append(*h, k)
}
func (h *dueHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.slot.index = -1
	return k
}
