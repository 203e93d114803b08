package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
)

// Write is the last write of a record, nearly always a tombstone. It is sent immediately unless as many writes are
// already waiting for answers as the [core.Pace] allows, in which case it is queued. A server that is not flooded
// answers soon after a write is sent, so a late answer can be treated as lost. In a flooded server, the write might
// merely be waiting, and repeating it would delay all writes behind it.
type Write struct {
	kvstore.Write
	keeper  *Keeper
	answers chan kvstore.Answer
	forget  func()        // gives up the wait for the answer; nil if the write was not sent
	turn    chan struct{} // closed once the write has been sent; nil if it was sent immediately
	place   core.Turn     // guarded by the keeper's mutex
}

// Turn implements [core.Final].
func (w *Write) Turn() *core.Turn { return &w.place }

// Post sends what immediately if the pace allows it, and otherwise queues it for its turn.
func (r *Keeper) Post(what kvstore.Write) *Write {
	w := &Write{Write: what, keeper: r, answers: make(chan kvstore.Answer, 1)}
	now := r.b.Instant()
	r.mu.Lock()
	n := r.pace.Take(now)
	if n == 0 {
		w.turn = make(chan struct{})
		r.pace.QueueFinal(w)
		r.start(now.Add(napMax))
		r.pump()
	}
	r.mu.Unlock()
	if n > 0 {
		w.send(n, now)
	}
	return w
}

// send sends w as write number n.
func (w *Write) send(n uint64, now clock.Instant) {
	r := w.keeper
	forget, err := r.b.Send(w.Write, func(a kvstore.Answer) {
		r.answerArrived(n, now, r.b.Instant(), kvstore.NotSent(a.Err))
		w.answers <- a
	})
	if err != nil {
		r.answerArrived(n, now, now, true)
		w.answers <- kvstore.Answer{Err: err}
	}
	w.forget = forget
	if w.turn != nil {
		close(w.turn)
	}
}

// soon waits for the answer until d has passed or ctx ends.
func (w *Write) soon(ctx context.Context, d time.Duration) (a kvstore.Answer, answered bool) {
	b := w.keeper.b
	t := b.Timer(d)
	defer b.TimerDone(t)
	select {
	case a = <-w.answers:
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

// wait waits up to d for the answer, but no longer than [bucket.AnswerTimeout] after the write is sent.
func (w *Write) wait(ctx context.Context, d time.Duration) kvstore.Answer {
	b, begun := w.keeper.b, time.Now()
	if w.turn != nil {
		t := b.Timer(d)
		defer b.TimerDone(t)
		select {
		case <-w.turn:
		case <-t.C:
			if n, was := w.withdraw(); was {
				return kvstore.Answer{Err: fmt.Errorf("%w: not sent yet, because the service answers slowly: %d deletions of this client are pending", bucket.ErrUnavailable, n)}
			}
		case <-ctx.Done():
			if _, was := w.withdraw(); was {
				return kvstore.Answer{Err: context.Cause(ctx)}
			}
		}
		<-w.turn
		d -= time.Since(begun)
	}
	a, answered := b.Answer(ctx, w.answers, w.Key, max(min(d, bucket.AnswerTimeout), 0))
	if !answered && w.forget != nil {
		w.forget()
	}
	return a
}

// withdraw gives up a write that has not been sent, and returns how many writes were waiting. was is false if w has
// already been sent.
func (w *Write) withdraw() (waited int, was bool) {
	w.keeper.mu.Lock()
	defer w.keeper.mu.Unlock()
	return w.keeper.pace.Withdraw(w)
}
