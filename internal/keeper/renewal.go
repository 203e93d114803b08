package keeper

import (
	"cmp"
	"context"
	"hash/maphash"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
)

// hashSeed makes the phases of different clients differ.
var hashSeed = maphash.MakeSeed()

// phase returns the fraction of the renewal interval after which the record is renewed when all renewals are spread out
// again. It is above 0 and at most 1.
func (k *Record) phase() float32 {
	return float32(maphash.String(hashSeed, k.Key)>>32+1) / (1 << 32)
}

// renew sends a renewal as write number paced, and reports whether it did. It runs on the sender.
func (k *Record) renew(paced uint64) bool {
	r := k.keeper
	r.mu.Lock()
	now, silent := r.b.Instant(), k.Unanswered()
	n, shorter := k.BeginRenewal(now, paced)
	if n == 0 {
		r.mu.Unlock()
		return false
	}
	body, t, expect := k.Body, k.Want, k.Last
	k.flights = append(k.flights, flight{n: n})
	if shorter {
		k.Moved()
	}
	r.mu.Unlock()

	body.Renewal, body.TTL = n, int64(t.TTL/time.Second)
	value, err := body.EncodeKept(expect)
	var forget func()
	if err == nil {
		forget, err = r.b.Send(kvstore.Write{Key: k.Key, Value: value, Expect: expect, TTL: t.TTL}, func(a kvstore.Answer) { k.answered(n, a, paced, now) })
	}
	denied := error(nil)
	if silent { // the server does not answer a write that it forbids
		denied = r.b.Denied(k.Key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil { // nothing was sent
		k.RenewalNotSent(n)
	}
	switch failure := cmp.Or(err, denied); {
	case k.shrinks(n, err):
		k.Moved()
	case failure != nil:
		k.fails(failure)
	}
	for i := range k.flights {
		if k.flights[i].n == n {
			if err != nil {
				k.flights = append(k.flights[:i], k.flights[i+1:]...)
			} else {
				k.flights[i].forget = forget
			}
			return err == nil
		}
	}
	if forget != nil && k.State != core.StateHeld {
		r.Await(&Orphan{}, forget)
	}
	return err == nil
}

// answered handles the answer to renewal n, which was sent at time sent as write number paced. It runs on one of the
// store's goroutines.
func (k *Record) answered(n uint64, a kvstore.Answer, paced uint64, sent clock.Instant) {
	r := k.keeper
	now := r.b.Instant()
	r.answerArrived(paced, sent, now, kvstore.NotSent(a.Err))
	if a.Err == nil {
		r.b.Acknowledged(a.Revision)
	}
	answer := bucket.AnswerOf(a)
	r.mu.Lock()
	defer r.Unlock()
	if k.State == core.StateHeld {
		switch {
		case k.shrinks(n, a.Err):
		case answer.Refusal == core.InFlight:
			failure := a.Err
			k.failure = cmp.Or(k.failure, &failure)
		case answer.Refusal > core.Conflict:
			k.fails(a.Err)
		}
	}
	k.Apply(k.AnswerArrived(n, answer, now), "")
}

// shrinks reports whether renewal n was refused with err for lack of room and the next renewal is smaller. The mutex
// must be held.
func (k *Record) shrinks(n uint64, err error) bool {
	return k.State == core.StateHeld && bucket.IsAny(err, kvstore.ErrTooLarge, kvstore.ErrFull) && k.owner.NoRoom(n, err)
}

// landed removes the renewals up to n from the flights and returns them, because they have been answered or expect a
// revision that is no longer the last. The mutex must be held. The caller ends the waits for their answers after
// releasing the mutex.
func (k *Record) landed(n uint64) (answered []flight) {
	left := k.flights[:0]
	for _, f := range k.flights {
		if f.n > n {
			left = append(left, f)
		} else {
			answered = append(answered, f)
		}
	}
	k.flights = left
	return answered
}

// fails records why a renewal will not be confirmed. The next renewal is tried as usual. The owner is told once if the
// server refuses to renew the record, whatever the reason: a full or sealed bucket, a record that is too large, a
// missing permission. An outage is not a refusal. The mutex must be held.
func (k *Record) fails(err error) {
	before := k.failure
	k.failure = &err
	if k.State == core.StateHeld && (before == nil || !kvstore.Refused(*before)) && kvstore.Refused(err) {
		k.owner.Refused(err)
	}
}

// resolveLater reads and judges the record in the background, after a refusal or a hint that named revision. proven is
// true after a refusal.
func (k *Record) resolveLater(revision uint64, proven bool) {
	k.keeper.Work.Go(func(ctx context.Context) { k.resolve(ctx, revision, proven) })
}

func (k *Record) resolve(ctx context.Context, revision uint64, proven bool) {
	r := k.keeper
	for try := 0; ; try++ {
		state, left := k.Status()
		if state != core.StateHeld {
			return
		}
		rctx, cancel := context.WithTimeout(ctx, min(left, time.Second<<min(try, 3)))
		at := revision
		if !proven && !r.b.Alone() {
			// If any replica may answer a read, only a probe can prove the subscription of a lease that is not renewed.
			// If the probe goes unanswered, the read has to do.
			last, _ := r.b.Probe(rctx, k.Key)
			at = max(at, last)
		}
		entry, err := r.b.Read(rctx, k.Key, at)
		cancel()
		if err == nil {
			k.RecordRead(entry, revision)
			return
		}
		if !proven && try >= 3 || ctx.Err() != nil {
			r.mu.Lock()
			k.Trust()
			k.Moved()
			r.mu.Unlock()
			return
		}
		if clock.Sleep(ctx, clock.ShortBackoff(try)) != nil {
			return
		}
	}
}
