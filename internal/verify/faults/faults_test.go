package faults_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// stub is a kvstore.KV that records what reaches it and answers every write immediately.
// It does not imitate a server, because only the injector in front of it is under test.
type stub struct {
	kvstore.KV // nil: a method that is not overridden must not be called

	mu      sync.Mutex
	sent    []kvstore.Write
	watches []func(kvstore.Event)
	tracked int
	stopped int
	forgot  int
	closed  int
}

func (s *stub) Send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, w)
	rev := uint64(len(s.sent))
	go done(kvstore.Answer{Revision: rev})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forgot++
	}, nil
}

func (s *stub) Watch(_ string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, deliver)
	return stubWatch{s}, nil
}

type stubWatch struct{ s *stub }

func (w stubWatch) Track(kvstore.Record) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.tracked++
}

func (w stubWatch) Stop() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.stopped++
}

func (s *stub) Get(context.Context, string, uint64) (kvstore.Record, error) {
	return kvstore.Record{Key: "got"}, nil
}

func (s *stub) List(context.Context, string, uint64, ...kvstore.ListOption) (kvstore.Listing, error) {
	return kvstore.Listing{Revision: 7}, nil
}

func (s *stub) State(context.Context, string) (kvstore.State, error) {
	return kvstore.State{LastRevision: 7}, nil
}
func (s *stub) Verify(context.Context) error                { return nil }
func (s *stub) Current() bool                               { return false }
func (s *stub) Bucket() string                              { return "stub" }
func (s *stub) Healthy() error                              { return errors.New("ill") }
func (s *stub) OnConnection(func(kvstore.ConnState)) func() { return func() {} }
func (s *stub) Close()                                      { s.closed++ }

func (s *stub) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for _, w := range s.sent {
		keys = append(keys, w.Key)
	}
	return keys
}

// result is what a caller of Send sees.
type result struct {
	mu      sync.Mutex
	answers []kvstore.Answer
}

func (r *result) done(a kvstore.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, a)
}

func (r *result) get() []kvstore.Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers
}

// withFaults runs fn in a bubble of its own, without a server.
func withFaults(t *testing.T, fn func(t *testing.T, f *faults.Store, s *stub)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{}
		f := faults.New(s, 1)
		fn(t, f, s)
		f.Close()
	})
}

