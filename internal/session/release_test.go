package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// slow is a service that accepts a limited number of writes per second, in order.
type slow struct {
	kvstore.KV

	mu        sync.Mutex
	pause     time.Duration // per write; 0: no pause
	queue     []func()
	deletions int
	forgotten int
	wake      chan struct{}
}

func (s *slow) carry(rate int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = time.Second / time.Duration(rate)
}

func (s *slow) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	w.Value = bytes.Clone(w.Value)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.Delete {
		s.deletions++
	}
	if s.pause == 0 {
		return s.KV.Send(w, done)
	}
	wanted := true
	s.queue = append(s.queue, func() {
		_, err := s.KV.Send(w, func(a kvstore.Answer) {
			s.mu.Lock()
			answer := wanted
			s.mu.Unlock()
			if answer {
				done(a)
			}
		})
		if err != nil {
			done(kvstore.Answer{Err: err})
		}
	})
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		wanted = false
		s.forgotten++
	}, nil
}

func (s *slow) run(end <-chan struct{}) {
	for {
		s.mu.Lock()
		var next func()
		if len(s.queue) > 0 {
			next, s.queue = s.queue[0], s.queue[1:]
		}
		pause := s.pause
		s.mu.Unlock()
		if next == nil {
			select {
			case <-s.wake:
				continue
			case <-end:
				return
			}
		}
		time.Sleep(pause)
		next()
	}
}

// slowly runs fn with a session that holds n leases, on a service that from then on accepts
// rate writes per second.
func slowly(t *testing.T, rate, n int, fn func(t *testing.T, s *session.Session, kv *slow, held []*session.Lease)) {
	synctest.Test(t, func(t *testing.T) {
		kv := &slow{KV: kvstore.NewMemory(kvstore.DefaultBucket).Open(), wake: make(chan struct{}, 1)}
		end := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { kv.run(end) })
		defer wg.Wait()
		defer close(end)
		b := bucket.New(kv, "", nil)
		s := session.New(b, session.Config{})
		held := make([]*session.Lease, n)
		for i := range held {
			held[i] = s.Hold(claim(t, b, fmt.Sprint(i)), time.Time{})
			held[i].Admit(&session.Holder{}, session.Admission{Parent: t.Context()})
		}
		defer s.Close(t.Context())
		kv.carry(rate)
		fn(t, s, kv, held)
	})
}

// released releases leases simultaneously and returns how many releases were confirmed.
func released(t *testing.T, leases []*session.Lease) (confirmed int) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, l := range leases {
		all.Go(func() {
			err := l.Release(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				confirmed++
			} else if !errors.Is(err, bucket.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return confirmed
}

// Of many simultaneous releases, as many are confirmed as the service can answer within the
// release timeout. The others continue in the background, and none is sent again merely
// because its reply is pending.
func TestReleaseOfMany(t *testing.T) {
	const rate, n = 400, 4000
	slowly(t, rate, n, func(t *testing.T, _ *session.Session, kv *slow, held []*session.Lease) {
		begun := time.Now()
		confirmed := released(t, held)
		require.Less(t, time.Since(begun), session.DefaultReleaseTimeout+time.Second)
		possible := rate * int(session.DefaultReleaseTimeout/time.Second)
		require.GreaterOrEqual(t, confirmed, possible*9/10)
		time.Sleep(n*time.Second/rate - time.Since(begun) + 2*time.Second)
		left, err := kv.List(t.Context(), "lock.>", 0)
		require.NoError(t, err)
		require.Empty(t, left.Records, "records that nobody holds")
		require.Less(t, kv.deletions, n*11/10)
	})
}

// Releases never keep a lock from being renewed if the service can carry the renewals.
func TestReleaseOfManyBesideHeld(t *testing.T) {
	const rate, n, rest = 200, 2000, 500 // 100 renewals a second
	slowly(t, rate, n+rest, func(t *testing.T, _ *session.Session, _ *slow, held []*session.Lease) {
		released(t, held[:n])
		time.Sleep(session.DefaultTTL)
		lost := 0
		for _, l := range held[n:] {
			if state, _, _ := l.Status(); state != session.Held {
				lost++
			}
		}
		require.Zero(t, lost)
		require.Equal(t, rest, released(t, held[n:]))
	})
}

// Leases without a holder, and places, take turns too when they end simultaneously.
func TestLeaveOfMany(t *testing.T) {
	const rate, n = 400, 2000
	slowly(t, rate, n, func(t *testing.T, _ *session.Session, kv *slow, held []*session.Lease) {
		begun := time.Now()
		for _, l := range held {
			defer func(gone <-chan struct{}) { <-gone }(l.Leave(record.StatusGone))
		}
		time.Sleep(n*time.Second/rate - time.Since(begun) + time.Second)
		left, err := kv.List(t.Context(), "lock.>", 0)
		require.NoError(t, err)
		require.Empty(t, left.Records, "records that nobody holds")
		require.Less(t, kv.deletions, n*51/50)
	})
}

// The reply to a release that nobody waits for any more is dropped. A release that is still
// queued ends with the client.
func TestReleaseTooLate(t *testing.T) {
	slowly(t, 1, 100, func(t *testing.T, s *session.Session, kv *slow, held []*session.Lease) {
		require.LessOrEqual(t, released(t, held), 5)
		require.Positive(t, kv.forgotten)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begun := time.Now()
		s.Close(ctx)
		require.LessOrEqual(t, time.Since(begun), 2*session.DefaultReleaseTimeout)
	})
}
