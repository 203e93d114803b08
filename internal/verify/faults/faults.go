// Package faults provides a fault injector that sits between a client and its store. It loses,
// delays and refuses individual writes, answers and notifications, whereas a testutil.Link sees
// only bytes.
package faults

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// Store is a [kvstore.KV] that passes everything on to another store, except for the faults
// that a test injects.
//
//	f := faults.New(store, seed)
//	f.OnSend(func(n int, w kvstore.Write) faults.Fate { ... })
//
// [WrapStore] makes a client use it.
//
// Without rules and rates nothing goes wrong. All methods are safe for concurrent use. A rule
// runs on the goroutine of the call that it judges, possibly several at a time, and must not
// call the Store's own Send, Get, List, State or Close.
//
// Delays are timers, so they cost nothing in a testutil.Bubble. Create and use a Store entirely
// inside a bubble or entirely outside.
type Store struct {
	wrapped // methods that are not overridden pass through
	seed    uint64

	mu        sync.Mutex
	outage    error // the error of all requests during an outage
	onSend    func(n int, w kvstore.Write) Fate
	drop      func(kvstore.Event) bool
	reads     func(op ReadOp, what string) error
	rates     Rates
	sends     int
	events    uint64
	counts    Counts
	held      []*HeldWrite
	watches   map[*faultWatch]struct{}
	listeners map[*func(kvstore.ConnState)]struct{} // pointers, because functions cannot be compared
	timers    map[*time.Timer]struct{}
	closed    bool
	done      chan struct{}  // closed by Close
	running   sync.WaitGroup // callbacks and late writes in progress
}

// wrapped is the store that a [Store] passes calls on to.
type wrapped = kvstore.KV

// New wraps kv. The seed determines what [Store.Random] does: given the same seed and rates,
// the n-th write always meets the same fate. Which write is the n-th depends on the order of
// the goroutines. Print the seed when a test fails.
func New(kv kvstore.KV, seed uint64) *Store {
	return &Store{
		wrapped:   kv,
		seed:      seed,
		watches:   make(map[*faultWatch]struct{}),
		listeners: make(map[*func(kvstore.ConnState)]struct{}),
		timers:    make(map[*time.Timer]struct{}),
		done:      make(chan struct{}),
	}
}

// Counts returns how many times each fault has happened so far.
func (f *Store) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// OnSend sets the rule that decides the fate of each write from now on. A nil rule removes it.
// n counts the calls to Send from 1. Without a rule, the rates decide.
func (f *Store) OnSend(rule func(n int, w kvstore.Write) Fate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onSend = rule
}

// Random injects faults at random from now on, until it is called with the zero Rates. It
// panics if the rates for writes add up to more than 1.
func (f *Store) Random(r Rates) {
	const rounding = 1e-9
	if sum := r.Drop + r.LoseAnswer + r.Delay + r.DelayAnswer + r.Refuse + r.NotSent; sum > 1+rounding {
		panic(fmt.Sprintf("faults: rates add up to %v", sum))
	}
	if r.MaxDelay <= 0 {
		r.MaxDelay = time.Second
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rates = r
}

// DropEvents sets the rule that decides which events are lost from now on. A nil rule removes
// it. The rule is called for every watch that would get the event. That includes Expired and
// Recheck events, which a real network cannot lose.
func (f *Store) DropEvents(rule func(kvstore.Event) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop = rule
}

// DropAllEvents starts or stops dropping all notifications, that is, the Put and Deleted
// events. It replaces the rule of [Store.DropEvents].
func (f *Store) DropAllEvents(on bool) {
	if !on {
		f.DropEvents(nil)
		return
	}
	f.DropEvents(isNotification)
}

func isNotification(ev kvstore.Event) bool {
	return ev.Kind == kvstore.Put || ev.Kind == kvstore.Deleted
}

// Forge delivers ev to all watches whose pattern matches ev.Record.Key, or to every watch if ev
// is a Recheck event. Any user who may publish to the notification subject could do the same.
// Forge calls the watches one after another and returns their number. No rule applies to forged
// events.
func (f *Store) Forge(ev kvstore.Event) int {
	var to []*faultWatch
	f.mu.Lock()
	for w := range f.watches {
		if ev.Kind == kvstore.Recheck || matches(w.pattern, ev.Record.Key) {
			to = append(to, w)
		}
	}
	f.mu.Unlock()
	delivered := 0
	for _, w := range to {
		f.call(func() {
			f.count(&f.counts.EventsForged)
			delivered++
			w.deliver(ev)
		})
	}
	return delivered
}

// Send passes the write on, or subjects it to its fate.
func (f *Store) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, kvstore.ErrClosed
	}
	f.sends++
	f.counts.Sends++
	if err := f.outage; err != nil {
		f.counts.NotSent++
		f.mu.Unlock()
		return nil, err
	}
	n, rule, rates := f.sends, f.onSend, f.rates
	f.running.Add(1) // under mu, and therefore before Close waits
	f.mu.Unlock()
	defer f.running.Done()

	fate := ByRates
	if rule != nil {
		fate = rule(n, w)
	}
	if fate.Kind == KindByRates {
		fate = rates.Fate(f.seed, n)
	}

	a := &answer{f: f, done: done}
	switch fate.Kind {
	case KindPass:
		f.count(&f.counts.Passed)
		return a.send(w, a.give)
	case KindLoseAnswer:
		return a.send(w, a.lose)
	case KindDelayAnswer:
		return a.send(w, func(ans kvstore.Answer) {
			f.after(fate.After, func() {
				f.count(&f.counts.AnswersDelayed)
				a.give(ans)
			})
		})
	case KindNotSent:
		f.count(&f.counts.NotSent)
		return nil, fate.Err
	case KindRefuse:
		f.count(&f.counts.Refused)
		f.after(0, func() { a.give(kvstore.Answer{Err: fate.Err}) })
	case KindDrop:
		f.count(&f.counts.Dropped)
	case KindDelay:
		f.after(fate.After, func() {
			if f.failure() != nil {
				f.count(&f.counts.Dropped)
				return
			}
			f.count(&f.counts.Delayed)
			// If this fails, the write never arrives, but no caller is waiting for its answer
			// anymore.
			_, _ = f.wrapped.Send(copyOf(w), a.giveUnless(fate.Mute))
		})
	case KindHold:
		f.mu.Lock()
		if !f.closed {
			f.counts.Held++
			f.held = append(f.held, &HeldWrite{N: n, Write: copyOf(w), f: f, done: a.giveUnless(fate.Mute)})
		}
		f.mu.Unlock()
	default:
		panic(fmt.Sprintf("faults: unknown fate %d", fate.Kind))
	}
	return a.forget, nil
}

