package session

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
)

// final is the last write of a record: nearly always a tombstone. It is sent at once, or queued
// while as many writes wait for their answers as the [core.Pace] allows. So the server is not
// flooded, and answers soon after the sending: an answer that has not come by then is lost. To
// repeat a write that only waits at the server would delay all those behind it.
type final struct {
	r       *renewer
	w       kvstore.Write
	answers chan kvstore.Answer
	forget  func()        // nil: it was not sent
	turn    chan struct{} // closed when it has been sent; nil: it was sent at once
	place   core.Turn     // under the session's mutex
}

// Turn is part of [core.Final].
func (f *final) Turn() *core.Turn { return &f.place }

// post has w sent: now, if it may be, and otherwise in its turn.
func (r *renewer) post(w kvstore.Write) *final {
	f := &final{r: r, w: w, answers: make(chan kvstore.Answer, 1)}
	now := r.s.b.Instant()
	r.s.mu.Lock()
	n := r.pace.Take(now)
	if n == 0 {
		f.turn = make(chan struct{})
		r.pace.Queue(f)
		r.begin(now.Add(napMax))
		r.pump()
	}
	r.s.mu.Unlock()
	if n > 0 {
		f.send(n, now)
	}
	return f
}

// send sends f, which is number n of all writes.
func (f *final) send(n uint64, now clock.Instant) {
	r := f.r
	forget, err := r.s.b.Send(f.w, func(a kvstore.Answer) {
		r.hear(n, now, r.s.b.Instant(), kvstore.NotSent(a.Err))
		f.answers <- a
	})
	if err != nil {
		r.hear(n, now, now, true)
		f.answers <- kvstore.Answer{Err: err}
	}
	f.forget = forget
	if f.turn != nil {
		close(f.turn)
	}
}

// soon waits for the answer for d or until ctx ends.
func (f *final) soon(ctx context.Context, d time.Duration) (a kvstore.Answer, answered bool) {
	b := f.r.s.b
	t := b.Timer(d)
	defer b.TimerDone(t)
	select {
	case a = <-f.answers:
		if a.Err == nil {
			b.Acknowledged(a.Revision)
		}
		return a, true
	case <-t.C:
		return a, false
	case <-ctx.Done():
		return a, false
	}
}

// wait waits for the answer, for as long as a write takes and at most for d. The time counts
// from the sending.
func (f *final) wait(ctx context.Context, d time.Duration) kvstore.Answer {
	b, begun := f.r.s.b, time.Now()
	if f.turn != nil {
		t := b.Timer(d)
		defer b.TimerDone(t)
		select {
		case <-f.turn:
		case <-t.C:
			if n, was := f.withdraw(); was {
				return kvstore.Answer{Err: fmt.Errorf("%w: not sent yet, because the service answers slowly: %d deletions of this client wait", bucket.ErrUnavailable, n)}
			}
		case <-ctx.Done():
			if _, was := f.withdraw(); was {
				return kvstore.Answer{Err: context.Cause(ctx)}
			}
		}
		<-f.turn
		d -= time.Since(begun)
	}
	a, answered := b.Answer(ctx, f.answers, f.w.Key, max(min(d, bucket.AnswerTimeout), 0))
	if !answered && f.forget != nil {
		f.forget()
	}
	return a
}

// withdraw gives up a write that has not been sent, and says how many waited. It returns false
// where f is sent.
func (f *final) withdraw() (waited int, was bool) {
	f.r.s.mu.Lock()
	defer f.r.s.mu.Unlock()
	return f.r.pace.Withdraw(f)
}