func TestFates(t *testing.T) {
	broken := errors.New("broken")
	ok := []kvstore.Answer{{Revision: 1}}
	for name, c := range map[string]struct {
		fate        faults.Fate
		now, later  []kvstore.Answer // answers immediately, and after ten seconds
		sentNow     bool
		sentLater   bool
		err         error
		counted     faults.Counts
		countedLate faults.Counts
	}{
		"zero":          {faults.Fate{}, ok, ok, true, true, nil, faults.Counts{Passed: 1}, faults.Counts{Passed: 1}},
		"pass":          {faults.Pass, ok, ok, true, true, nil, faults.Counts{Passed: 1}, faults.Counts{Passed: 1}},
		"by no rates":   {faults.ByRates, ok, ok, true, true, nil, faults.Counts{Passed: 1}, faults.Counts{Passed: 1}},
		"drop":          {faults.Drop, nil, nil, false, false, nil, faults.Counts{Dropped: 1}, faults.Counts{Dropped: 1}},
		"lose answer":   {faults.LoseAnswer, nil, nil, true, true, nil, faults.Counts{AnswersLost: 1}, faults.Counts{AnswersLost: 1}},
		"delay":         {faults.Delay(9 * time.Second), nil, ok, false, true, nil, faults.Counts{}, faults.Counts{Delayed: 1}},
		"silent delay":  {faults.Delay(9 * time.Second).Silent(), nil, nil, false, true, nil, faults.Counts{}, faults.Counts{Delayed: 1, AnswersLost: 1}},
		"long delay":    {faults.Delay(11 * time.Second), nil, nil, false, false, nil, faults.Counts{}, faults.Counts{}},
		"delay answer":  {faults.DelayAnswer(9 * time.Second), nil, ok, true, true, nil, faults.Counts{}, faults.Counts{AnswersDelayed: 1}},
		"refuse":        {faults.Refuse(broken), []kvstore.Answer{{Err: broken}}, []kvstore.Answer{{Err: broken}}, false, false, nil, faults.Counts{Refused: 1}, faults.Counts{Refused: 1}},
		"hold":          {faults.Hold, nil, nil, false, false, nil, faults.Counts{Held: 1}, faults.Counts{Held: 1}},
		"not sent":      {faults.NotSent(broken), nil, nil, false, false, broken, faults.Counts{NotSent: 1}, faults.Counts{NotSent: 1}},
		"silent refuse": {faults.Refuse(broken).Silent(), []kvstore.Answer{{Err: broken}}, []kvstore.Answer{{Err: broken}}, false, false, nil, faults.Counts{Refused: 1}, faults.Counts{Refused: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
				f.OnSend(func(n int, w kvstore.Write) faults.Fate {
					require.Equal(t, 1, n)
					require.Equal(t, "k", w.Key)
					return c.fate
				})
				var r result
				forget, err := f.Send(kvstore.Write{Key: "k"}, r.done)
				require.Equal(t, c.err, err)
				require.Equal(t, c.err == nil, forget != nil)
				synctest.Wait()
				require.Equal(t, c.now, r.get())
				require.Equal(t, c.sentNow, len(s.keys()) == 1)
				c.counted.Sends = 1
				require.Equal(t, c.counted, f.Counts())

				time.Sleep(10 * time.Second)
				require.Equal(t, c.later, r.get())
				require.Equal(t, c.sentLater, len(s.keys()) == 1)
				c.countedLate.Sends = 1
				require.Equal(t, c.countedLate, f.Counts())
			})
		})
	}
}

func TestHeldWrites(t *testing.T) {
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		f.OnSend(func(n int, w kvstore.Write) faults.Fate { return faults.Hold })
		rs := make([]result, 4)
		value := []byte("v")
		for i, key := range []string{"a", "b", "c", "d"} {
			_, err := f.Send(kvstore.Write{Key: key, Value: value}, rs[i].done)
			require.NoError(t, err)
		}
		value[0] = 'x' // the caller may reuse it
		held := f.Held()
		require.Len(t, held, 4)
		require.Equal(t, 3, held[2].N)
		require.Equal(t, "c", held[2].Write.Key)

		require.True(t, held[2].Release())
		require.False(t, held[2].Release())
		held[0].Drop()
		require.False(t, held[0].Release())
		require.Equal(t, []string{"c"}, s.keys())
		require.Equal(t, 2, f.ReleaseHeld())
		require.Zero(t, f.ReleaseHeld())
		synctest.Wait()
		require.Equal(t, []string{"c", "b", "d"}, s.keys())
		require.Equal(t, "v", string(s.sent[1].Value))
		for i, n := range []int{0, 1, 1, 1} {
			require.Len(t, rs[i].get(), n)
		}
		require.Equal(t, faults.Counts{Sends: 4, Held: 4, Released: 3}, f.Counts())
	})
}

func TestForget(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"delay":        faults.Delay(time.Second),
		"delay answer": faults.DelayAnswer(time.Second),
		"hold":         faults.Hold,
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
				f.OnSend(func(int, kvstore.Write) faults.Fate { return fate })
				var r result
				forget, err := f.Send(kvstore.Write{Key: "k"}, r.done)
				require.NoError(t, err)
				forget()
				forget()
				time.Sleep(2 * time.Second)
				f.ReleaseHeld()
				synctest.Wait()
				require.Empty(t, r.get())
				require.Equal(t, []string{"k"}, s.keys(), "the write is applied all the same")
			})
		})
	}
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		forget, err := f.Send(kvstore.Write{Key: "k"}, func(kvstore.Answer) {})
		require.NoError(t, err)
		forget()
		require.Equal(t, 1, s.forgot, "it reaches the store")
	})
}

