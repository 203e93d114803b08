package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
)

const (
	// answerWait is how long a read waits on a line that swallows everything. A connection
	// waits just as long.
	answerWait = 5 * time.Second
	// redial is how long a client takes to reconnect.
	redial = 100 * time.Millisecond
)

var (
	errCut      = fmt.Errorf("%w: not sent, the line is cut", kvstore.ErrUnavailable)
	errNoAnswer = fmt.Errorf("%w: no answer on the line", kvstore.ErrUnavailable)
)

// begins is when an in-memory bucket is created. As with a server in a bubble, it cannot be
// the start of synctest's clock, which is in 2000, because sequences count from the year 2016.
var begins = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// InMemory runs fn with an in-memory bucket, in a bubble of fake time without a server. It is
// meant for simulations and tables of faults, which run several times as fast as in a
// testutil.Bubble. Connect clients with [NewLine] or [FaultyInMemory]. Nothing leaves the
// bubble, so several may run at the same time.
func InMemory(t *testing.T, fn func(t *testing.T, m *kvstore.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(begins))
		fn(t, kvstore.NewMemory(kvstore.DefaultBucket))
	})
}

// Line is the connection between clients and an in-memory bucket. A test can disturb it in the
// same ways as a testutil.Link: see Cut, Heal and Blackhole.
//
// There is one difference. The in-memory bucket's watch has seen a notification even if the
// line then loses or delays it, so the silent end of the previous record no longer causes an
// event.
type Line struct {
	memory *kvstore.Memory
	direct kvstore.KV // for writes that arrive after their stores were closed

	mu     sync.Mutex
	cut    bool
	cuts   int // the number of cuts
	hole   bool
	held   []func() // swallowed by the hole, in both directions
	stores map[*holed]*faults.Store
}

// NewLine returns a line to an in-memory bucket.
func NewLine(m *kvstore.Memory) *Line {
	return &Line{memory: m, direct: m.Open(), stores: map[*holed]*faults.Store{}}
}

// NewClient connects a client, with the options of natslock.New.
func (l *Line) NewClient(opts ...natslock.Option) (*natslock.Client, error) {
	return inside.Open(l.store(), opts)
}

func (l *Line) store() *faults.Store {
	h := &holed{KV: l.memory.Open(), l: l, done: make(chan struct{})}
	f := faults.New(h, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stores[h] = f
	if l.cut {
		f.Fail(errCut)
	}
	return f
}

// Close closes the line, and returns the number of stores that its clients left open.
func (l *Line) Close() (left int) {
	l.direct.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stores)
}

// Cut loses everything in transit, and makes all requests fail until [Line.Heal].
func (l *Line) Cut() {
	l.mu.Lock()
	l.cut, l.held = true, nil
	l.cuts++
	l.mu.Unlock()
	l.fail(errCut)
}

// Heal ends a cut after a short delay, and a black hole immediately.
func (l *Line) Heal() {
	l.Blackhole(false)
	l.mu.Lock()
	was, cuts := l.cut, l.cuts
	l.mu.Unlock()
	if !was {
		return
	}
	time.AfterFunc(redial, func() {
		l.mu.Lock()
		over := l.cut && l.cuts == cuts
		if over {
			l.cut = false
		}
		l.mu.Unlock()
		if over {
			l.fail(nil)
		}
	})
}

// Blackhole swallows everything in both directions. When it is switched off, everything
// swallowed arrives in order, even the writes of clients that have since been closed. To lose
// it instead, use [Line.Cut].
func (l *Line) Blackhole(on bool) {
	l.mu.Lock()
	if on {
		l.hole = true
		l.mu.Unlock()
		return
	}
	for len(l.held) > 0 { // later messages queue behind these
		held := l.held
		l.held = nil
		l.mu.Unlock()
		for _, fn := range held {
			fn()
		}
		l.mu.Lock()
	}
	l.hole = false
	l.mu.Unlock()
}

// fail starts or ends an outage for all clients.
func (l *Line) fail(err error) {
	l.mu.Lock()
	stores := slices.Collect(maps.Values(l.stores))
	l.mu.Unlock()
	for _, s := range stores {
		s.Fail(err)
	}
}

// back runs fn to pass something to a client, unless the line has been cut since cuts was
// read.
func (l *Line) back(cuts int, fn func()) {
	l.mu.Lock()
	switch {
	case l.cut || l.cuts != cuts:
	case l.hole:
		l.held = append(l.held, fn)
	default:
		l.mu.Unlock()
		fn()
		return
	}
	l.mu.Unlock()
}

// holed is a client's store beneath the outages. Everything that it sends and receives passes
// through the hole.
type holed struct {
	kvstore.KV
	l    *Line
	done chan struct{}
}

func (s *holed) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	s.l.mu.Lock()
	hole, cuts := s.l.hole, s.l.cuts
	answered := func(a kvstore.Answer) { s.l.back(cuts, func() { done(a) }) }
	if hole {
		w.Value = bytes.Clone(w.Value)
		s.l.held = append(s.l.held, func() {
			_, _ = s.l.direct.Send(w, answered) // an error means that the test has ended
		})
	}
	s.l.mu.Unlock()
	if hole {
		return func() {}, nil
	}
	return s.KV.Send(w, answered)
}

// ask lets a request through, or returns why it got no answer.
func (s *holed) ask(ctx context.Context) error {
	s.l.mu.Lock()
	hole := s.l.hole
	through := make(chan struct{})
	if hole {
		s.l.held = append(s.l.held, func() { close(through) })
	}
	s.l.mu.Unlock()
	if !hole {
		return nil
	}
	wait := time.NewTimer(answerWait)
	defer wait.Stop()
	select {
	case <-through:
		return nil
	case <-wait.C:
		return errNoAnswer
	case <-ctx.Done():
		return errors.Join(errNoAnswer, ctx.Err())
	case <-s.done:
		return kvstore.ErrClosed
	}
}

func (s *holed) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if err := s.ask(ctx); err != nil {
		return kvstore.Record{}, err
	}
	return s.KV.Get(ctx, key, min)
}

func (s *holed) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if err := s.ask(ctx); err != nil {
		return kvstore.Listing{}, err
	}
	return s.KV.List(ctx, pattern, min, opts...)
}

func (s *holed) State(ctx context.Context, pattern string) (kvstore.State, error) {
	if err := s.ask(ctx); err != nil {
		return kvstore.State{}, err
	}
	return s.KV.State(ctx, pattern)
}

func (s *holed) Verify(ctx context.Context) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.KV.Verify(ctx)
}

func (s *holed) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	return s.KV.Watch(pattern, func(ev kvstore.Event) {
		if ev.Kind == kvstore.Expired { // raised by the client's own clock
			deliver(ev)
			return
		}
		s.l.mu.Lock()
		cuts := s.l.cuts
		s.l.mu.Unlock()
		s.l.back(cuts, func() { deliver(ev) })
	})
}

func (s *holed) Close() {
	close(s.done)
	s.l.mu.Lock()
	delete(s.l.stores, s)
	s.l.mu.Unlock()
	s.KV.Close()
}