// copyOf copies a write's value, so that the caller may reuse it before the write is sent.
func copyOf(w kvstore.Write) kvstore.Write {
	w.Value = append([]byte(nil), w.Value...)
	return w
}

// answer passes a write's answer to its caller, unless the caller has forgotten the write.
type answer struct {
	f    *Store
	done func(kvstore.Answer)

	mu        sync.Mutex
	forgotten bool // or given
}

// send sends the write now. The returned function makes the wrapped store forget the write as
// well.
func (a *answer) send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	inner, err := a.f.wrapped.Send(w, done)
	if err != nil {
		return nil, err
	}
	return func() {
		a.forget()
		inner()
	}, nil
}

func (a *answer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten = true
}

func (a *answer) give(ans kvstore.Answer) {
	a.f.call(func() {
		a.mu.Lock()
		over := a.forgotten
		a.forgotten = true
		a.mu.Unlock()
		if !over {
			a.done(ans)
		}
	})
}

func (a *answer) lose(kvstore.Answer) { a.f.count(&a.f.counts.AnswersLost) }

func (a *answer) giveUnless(mute bool) func(kvstore.Answer) {
	if mute {
		return a.lose
	}
	return a.give
}

func (f *Store) count(field *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*field++
}

// call runs fn unless f is closed. Close waits for fn to return.
func (f *Store) call(fn func()) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.running.Add(1)
	f.mu.Unlock()
	defer f.running.Done()
	fn()
}

// after runs fn on its own goroutine after d, unless f is closed by then.
func (f *Store) after(d time.Duration, fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		f.mu.Lock() // this also waits until timer is assigned
		delete(f.timers, timer)
		f.mu.Unlock()
		f.call(fn)
	})
	f.timers[timer] = struct{}{}
}

// Close stops all timers, drops delayed and held writes, ends hanging reads, waits for
// callbacks in progress and closes the wrapped store. Nothing fires after Close returns. Do
// not call it from a callback or a rule. Closing a closed Store does nothing.
func (f *Store) Close() {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.closed = true
	for timer := range f.timers {
		timer.Stop()
	}
	clear(f.timers)
	f.held = nil
	f.mu.Unlock()
	close(f.done)
	f.running.Wait()
	f.wrapped.Close()
}

// matches reports whether a NATS subject matches a pattern, in which "*" stands for one token
// and ">" at the end for one or more.
func matches(pattern, subject string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, tok := range want {
		if tok == ">" && i == len(want)-1 {
			return len(have) > i
		}
		if i >= len(have) || (tok != "*" && tok != have[i]) {
			return false
		}
	}
	return len(want) == len(have)
}
