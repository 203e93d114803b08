package claim

import (
	"context"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// GoneWithin limits how long a call that gives up waits for its records to be deleted. It allows for a few round trips
// but is short enough to go unnoticed.
const GoneWithin = 100 * time.Millisecond

// close ends the claim. n is the attempt that was granted, or 0 if none was. From then on, all answers, including those
// that have already arrived, lead only to deletions. For each deletion that the caller should wait for, gone holds a
// channel that is closed when the deletion is done; see [GoneWithin].
func (cl *claim) close(n int) (gone []<-chan struct{}) {
	cl.mu.Lock()
	unwanted, open, found := cl.state.Close(n)
	cl.mu.Unlock()
	for _, revision := range unwanted {
		gone = append(gone, cl.k.Discard(cl.key, cl.state.ID, revision))
	}
	if found {
		cl.forgets[n-1]()
	}
	if len(open) > 0 {
		// An answer that has taken longer than GoneWithin will not arrive soon, so the caller does not wait for it.
		if taken := cl.cleanUp(open, n == 0); cl.b.Instant().Sub(open[0].Sent) < GoneWithin {
			gone = append(gone, taken)
		}
	}
	return gone
}

// cleanUp deals with the unanswered attempts of a finished claim. If the claim was given up, it also takes away the
// records that those attempts expect, except for the record that an adoption expects, which another client may still
// adopt. It closes the returned channel when it is done.
func (cl *claim) cleanUp(open []core.Attempt, givenUp bool) <-chan struct{} {
	over := make(chan struct{})
	for _, a := range open {
		cl.k.Await(&keeper.Orphan{}, cl.forgets[a.N-1])
	}
	cl.k.Work.Go(func(ctx context.Context) {
		defer close(over)
		if w, err := cl.b.Watch(cl.key, cl.appeared); err == nil {
			cl.watchWhileOpen(w)
		}
		if !givenUp || cl.adopts { //safety:expectation-taken
			return
		}
		ctx, cancel := context.WithTimeout(ctx, open[len(open)-1].Terms.TTL)
		defer cancel()
		for _, t := range core.Takings(cl.state.ID, open, cl.guard != "") {
			cl.takeAway(ctx, &t)
		}
	})
	return over
}

// watchWhileOpen keeps w until every attempt is settled or the keeper ends the wait.
func (cl *claim) watchWhileOpen(w kvstore.Watch) {
	cl.mu.Lock()
	settled := cl.state.Settled()
	if !settled {
		cl.orphan, cl.stop = &keeper.Orphan{}, w.Stop
		cl.k.Await(cl.orphan, w.Stop)
	}
	cl.mu.Unlock()
	if settled {
		w.Stop()
	}
}

// settle records that an unanswered attempt can no longer be applied, or that it was applied and its record deleted.
func (cl *claim) settle(n int) {
	cl.mu.Lock()
	cl.state.Settle(n)
	settled := cl.settled()
	cl.mu.Unlock()
	cl.endWatch(settled)
}

// settled detaches and returns the watch for late records if every attempt is settled, and returns nil otherwise. The
// caller holds mu.
func (cl *claim) settled() (watch *keeper.Orphan) {
	if cl.orphan != nil && cl.state.Settled() {
		watch, cl.orphan = cl.orphan, nil
	}
	return watch
}

// endWatch ends the watch for late records, if there is one.
func (cl *claim) endWatch(watch *keeper.Orphan) {
	if watch != nil {
		cl.k.Settle(watch)
		cl.k.Send(cl.stop)
	}
}

// takeAway takes away the record that an unanswered attempt expects; see [core.Taking].
func (cl *claim) takeAway(ctx context.Context, t *core.Taking) {
	if t.OnlyOwn {
		entry, err := cl.readOwn(ctx)
		if err != nil {
			return
		}
		if !t.OwnRecordRead(entry) {
			cl.awaitAnswer(ctx, t.Attempt.N) //safety:guarded-awaited
			return
		}
	}
	if cl.k.Remove(ctx, cl.key, &t.Removal) != nil {
		return
	}
	for _, n := range t.Settled() {
		cl.settle(n)
	}
}

// awaitAnswer waits up to [bucket.AnswerTimeout] for the answer to attempt n of a finished claim.
func (cl *claim) awaitAnswer(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, bucket.AnswerTimeout)
	defer cancel()
	for {
		cl.mu.Lock()
		answered := cl.state.IsSettled(n)
		cl.mu.Unlock()
		if answered {
			return
		}
		select {
		case <-cl.wake: // nothing else receives from wake once the claim is over
		case <-ctx.Done():
			return
		}
	}
}

// readOwn reads the claim's own key, retrying while the server is unavailable.
func (cl *claim) readOwn(ctx context.Context) (record.Entry, error) {
	b := cl.b
	for try := 0; ; try++ {
		up := b.Online()
		entry, err := b.Read(ctx, cl.key, 1)
		if err == nil || bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrClosed) || b.Sleep(ctx, clock.OutageBackoff(try), up) != nil {
			return entry, err
		}
	}
}

// appeared deletes a record of this claim that the server stored after the claim was over.
func (cl *claim) appeared(ev kvstore.Event) {
	if ev.Kind != kvstore.Put {
		return
	}
	entry := record.Of(ev.Record)
	cl.mu.Lock()
	unwanted := cl.state.Unwanted(entry)
	cl.mu.Unlock()
	if unwanted {
		// Any client can forge a notification, so the record itself has to be read.
		cl.k.Work.Go(func(ctx context.Context) {
			if e, err := cl.b.Read(ctx, cl.key, ev.Record.Revision); err == nil && cl.state.Strays(e) { //safety:notification-verified
				cl.k.Discard(cl.key, cl.state.ID, e.Revision)
			}
		})
	}
}