func TestFaultsClose(t *testing.T) {
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		fates := []faults.Fate{
			faults.Delay(time.Second), faults.DelayAnswer(time.Second), faults.Hold,
			faults.Refuse(kvstore.ErrInFlight),
		}
		f.OnSend(func(n int, _ kvstore.Write) faults.Fate { return fates[n-1] })
		var r result
		for range fates[:3] {
			_, err := f.Send(kvstore.Write{Key: "k"}, r.done)
			require.NoError(t, err)
		}
		synctest.Wait()
		held := f.Held()
		hung := make(chan error)
		f.FailReads(func(faults.ReadOp, string) error { return faults.Hang })
		go func() {
			_, err := f.Get(context.Background(), "k", 0)
			hung <- err
		}()
		var events []kvstore.Event
		_, err := f.Watch(">", func(ev kvstore.Event) { events = append(events, ev) })
		require.NoError(t, err)
		synctest.Wait()

		_, err = f.Send(kvstore.Write{Key: "k"}, func(kvstore.Answer) {})
		require.NoError(t, err)
		f.Close()
		f.Close()
		require.ErrorIs(t, <-hung, kvstore.ErrClosed)
		require.False(t, held[0].Release())
		require.Zero(t, f.ReleaseHeld())
		require.Zero(t, f.Forge(kvstore.Event{Kind: kvstore.Recheck}))
		s.watches[0](kvstore.Event{Kind: kvstore.Put})
		time.Sleep(time.Hour)
		require.Empty(t, r.get())
		require.Empty(t, events)
		require.Len(t, s.keys(), 1, "that of the delayed answer")
		require.Equal(t, 1, s.closed)
		_, err = f.Send(kvstore.Write{}, r.done)
		require.ErrorIs(t, err, kvstore.ErrClosed)
		_, err = f.Watch(">", nil)
		require.ErrorIs(t, err, kvstore.ErrClosed)
	})
}

func TestRandomFates(t *testing.T) {
	run := func(t *testing.T, seed uint64) (c faults.Counts) {
		synctest.Test(t, func(t *testing.T) {
			f := faults.New(&stub{}, seed)
			f.Random(faults.Rates{
				Drop: 0.1, LoseAnswer: 0.1, Delay: 0.1, DelayAnswer: 0.1, Refuse: 0.1, NotSent: 0.1,
				MaxDelay: time.Minute,
			})
			for range 2000 {
				_, err := f.Send(kvstore.Write{}, func(kvstore.Answer) {})
				if err != nil {
					require.ErrorIs(t, err, kvstore.ErrUnavailable)
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			c = f.Counts()
			f.Close()
		})
		return c
	}
	c := run(t, 5)
	require.Equal(t, c, run(t, 5), "the same seed, the same fates")
	require.NotEqual(t, c, run(t, 6))
	require.Equal(t, 2000, c.Sends)
	for _, n := range []int{c.Dropped, c.Delayed, c.AnswersDelayed, c.Refused, c.NotSent} {
		require.InDelta(t, 200, n, 60)
	}
	require.InDelta(t, 300, c.AnswersLost, 80, "those of half the delayed writes included")
	require.InDelta(t, 800, c.Passed, 120)

	f := faults.New(&stub{}, 1)
	require.Panics(t, func() { f.Random(faults.Rates{Drop: 0.6, Refuse: 0.5}) })
}

// A rule may leave some writes to chance.
func TestRuleBesideRates(t *testing.T) {
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		f.Random(faults.Rates{Drop: 1})
		f.OnSend(func(n int, w kvstore.Write) faults.Fate {
			if w.Delete {
				return faults.ByRates
			}
			return faults.Pass
		})
		for i := range 10 {
			_, err := f.Send(kvstore.Write{Delete: i%2 == 0}, func(kvstore.Answer) {})
			require.NoError(t, err)
		}
		f.OnSend(nil)
		_, err := f.Send(kvstore.Write{}, func(kvstore.Answer) {})
		require.NoError(t, err)
		require.Equal(t, faults.Counts{Sends: 11, Passed: 5, Dropped: 6}, f.Counts())
		require.Equal(t, 6, f.Counts().Faults())
	})
}

