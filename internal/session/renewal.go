package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// hashSeed makes the phases of two clients differ.
var hashSeed = maphash.MakeSeed()

// phase is the record's share, above 0 and at most 1, of the time between two renewals after which it is
// renewed when the renewals of all records are spread again.
func (k *kept) phase() float32 { return float32(maphash.String(hashSeed, k.Key)>>32+1) / (1 << 32) }

// renew sends a renewal, which is number paced of all. It runs on the goroutine that sends,
// and returns whether it has sent one.
func (k *kept) renew(paced uint64) bool {
	k.s.mu.Lock()
	now, silent := k.s.b.Instant(), k.Unanswered()
	n, shorter := k.Send(now, paced)
	if n == 0 {
		k.s.mu.Unlock()
		return false
	}
	body, t, expect := k.Body, k.Want, k.Last
	k.flights = append(k.flights, flight{n: n})
	if shorter {
		k.moved()
	}
	k.s.mu.Unlock()

	body.Renewal, body.TTL = n, int64(t.TTL/time.Second)
	value, err := body.EncodeKept(expect)
	var forget func()
	if err == nil {
		forget, err = k.s.b.Send(kvstore.Write{Key: k.Key, Value: value, Expect: expect, TTL: t.TTL}, func(a kvstore.Answer) { k.renewed(n, a, paced, now) })
	}
	denied := error(nil)
	if silent { // the server does not answer a write that it forbids
		denied = k.s.b.Denied(k.Key)
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	if failure := cmp.Or(err, denied); failure != nil {
		k.fails(failure)
	}
	if err != nil { // nothing was sent
		k.Unsent(n)
		if errors.Is(err, kvstore.ErrTooLarge) {
			k.of.tooLarge(err)
			k.moved()
		}
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
	if forget != nil && k.State != Held {
		k.s.Await(&Orphan{}, forget)
	}
	return err == nil
}

// renewed takes the answer to renewal n, number paced of all, which was sent at sent. It runs
// on a goroutine of the store.
func (k *kept) renewed(n uint64, a kvstore.Answer, paced uint64, sent clock.Instant) {
	now := k.s.b.Instant()
	k.s.renewer.hear(paced, sent, now, kvstore.NotSent(a.Err))
	if a.Err == nil {
		k.s.b.Acknowledged(a.Revision)
	}
	answer := bucket.AnswerOf(a)
	k.s.mu.Lock()
	if k.State == Held {
		switch {
		case errors.Is(a.Err, kvstore.ErrTooLarge):
			k.of.tooLarge(a.Err)
		case answer.Refusal == core.InFlight:
			failure := a.Err
			k.failure = cmp.Or(k.failure, &failure)
		case answer.Refusal > core.Conflict:
			k.fails(a.Err)
		}
	}
	over := k.apply(k.Answered(n, answer, now), "")
	k.s.mu.Unlock()
	over.finish()
}

// forget takes the renewals up to n, which are answered or expect a revision that is no longer the last. The
// caller ends the waits for their answers, without the mutex. Under mu.
func (k *kept) forget(n uint64) (answered []flight) {
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

// fails notes why a renewal will not be confirmed. The next one is tried as ever. The client
// warns once of a server that refuses to renew a lock, whatever the reason: a bucket that is
// full or sealed, a size, a permission. An outage is no refusal. Under mu.
func (k *kept) fails(err error) {
	before := k.failure
	k.failure = &err
	if l, ok := k.of.(*Lease); ok && k.State == Held && (before == nil || !kvstore.Refused(*before)) && kvstore.Refused(err) {
		l.refused(err)
	}
}

// resolveLater reads the record, after a refusal or a hint that named revision, and judges by it. proven says
// that it was a refusal.
func (s *Session) resolveLater(k *kept, revision uint64, proven bool) {
	s.Background(func(ctx context.Context) { k.resolve(ctx, revision, proven) })
}

func (k *kept) resolve(ctx context.Context, revision uint64, proven bool) {
	b := k.s.b
	for try := 0; ; try++ {
		_, left, cause := k.Status()
		if cause != nil {
			return
		}
		rctx, cancel := context.WithTimeout(ctx, min(left, time.Second<<min(try, 3)))
		at := revision
		if !proven && !b.Alone() {
			// Where any replica may answer a read, only a probe proves the subscription of
			// a lease that is not renewed. If it has no answer, the read alone has to do.
			last, _ := b.Probe(rctx, k.Key)
			at = max(at, last)
		}
		entry, err := b.Read(rctx, k.Key, at)
		cancel()
		if err == nil {
			k.judge(entry, revision)
			return
		}
		if !proven && try >= 3 || ctx.Err() != nil {
			k.s.mu.Lock()
			k.Trust()
			k.moved()
			k.s.mu.Unlock()
			return
		}
		if clock.Sleep(ctx, clock.ShortBackoff(try)) != nil {
			return
		}
	}
}

// judge decides by the record under the key, read as of a state that contains
// revision.
func (k *kept) judge(entry record.Entry, revision uint64) {
	k.s.mu.Lock()
	u := k.Judge(entry, revision, k.s.b.Instant())
	why := ""
	switch k.Why {
	case core.RecordBroken:
		why = entry.BrokenBecause()
	case core.RecordReplaced:
		why = fmt.Sprintf("its record was replaced at revision %d", entry.Revision)
	}
	over := k.apply(u, why)
	k.s.mu.Unlock()
	if u.Doubted {
		k.s.doubtBucket()
	}
	over.finish()
}
