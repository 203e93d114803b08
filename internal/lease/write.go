package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// answerTimeout is how long the answer to one write is waited for before it
// counts as unknown and the write is tried again.
const answerTimeout = time.Second

// write sends w and waits for its answer, at most answerTimeout: then its
// outcome is unknown.
func (e *Engine) write(ctx context.Context, w kvstore.Write) (uint64, error) {
	ch := make(chan kvstore.Answer, 1)
	forget, err := e.kv.Send(w, func(a kvstore.Answer) { ch <- a })
	if err != nil {
		return 0, err
	}
	a, answered := e.answer(ctx, ch, w.Key, answerTimeout)
	if !answered {
		forget()
	}
	return a.Revision, a.Err
}

// probe asks the stream's leader for the last revision of a key, 0 if there is none,
// by a write that it refuses. The answer proves that the subscriptions which were
// made before are in place; see [kvstore.NoRevision].
func (e *Engine) probe(ctx context.Context, key string) (last uint64, err error) {
	ctx, cancel := answerIn(ctx, answerTimeout)
	defer cancel()
	for try := 0; ; try++ {
		_, err := e.write(ctx, kvstore.Write{Key: key, Expect: kvstore.NoRevision, Delete: true})
		conflict, refused := errors.AsType[*kvstore.ConflictError](err)
		switch {
		case refused:
			return conflict.Last, nil
		case err == nil:
			return 0, fmt.Errorf("%w: a write to %q that has to be refused was accepted", kvstore.ErrBucketConfig, key)
		case !errors.Is(err, kvstore.ErrInFlight):
			return 0, err
		}
		if err := sleep(ctx, inFlightPause(try)); err != nil {
			return 0, err
		}
	}
}

// posted is a write that another goroutine sends, so that a network that takes no
// writes does not hold up who wants it.
type posted struct {
	e       *Engine
	write   kvstore.Write
	answers chan kvstore.Answer

	mu     sync.Mutex
	forget func() // set when it was sent
	over   bool   // nobody waits any more
}

func (e *Engine) post(w kvstore.Write) *posted {
	p := &posted{e: e, write: w, answers: make(chan kvstore.Answer, 1)}
	if !e.leaver.add(p.send) {
		p.answers <- kvstore.Answer{Err: ErrClosed}
	}
	return p
}

func (p *posted) send() {
	p.mu.Lock()
	over := p.over
	p.mu.Unlock()
	if over { // who wanted it sends for itself by now
		return
	}
	forget, err := p.e.kv.Send(p.write, func(a kvstore.Answer) { p.answers <- a })
	if err != nil {
		p.answers <- kvstore.Answer{Err: err} // there is room: nothing was sent that is answered
		return
	}
	p.mu.Lock()
	p.forget = forget
	over = p.over
	p.mu.Unlock()
	if over {
		forget()
	}
}

// soon waits for the answer for d, and does not touch the connection.
func (p *posted) soon(d time.Duration) (a kvstore.Answer, answered bool) {
	t := p.e.timer(d)
	defer p.e.timerDone(t)
	select {
	case a = <-p.answers:
		if a.Err == nil {
			p.e.seen(a.Revision)
		}
		return a, true
	case <-t.C:
		return a, false
	}
}

// wait waits for the answer, at most for d.
func (p *posted) wait(ctx context.Context, d time.Duration) kvstore.Answer {
	a, answered := p.e.answer(ctx, p.answers, p.write.Key, d)
	if !answered {
		p.mu.Lock()
		p.over = true
		forget := p.forget
		p.mu.Unlock()
		if forget != nil {
			forget()
		}
	}
	return a
}

// answer waits for the answer to a write of key, at most for d.
func (e *Engine) answer(ctx context.Context, ch <-chan kvstore.Answer, key string, d time.Duration) (a kvstore.Answer, answered bool) {
	pause := min(deniedAfter, d)
	waited := pause
	t := e.timer(pause)
	defer e.timerDone(t)
	for {
		select {
		case a := <-ch:
			if a.Err == nil {
				e.seen(a.Revision)
			}
			return a, true
		case <-ctx.Done():
			return kvstore.Answer{Err: context.Cause(ctx)}, false
		case <-t.C:
			if err := e.kv.Denied(key); err != nil {
				return kvstore.Answer{Err: err}, false
			}
			if waited >= d {
				return kvstore.Answer{Err: fmt.Errorf("%w: no answer within %v", ErrUnavailable, d)}, false
			}
			pause = min(2*pause, d-waited)
			waited += pause
			t.Reset(pause)
		}
	}
}

// timer is time.NewTimer with timers that are used again, for waits that are
// nearly always short; timerDone gives it back. They are the engine's own, since
// those of one synctest bubble cannot be used in another.
func (e *Engine) timer(d time.Duration) *time.Timer {
	if t, ok := e.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (e *Engine) timerDone(t *time.Timer) {
	t.Stop()
	e.timers.Put(t)
}