func TestEvents(t *testing.T) {
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		got := map[string]int{}
		watch := func(pattern string) kvstore.Watch {
			w, err := f.Watch(pattern, func(kvstore.Event) { got[pattern]++ })
			require.NoError(t, err)
			return w
		}
		for _, p := range []string{"a.b", "a.*", "a.>", ">", "a", "a.b.>", "*.*.*", "x.b"} {
			watch(p)
		}
		put := kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{Key: "a.b"}}
		require.Equal(t, 4, f.Forge(put))
		require.Equal(t, map[string]int{"a.b": 1, "a.*": 1, "a.>": 1, ">": 1}, got)
		require.Equal(t, 8, f.Forge(kvstore.Event{Kind: kvstore.Recheck}))
		require.Equal(t, 12, f.Counts().EventsForged)

		clear(got)
		inner := s.watches[0] // of "a.b"
		f.DropAllEvents(true)
		inner(put)
		inner(kvstore.Event{Kind: kvstore.Deleted})
		require.Empty(t, got)
		inner(kvstore.Event{Kind: kvstore.Expired})
		inner(kvstore.Event{Kind: kvstore.Recheck})
		require.Equal(t, 2, got["a.b"])
		f.DropEvents(func(ev kvstore.Event) bool { return ev.Kind == kvstore.Expired })
		inner(put)
		inner(kvstore.Event{Kind: kvstore.Expired})
		require.Equal(t, 3, got["a.b"])
		f.DropAllEvents(false)
		inner(put)
		require.Equal(t, 4, got["a.b"])
		require.Equal(t, 3, f.Counts().EventsDropped)

		f.Random(faults.Rates{DropEvent: 0.5})
		for range 1000 {
			inner(put)
			inner(kvstore.Event{Kind: kvstore.Recheck})
		}
		require.InDelta(t, 1504, got["a.b"], 100)

		clear(got)
		f.Random(faults.Rates{})
		w := watch("late")
		w.Track(kvstore.Record{})
		require.Equal(t, 1, s.tracked)
		w.Stop()
		require.Equal(t, 1, s.stopped)
		require.Equal(t, 1, f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{Key: "late"}}), "only >")
		s.watches[8](put)
		require.Zero(t, got["late"])
	})
}

func TestFailReads(t *testing.T) {
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		reads := map[faults.ReadOp]func(ctx context.Context) error{
			faults.ReadGet: func(ctx context.Context) error {
				r, err := f.Get(ctx, "k", 0)
				require.Equal(t, err == nil, r.Key == "got")
				return err
			},
			faults.ReadList: func(ctx context.Context) error {
				l, err := f.List(ctx, "k", 0)
				require.Equal(t, err == nil, l.Revision == 7)
				return err
			},
			faults.ReadState: func(ctx context.Context) error {
				st, err := f.State(ctx, "k")
				require.Equal(t, err == nil, st.LastRevision == 7)
				return err
			},
			faults.ReadVerify: f.Verify,
		}
		for op, read := range reads {
			require.NoError(t, read(t.Context()))
			var verdict error
			f.FailReads(func(o faults.ReadOp, what string) error {
				require.Equal(t, op, o)
				require.Equal(t, op == faults.ReadVerify, what == "")
				return verdict
			})
			require.NoError(t, read(t.Context()))
			verdict = kvstore.ErrNotFound
			require.ErrorIs(t, read(t.Context()), kvstore.ErrNotFound)
			verdict = faults.Hang
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			start := time.Now()
			err := read(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, kvstore.ErrUnavailable)
			require.Equal(t, 3*time.Second, time.Since(start))
			f.FailReads(nil)
		}
		require.Equal(t, 8, f.Counts().ReadsFailed)
	})
}

