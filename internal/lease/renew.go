package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/natslock/locks/kvstore"
)

// renewal is a renewal without an answer yet.
type renewal struct {
	n      uint64
	at     Instant
	terms  terms
	forget func()
}

// extension waits for a renewal later than number after.
type extension struct {
	after uint64
	done  chan error
}

// minRetry is the shortest time between two renewals of one lease.
const minRetry = 50 * time.Millisecond

// renew sends a renewal. It runs on the engine's sender.
func (l *Lease) renew() {
	k := l.e.keeper
	k.mu.Lock()
	if !l.renews() || l.resolving {
		k.mu.Unlock()
		return
	}
	l.renewals++
	n, t, expect := l.renewals, l.want, l.last
	body := l.body(n)
	body.TTL = int64(t.ttl / time.Second)
	now := l.e.now()
	l.sent = append(l.sent, renewal{n: n, at: now, terms: t})
	l.asked = now
	if end := t.end(now); end < l.end {
		// From here on the record may have the shorter life.
		l.end = end
		k.moved(l)
	}
	k.mu.Unlock()

	value, err := body.encode()
	var forget func()
	if err == nil {
		forget, err = l.e.kv.Send(kvstore.Write{Key: l.spec.key, Value: value, Expect: expect, TTL: t.ttl}, func(a kvstore.Answer) { l.renewed(n, a) })
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range l.sent {
		if l.sent[i].n == n {
			if err != nil { // nothing was sent
				l.sent = append(l.sent[:i], l.sent[i+1:]...)
			} else {
				l.sent[i].forget = forget
			}
			return
		}
	}
	if forget != nil && l.state != Held {
		l.e.ghosts.keep(forget)
	}
}

// renewed takes the answer to renewal n. It runs on a goroutine of the store.
func (l *Lease) renewed(n uint64, a kvstore.Answer) {
	k := l.e.keeper
	k.mu.Lock()
	now := l.e.now()
	var conflict *kvstore.ConflictError
	var act func()
	switch {
	case a.Err == nil:
		l.e.seen(a.Revision)
		act = l.confirmed(n, a.Revision, now)
	case l.state != Held:
	case errors.As(a.Err, &conflict):
		switch {
		case (conflict.Last == 0 || conflict.Last > l.last) && !l.resolving:
			// Also where nothing is there any more: a leader that was deposed
			// refuses as well, and may have removed what was renewed since. A
			// state that contains the last confirmation tells.
			at := max(conflict.Last, l.last)
			l.resolving = true
			l.e.background(func(ctx context.Context) { l.resolve(ctx, at, true) })
		case conflict.Last == l.last && n == l.renewals && n >= l.need:
			// It met a renewal sent just before it, which has been confirmed
			// since; what asked for it is still to be confirmed.
			l.again(now)
		}
	case errors.Is(a.Err, kvstore.ErrInFlight):
		l.retries++
		l.nextRenewal = now.Add(inFlightPause(l.retries))
		k.moved(l)
	}
	k.mu.Unlock()
	if act != nil {
		act()
	}
}

// soonAgain is how often a write that met another one in flight is tried again at
// once: until the refusal has come and the next try gone, a round trip has passed,
// and the other one is stored, most likely. A timer's shortest pause is longer.
const soonAgain = 6

// inFlightPause is how long to wait before a write that met another one in
// flight is tried again.
func inFlightPause(try int) time.Duration {
	if try < soonAgain {
		return 0
	}
	return shortPause(try - soonAgain)
}

// shortPause is how long to wait before something is tried again that will go
// soon: jittered, or two of them meet again and again.
func shortPause(try int) time.Duration {
	d := time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// confirmed takes an acknowledged renewal. Under mu.
func (l *Lease) confirmed(n, revision uint64, now Instant) func() {
	switch {
	case l.state == Released:
		return nil // the release deletes whatever there is
	case l.state == Held && now < l.end:
		for i, s := range l.sent {
			if s.n == n {
				l.extend(i, revision)
				return nil
			}
		}
		return nil // older than what is confirmed already
	case l.state == Lost && l.cause.Kind != ErrLost:
		return nil // closed: the work may still be stopping
	}
	// Too late to believe in; deleted, so that nobody has to wait for it.
	lose := l.lose(ErrLost, "the confirmation of its renewal came after its validity had ended")
	return func() {
		lose()
		l.e.discard(l.spec.key, l.id, revision)
	}
}

// extend moves the validity to that of the renewal sent[i], now stored at
// revision. Under mu, inside validity.
func (l *Lease) extend(i int, revision uint64) {
	s := l.sent[i]
	for _, done := range l.sent[:i+1] {
		if done.forget != nil {
			done.forget() // confirmed, or expecting a revision that is no longer the last
		}
	}
	l.sent = append(l.sent[:0], l.sent[i+1:]...)
	if revision > l.last {
		l.last, l.lastSent = revision, s.at
	}
	l.terms = s.terms
	l.end = max(l.end, s.terms.end(s.at))
	if l.cap != 0 {
		l.end = min(l.end, l.cap)
	}
	l.retries, l.warned = 0, false
	if s.n >= l.need {
		l.nextRenewal = s.terms.nextRenewal(s.at, l.e.cfg.RenewFraction)
	}
	waiting := l.extending[:0]
	for _, x := range l.extending {
		if x.after < s.n {
			x.done <- nil
		} else {
			waiting = append(waiting, x)
		}
	}
	l.extending = waiting
	l.e.keeper.moved(l)
	if l.announced {
		l.e.tell(l.base, l.event(EventRenewed, nil))
	}
}

// renewNow makes a renewal due that is sent after this moment: the answer to
// one that is on its way already would not show what has happened since. Under
// mu.
func (l *Lease) renewNow(at Instant) {
	l.need = l.renewals + 1
	l.nextRenewal = min(l.nextRenewal, at)
	l.e.keeper.moved(l)
}

// again makes another renewal due at once, in place of one that was refused.
// Under mu.
func (l *Lease) again(now Instant) {
	l.nextRenewal = min(l.nextRenewal, now)
	l.e.keeper.moved(l)
}

// Extend renews the lease now and waits for the confirmation. ttl 0 keeps the
// TTL. When ctx ends first the outcome is unknown and the lease as valid as
// before, or as the shorter TTL asked for makes it.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	var t terms
	if ttl != 0 {
		rounded, err := RoundTTL(ttl, l.fixed)
		if err != nil {
			return fmt.Errorf("extend lock %q: %w", l.spec.name, err)
		}
		t = newTerms(rounded, l.e.cfg.Margin)
	}
	if _, _, cause := l.Status(); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		return fmt.Errorf("extend lock %q: not asked for: %w", l.spec.name, endOf(ctx))
	}
	k := l.e.keeper
	k.mu.Lock()
	if l.cap != 0 {
		k.mu.Unlock()
		return fmt.Errorf("%w: lock %q was taken until a given time and cannot be extended", ErrInvalidTTL, l.spec.name)
	}
	if ttl != 0 {
		l.want = t
	}
	k.mu.Unlock()
	return l.confirm(ctx)
}

// confirm renews the lease now and waits for the confirmation.
func (l *Lease) confirm(ctx context.Context) error {
	k := l.e.keeper
	k.mu.Lock()
	if l.state != Held {
		k.mu.Unlock()
		return l.cause
	}
	x := extension{after: l.renewals, done: make(chan error, 1)}
	l.extending = append(l.extending, x)
	l.renewNow(l.e.now())
	k.mu.Unlock()
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range l.extending {
		if l.extending[i].done == x.done {
			l.extending = append(l.extending[:i], l.extending[i+1:]...)
			break
		}
	}
	k.moved(l)
	return fmt.Errorf("extend lock %q: %w: not confirmed: %w", l.spec.name, ErrUnavailable, endOf(ctx))
}
