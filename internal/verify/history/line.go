package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

const (
	// answerWait is how long a read waits on a line that swallows everything, as long as
	// that of a connection.
	answerWait = 5 * time.Second
	// redial is how long a client takes to connect again.
	redial = 100 * time.Millisecond
)

var (
	openOver = bridge.Open.(func(kvstore.KV, []natslock.Option) (*natslock.Client, error))

	errCut      = fmt.Errorf("%w: not sent, the line is cut", kvstore.ErrUnavailable)
	errNoAnswer = fmt.Errorf("%w: no answer on the line", kvstore.ErrUnavailable)
)

// Line is the connection between clients and a bucket in memory. A test disturbs it as it
// disturbs the bytes of a connection with a testutil.Link: see Cut, Heal and Blackhole.
//
// One thing differs. The watch of a bucket in memory has seen a notification that the line
// then loses or delays, so the silent end of the record before it is no event any more.
type Line struct {
	memory *kvstore.Memory
	direct kvstore.KV // for the writes of stores that are closed when they arrive

	mu     sync.Mutex
	cut    bool
	cuts   int // how often
	hole   bool
	held   []func() // what the hole has swallowed, in both directions
	stores map[*lined]struct{}
	number int // of the last hook
}

// NewLine returns a line to a bucket in memory.
func NewLine(m *kvstore.Memory) *Line {
	return &Line{memory: m, direct: m.Open(), stores: map[*lined]struct{}{}}
}

// NewClient connects a client. The options are those of natslock.New.
func (l *Line) NewClient(opts ...natslock.Option) (*natslock.Client, error) {
	return openOver(l.store(), opts)
}

func (l *Line) store() *lined {
	s := &lined{KV: l.memory.Open(), l: l, done: make(chan struct{}), watches: map[*linedWatch]struct{}{}, hooks: map[int]func(kvstore.ConnState){}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stores[s] = struct{}{}
	return s
}

// Close ends the line, and returns how many stores its clients have left open.
func (l *Line) Close() (left int) {
	l.direct.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.stores)
}

// Cut loses what is under way, and fails all requests until [Line.Heal].
func (l *Line) Cut() {
	l.mu.Lock()
	was := l.cut
	l.cut, l.held = true, nil
	l.cuts++
	l.mu.Unlock()
	if !was {
		l.changed(kvstore.Disconnected)
	}
}

// Heal ends a cut a moment later, and a black hole at once.
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
			l.changed(kvstore.Connected)
		}
	})
}

// Blackhole swallows everything in both directions. Switched off, all of it arrives in
// order, also the writes of clients that are closed. To lose it, use [Line.Cut].
func (l *Line) Blackhole(on bool) {
	l.mu.Lock()
	if on {
		l.hole = true
		l.mu.Unlock()
		return
	}
	for len(l.held) > 0 { // what comes meanwhile is behind it
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

// changed notifies the clients of a change of the connection, and their watches that they
// may have missed something.
func (l *Line) changed(state kvstore.ConnState) {
	var hooks []func(kvstore.ConnState)
	var watches []*linedWatch
	l.mu.Lock()
	for s := range l.stores {
		hooks = append(hooks, slices.Collect(maps.Values(s.hooks))...)
		watches = append(watches, slices.Collect(maps.Keys(s.watches))...)
	}
	l.mu.Unlock()
	for _, fn := range hooks {
		fn(state)
	}
	if state != kvstore.Connected {
		return
	}
	for _, w := range watches {
		w.deliver(kvstore.Event{Kind: kvstore.Recheck})
	}
}

// back lets something reach a client, unless the line has been cut since.
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

// lined is a client's store over a line. Its watches and hooks are under the mutex of that.
type lined struct {
	kvstore.KV
	l       *Line
	done    chan struct{}
	closed  atomic.Bool
	watches map[*linedWatch]struct{}
	hooks   map[int]func(kvstore.ConnState)
}

func (s *lined) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	if s.closed.Load() {
		return nil, kvstore.ErrClosed
	}
	var forgotten atomic.Bool
	s.l.mu.Lock()
	cut, hole, cuts := s.l.cut, s.l.hole, s.l.cuts
	answered := func(a kvstore.Answer) {
		s.l.back(cuts, func() {
			if !forgotten.Load() && !s.closed.Load() {
				done(a)
			}
		})
	}
	if !cut && hole {
		w.Value = bytes.Clone(w.Value)
		s.l.held = append(s.l.held, func() {
			_, _ = s.l.direct.Send(w, answered) // an error says that the test has ended
		})
	}
	s.l.mu.Unlock()
	switch {
	case cut:
		return nil, errCut
	case !hole:
		if _, err := s.KV.Send(w, answered); err != nil {
			return nil, err
		}
	}
	return func() { forgotten.Store(true) }, nil
}

// ask lets a question through, or says why it got no answer.
func (s *lined) ask(ctx context.Context) error {
	s.l.mu.Lock()
	cut, hole := s.l.cut, s.l.hole
	through := make(chan struct{})
	if !cut && hole {
		s.l.held = append(s.l.held, func() { close(through) })
	}
	s.l.mu.Unlock()
	switch {
	case cut:
		return errCut
	case !hole:
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

func (s *lined) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if err := s.ask(ctx); err != nil {
		return kvstore.Record{}, err
	}
	return s.KV.Get(ctx, key, min)
}

func (s *lined) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if err := s.ask(ctx); err != nil {
		return kvstore.Listing{}, err
	}
	return s.KV.List(ctx, pattern, min, opts...)
}

func (s *lined) State(ctx context.Context, pattern string) (kvstore.State, error) {
	if err := s.ask(ctx); err != nil {
		return kvstore.State{}, err
	}
	return s.KV.State(ctx, pattern)
}

func (s *lined) Verify(ctx context.Context) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.KV.Verify(ctx)
}

func (s *lined) Healthy() error {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.cut {
		return errCut
	}
	return nil
}

func (s *lined) OnConnection(fn func(kvstore.ConnState)) (stop func()) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.number++
	n := s.l.number
	s.hooks[n] = fn
	return func() {
		s.l.mu.Lock()
		defer s.l.mu.Unlock()
		delete(s.hooks, n)
	}
}

// linedWatch is a watch over a line.
type linedWatch struct {
	kvstore.Watch
	s       *lined
	stopped atomic.Bool
	to      func(kvstore.Event)
}

func (w *linedWatch) deliver(ev kvstore.Event) {
	if !w.stopped.Load() && !w.s.closed.Load() {
		w.to(ev)
	}
}

func (s *lined) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	w := &linedWatch{s: s, to: deliver}
	inner, err := s.KV.Watch(pattern, func(ev kvstore.Event) {
		if ev.Kind == kvstore.Expired { // of the client's own clock
			w.deliver(ev)
			return
		}
		s.l.mu.Lock()
		cuts := s.l.cuts
		s.l.mu.Unlock()
		s.l.back(cuts, func() { w.deliver(ev) })
	})
	if err != nil {
		return nil, err
	}
	w.Watch = inner
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.watches[w] = struct{}{}
	return w, nil
}

func (w *linedWatch) Stop() {
	w.stopped.Store(true)
	w.s.l.mu.Lock()
	delete(w.s.watches, w)
	w.s.l.mu.Unlock()
	w.Watch.Stop()
}

func (s *lined) Close() {
	if s.closed.Swap(true) {
		return
	}
	close(s.done)
	s.l.mu.Lock()
	delete(s.l.stores, s)
	s.l.mu.Unlock()
	s.KV.Close()
}
