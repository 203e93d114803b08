package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/testutil"
)

// TestMemoryIsLikeAServer makes the same random requests to a Memory and to a Store and
// compares the replies and the notifications.
func TestMemoryIsLikeAServer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		random := rand.New(rand.NewPCG(seed, 0))
		memory := kvstore.NewMemory("natslock").Open()
		defer memory.Close()
		sides := []*side{newSide(t, memory), newSide(t, open(t, s.Connect(), kvstore.Config{}))}
		keys := []string{"a", "a.x", "a.y", "b", "b.x.y", "c"}
		patterns := []string{"a", "a.*", "a.>", ">", "*", "*.x", "b.*.y", "b.>", "d"}
		last := map[string]uint64{} // relative to the base
		counts := map[string]int{}
		for range 2000 {
			var ask func(s *side) string
			key, pattern := keys[random.IntN(len(keys))], patterns[random.IntN(len(patterns))]
			switch random.IntN(5) {
			case 0, 1:
				w := kvstore.Write{Key: key, Value: []byte{byte(random.IntN(256))}, Delete: random.IntN(3) == 0}
				if ttl := []time.Duration{0, 1, 1500 * time.Millisecond, 62 * time.Second}[random.IntN(4)]; ttl > 0 || w.Delete {
					w.TTL = ttl
				} else {
					w.TTL = time.Hour
				}
				if random.IntN(4) == 0 {
					w.Guard = keys[random.IntN(len(keys))]
				}
				expected := last[key]
				if w.Guard != "" {
					expected = last[w.Guard]
				}
				switch random.IntN(6) {
				case 0:
					expected = 0
				case 1:
					expected += uint64(random.IntN(3))
				}
				ask = func(s *side) string {
					w := w
					if expected > 0 {
						w.Expect = s.base + expected
					}
					a := send(t, s.kv, w)
					if a.Err == nil {
						last[key] = a.Revision - s.base
					}
					conflict, refused := errors.AsType[*kvstore.ConflictError](a.Err)
					if refused && s.kv == memory {
						last[conflict.Key] = s.since(conflict.Last) // so that some writes pass
						if w.Guard != "" {
							last[w.Guard] = s.since(conflict.Last)
						}
					}
					if refused {
						return fmt.Sprint("refused ", w.Key, " ", w.Guard, " ", s.since(conflict.Last), " ", errors.Is(a.Err, kvstore.ErrExists))
					}
					counts["writes"]++
					return fmt.Sprint("written", s.since(a.Revision), a.Err)
				}
			case 2:
				ask = func(s *side) string {
					r, err := s.kv.Get(t.Context(), key, 0)
					return fmt.Sprint("get", s.show(r), errors.Is(err, kvstore.ErrNotFound))
				}
			case 3:
				from, atMost, beside, also := uint64(random.IntN(3)), random.IntN(4), random.IntN(2) == 0, random.IntN(3) == 0
				if from > 0 || also {
					beside = false
				}
				if also {
					atMost = 0
				}
				ask = func(s *side) string {
					var opts []kvstore.ListOption
					if from > 0 {
						opts = append(opts, kvstore.From(s.base+last[key]))
					}
					if atMost > 0 {
						opts = append(opts, kvstore.AtMost(atMost))
					}
					if beside {
						opts = append(opts, kvstore.Beside(key))
					}
					if also {
						opts = append(opts, kvstore.Also(key))
					}
					l, err := s.kv.List(t.Context(), pattern, 0, opts...)
					check(t, err)
					counts["listed"] += len(l.Records)
					return fmt.Sprint("list", s.show(l.Records...), s.show(l.Beside), l.More, l.Left)
				}
			case 4:
				if random.IntN(2) == 0 {
					time.Sleep(4 * time.Second) // so that no record ends within the second by which a server may be late
				}
				ask = func(s *side) string {
					st, err := s.kv.State(t.Context(), pattern)
					check(t, err)
					slices.Sort(st.Keys)
					return fmt.Sprint("state", s.since(st.LastRevision), st.Keys, st.Replicas, st.Complete)
				}
			}
			if got, want := ask(sides[0]), ask(sides[1]); got != want {
				t.Fatalf("a Memory answers\n%s\nand a server\n%s", got, want)
			}
			synctest.Wait()
			got, want := sides[0].take(), sides[1].take()
			equal(t, "events", fmt.Sprint(got), fmt.Sprint(want))
			counts["events"] += len(got)
		}
		for _, what := range []string{"writes", "listed", "events"} {
			if counts[what] < 300 {
				t.Fatalf("%d %s", counts[what], what)
			}
		}
	})
}

// side is one of the two stores being compared.
type side struct {
	kv     kvstore.KV
	base   uint64 // the last revision before the test
	mu     sync.Mutex
	events []string
}