func TestOutage(t *testing.T) {
	withFaults(t, func(t *testing.T, f *faults.Store, s *stub) {
		var states []kvstore.ConnState
		stop := f.OnConnection(func(state kvstore.ConnState) { states = append(states, state) })
		var events []kvstore.EventKind
		_, err := f.Watch(">", func(ev kvstore.Event) { events = append(events, ev.Kind) })
		require.NoError(t, err)
		var r result
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(time.Second) })
		_, err = f.Send(kvstore.Write{Key: "late"}, r.done)
		require.NoError(t, err)

		f.Fail(kvstore.ErrUnavailable)
		f.Fail(kvstore.ErrPermission)
		require.Equal(t, []kvstore.ConnState{kvstore.Disconnected}, states, "the beginning is reported once")
		_, err = f.Send(kvstore.Write{Key: "k"}, r.done)
		require.ErrorIs(t, err, kvstore.ErrPermission)
		_, err = f.Get(t.Context(), "k", 0)
		require.ErrorIs(t, err, kvstore.ErrPermission)
		require.ErrorIs(t, f.Verify(t.Context()), kvstore.ErrPermission)
		require.ErrorIs(t, f.Healthy(), kvstore.ErrPermission)
		require.ErrorIs(t, f.Denied("k"), kvstore.ErrPermission)
		for _, kind := range []kvstore.EventKind{kvstore.Put, kvstore.Deleted, kvstore.Recheck, kvstore.Expired} {
			s.watches[0](kvstore.Event{Kind: kind})
		}
		require.Equal(t, []kvstore.EventKind{kvstore.Expired}, events, "of the client's own clock")
		time.Sleep(2 * time.Second)
		require.Empty(t, s.keys(), "a delayed write is lost")

		f.Fail(nil)
		require.Equal(t, []kvstore.ConnState{kvstore.Disconnected, kvstore.Connected}, states)
		require.Equal(t, []kvstore.EventKind{kvstore.Expired, kvstore.Recheck}, events)
		require.NoError(t, f.Verify(t.Context()))
		require.EqualError(t, f.Healthy(), "ill", "the wrapped store answers again")
		require.Equal(t, faults.Counts{Sends: 2, NotSent: 1, Dropped: 1, ReadsFailed: 2, EventsDropped: 3}, f.Counts())
		stop()
		f.Fail(kvstore.ErrUnavailable)
		require.Len(t, states, 2)
	})
}

func TestFaultsPassOnTheRest(t *testing.T) {
	f := faults.New(&stub{}, 1)
	require.Equal(t, "stub", f.Bucket())
	require.EqualError(t, f.Healthy(), "ill")
	require.NotNil(t, f.OnConnection(nil))
}

// Everything runs concurrently, for the race detector.
func TestFaultsConcurrently(t *testing.T) {
	f := faults.New(&stub{}, 1)
	f.Random(faults.Rates{Drop: 0.1, LoseAnswer: 0.2, Delay: 0.2, DelayAnswer: 0.2, Refuse: 0.1,
		MaxDelay: time.Millisecond, DropEvent: 0.5})
	f.OnSend(func(n int, _ kvstore.Write) faults.Fate {
		if n%10 == 0 {
			return faults.Hold
		}
		return faults.ByRates
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				forget, err := f.Send(kvstore.Write{Key: "k"}, func(kvstore.Answer) {})
				if err == nil && i%3 == 0 {
					forget()
				}
				f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{Key: "k"}})
				f.ReleaseHeld()
				_ = f.Counts()
				if i%10 == 0 {
					if w, err := f.Watch("k", func(kvstore.Event) {}); err == nil {
						w.Stop()
					}
				}
			}
		})
	}
	time.AfterFunc(20*time.Millisecond, f.Close)
	wg.Wait()
	f.Close()
}