func newSide(t *testing.T, kv kvstore.KV) *side {
	st, err := kv.State(t.Context(), "")
	check(t, err)
	s := &side{kv: kv, base: st.LastRevision}
	for _, pattern := range []string{"a.>", "*"} {
		w, err := kv.Watch(pattern, func(e kvstore.Event) {
			s.mu.Lock() // several records may end simultaneously
			defer s.mu.Unlock()
			s.events = append(s.events, fmt.Sprint(pattern, e.Kind, s.show(e.Record), s.show(e.Before)))
		})
		check(t, err)
		t.Cleanup(w.Stop)
		w.Track(kvstore.Record{})
	}
	synctest.Wait()
	return s
}

// take returns the events since the last call, sorted because two records can end
// simultaneously.
func (s *side) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	slices.Sort(events)
	return events
}

func (s *side) since(revision uint64) uint64 {
	if revision == 0 {
		return 0
	}
	return revision - s.base
}

func (s *side) show(records ...kvstore.Record) (all []string) {
	for _, r := range records {
		all = append(all, fmt.Sprint(r.Key, r.Value, s.since(r.Revision), r.TTL, r.Deleted))
	}
	return all
}

// A closed store no longer answers anything but leaves the records to others.
func TestMemoryClosed(t *testing.T) {
	m := kvstore.NewMemory("natslock")
	s, other := m.Open(), m.Open()
	defer other.Close()
	create(t, s, "a", "1")
	_, err := s.Watch("a", func(kvstore.Event) { t.Error("a notification after Close") })
	check(t, err)
	s.Close()
	s.Close()
	_, err = s.Send(kvstore.Write{Key: "b", TTL: ttl}, func(kvstore.Answer) { t.Error("an answer after Close") })
	wantErr(t, err, kvstore.ErrClosed)
	_, err = s.Get(t.Context(), "a", 0)
	wantErr(t, err, kvstore.ErrClosed)
	_, err = s.List(t.Context(), ">", 0)
	wantErr(t, err, kvstore.ErrClosed)
	_, err = s.State(t.Context(), "")
	wantErr(t, err, kvstore.ErrClosed)
	_, err = s.Watch("a", func(kvstore.Event) {})
	wantErr(t, err, kvstore.ErrClosed)
	r, err := other.Get(t.Context(), "a", 0)
	check(t, err)
	a := send(t, other, kvstore.Write{Key: "a", Value: []byte("2"), Expect: r.Revision, TTL: ttl})
	check(t, a.Err)
}

// A Memory refuses the writes and reads that a Store refuses before any I/O.
func TestMemoryRefuses(t *testing.T) {
	s := kvstore.NewMemory("natslock").Open()
	defer s.Close()
	for _, w := range []kvstore.Write{{Key: "a.*", TTL: ttl}, {Key: "a"}, {Key: "a", TTL: ttl, Guard: ">"}} {
		_, err := s.Send(w, func(kvstore.Answer) { t.Error("an answer") })
		if err == nil {
			t.Fatalf("%+v was sent", w)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ended, "a", 0)
	wantErr(t, err, context.Canceled)
	_, err = s.List(t.Context(), "a.", 0)
	wantErr(t, err, kvstore.ErrInvalidKey)
	_, err = s.State(t.Context(), ".")
	wantErr(t, err, kvstore.ErrInvalidKey)
	_, err = s.Watch("", func(kvstore.Event) {})
	wantErr(t, err, kvstore.ErrInvalidKey)
	_, err = s.Get(t.Context(), "*", 0)
	wantErr(t, err, kvstore.ErrInvalidKey)
}

// A caller that has lost interest gets no reply.
func TestMemoryForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kvstore.NewMemory("natslock").Open()
		defer s.Close()
		busy := make(chan struct{})
		_, err := s.Send(kvstore.Write{Key: "a", TTL: ttl}, func(kvstore.Answer) { <-busy })
		check(t, err)
		forget, err := s.Send(kvstore.Write{Key: "b", TTL: ttl}, func(kvstore.Answer) { t.Error("an answer") })
		check(t, err)
		forget()
		close(busy)
		synctest.Wait()
		_, err = s.Get(t.Context(), "b", 0)
		check(t, err)
	})
}

// The ended records of many names do not occupy memory for long.
func TestMemorySweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := kvstore.NewMemory("natslock")
		s := m.Open()
		defer s.Close()
		for i := range 10_000 {
			check(t, send(t, s, kvstore.Write{Key: fmt.Sprint(i), TTL: time.Second}).Err)
			time.Sleep(time.Second)
		}
		if n := m.Records(); n > 100 {
			t.Fatalf("%d records", n)
		}
	})
}
