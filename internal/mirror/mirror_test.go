package mirror

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	locks "github.com/natslock/locks/natslock/admin"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// site is an in-memory bucket with its leader and a mirror.
type site struct {
	*Mirror
	t      *testing.T
	bucket *kvstore.Memory
	store  *faults.Store // the mirror's

	mu         sync.Mutex
	away       error // why the leader does not reply
	below      uint64
	connection uint64
	events     []locks.EventType
	turned     []Condition
}

// mirrored runs a mirror in a bubble until the test ends.
func mirrored(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, bucket: kvstore.NewMemory("b"), connection: 1}
	open := bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]().Open
	s.store = faults.New(s.bucket.Open(), 1)
	s.store.FailReads(func(op faults.ReadOp, _ string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if op == faults.ReadState {
			return s.away
		}
		return nil
	})
	s.Mirror = New(Config{
		Bucket: "b", Pattern: ">",
		Open: func(context.Context) (*natslock.Client, error) { return open(s.store, nil) },
		Ask: func(ctx context.Context) (*kvstore.Info, error) {
			st, err := s.store.State(ctx, "")
			if err != nil {
				return nil, err
			}
			i := info(t, nil)
			s.mu.Lock()
			defer s.mu.Unlock()
			i.State.LastSeq = st.LastRevision - s.below
			return i, nil
		},
		Connection: func() uint64 { s.mu.Lock(); defer s.mu.Unlock(); return s.connection },
		Event:      func(ev locks.Event) { s.mu.Lock(); defer s.mu.Unlock(); s.events = append(s.events, ev.Type) },
		Turned:     func(st State) { s.mu.Lock(); defer s.mu.Unlock(); s.turned = append(s.turned, st.Condition) },
	})
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		end()
		require.NoError(t, <-ended)
	})
	time.Sleep(time.Second)
	return s
}

func (s *site) client(opts ...natslock.Option) *natslock.Client {
	c, _ := kit.FaultyInMemory(s.t, s.bucket, 2, opts...)
	return c
}

func (s *site) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *site) is(want Condition) State {
	s.t.Helper()
	st := s.State()
	require.Equal(s.t, want, st.Condition, "%v", st.Why)
	return st
}

func (s *site) lock(name string) locks.Info { return s.Lock(ID{locks.KindMutex, name}) }

// TestWithoutLeader checks that a copy without locks is not live while no leader replies, although the connection is up
// and only requests to the leader fail. Afterwards it catches up.
func TestWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		require.Equal(t, 3, s.is(Live).Current)
		require.Empty(t, s.Below(""))
		begun := time.Now()
		s.set(func() { s.away = fmt.Errorf("%w: status 503", natslock.ErrUnavailable) })
		s.store.DropAllEvents(true)
		time.Sleep(askEach + time.Second)
		st := s.is(NoLeader)
		require.ErrorContains(t, st.Why, "status 503")
		require.False(t, st.Writable())
		require.Zero(t, st.Current)
		require.WithinRange(t, st.Since, begun, begun.Add(askEach))
		time.Sleep(time.Minute)
		require.Equal(t, st.Since, s.is(NoLeader).Since)

		kit.Keep(t, kit.Must(t, s.client().Lock, "l"))
		s.store.DropAllEvents(false)
		s.set(func() { s.away = nil })
		time.Sleep(3 * time.Second)
		require.True(t, s.is(Live).Writable())
		require.NotNil(t, s.lock("l").Holder, "nobody has notified of it")
		s.set(func() { require.Contains(t, s.turned, NoLeader) })
	})
}

// TestEndsWithoutLeader checks that an end known only from this machine's clock is not reported while no leader
// replies, because another server may have confirmed renewals.
func TestEndsWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		c, link := kit.FaultyInMemory(t, s.bucket, 2)
		kit.Keep(t, kit.Must(t, c.Lock, "l"))
		time.Sleep(time.Second)
		require.NotNil(t, s.lock("l").Holder)
		link.Fail(fmt.Errorf("cut off"))
		s.set(func() { s.away = fmt.Errorf("%w: status 503", natslock.ErrUnavailable) })
		time.Sleep(time.Minute)
		s.is(NoLeader)
		s.set(func() { require.NotContains(t, s.events, locks.EventExpired) })
		require.NotNil(t, s.lock("l").Holder)
	})
}

// TestSilentLeader checks that an unanswered question counts as having no leader.
func TestSilentLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		s.is(Live)
		s.set(func() { s.away = faults.Hang })
		time.Sleep(askEach + answerTime + time.Second)
		s.is(NoLeader)
	})
}

// TestConnection checks that after a doubt a mirror is stale until the locks have been listed again.
func TestConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		s.is(Live)
		lost := fmt.Errorf("lost the connection")
		s.set(func() { s.connection = 0 })
		s.store.Fail(lost)
		s.Doubt(lost)
		time.Sleep(time.Minute)
		require.ErrorIs(t, s.is(Stale).Why, lost)
		kit.Keep(t, kit.Must(t, s.client().Lock, "l"))
		s.set(func() { s.connection = 2 })
		s.store.Fail(nil)
		time.Sleep(2 * time.Second)
		s.is(Live)
		require.NotNil(t, s.lock("l").Holder)
		s.set(func() { require.NotContains(t, s.turned, NoLeader, "the question was lost with the connection") })
	})
}

// TestQuestionLostWithConnection checks that a question lost along with its connection says nothing about the leader,
// even if the next connection is up by then.
func TestQuestionLostWithConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		s.set(func() { s.away = faults.Hang })
		s.Doubt(fmt.Errorf("lost the connection"))
		time.Sleep(time.Second)
		s.set(func() { s.connection, s.away = 2, nil })
		time.Sleep(answerTime + listEach + time.Second)
		s.is(Live)
		s.set(func() { require.NotContains(t, s.turned, NoLeader) })
	})
}

// TestRestored checks that a bucket whose revisions are below those already seen is unfit for taking locks.
func TestRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		c := s.client()
		for range 10 {
			kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		}
		s.is(Live)
		s.set(func() { s.below = 5 })
		time.Sleep(askEach + 3*time.Second)
		require.ErrorContains(t, s.is(Unfit).Why, "restored from a backup")
		s.set(func() { s.below = 0 })
		time.Sleep(3 * time.Second)
		s.is(Live)
	})
}

// TestPlaces checks that a place disappears when its waiter gets the lock, gives up, or dies. Goroutines of the
// holder's own client have no places; the holder's record counts them instead.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mirrored(t)
		a, b := s.client(natslock.WithOwner("w")), s.client(natslock.WithOwner("w")) // one owner, one process
		dead, link := kit.FaultyInMemory(t, s.bucket, 3, natslock.WithOwner("dead"))
		for range 20 {
			held := kit.Must(t, a.Lock, "l")
			_, err := b.Lock(t.Context(), "l", natslock.MaxWait(300*time.Millisecond))
			require.ErrorIs(t, err, natslock.ErrTimeout)
			next := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return b.Lock(ctx, "l") })
			time.Sleep(100 * time.Millisecond)
			require.Len(t, s.lock("l").Queue, 1)
			kit.Unlock(t, held)
			taken := next.Granted(t)
			time.Sleep(100 * time.Millisecond)
			require.Empty(t, s.lock("l").Queue)
			kit.Unlock(t, taken)
		}
		time.Sleep(time.Second)
		require.Empty(t, s.Below(""))

		held := kit.Must(t, a.Lock, "l")
		waits, giveUp := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() { _, _ = a.Lock(waits, "l") })
		}
		waiting.Go(func() { _, _ = dead.Lock(waits, "l") })
		time.Sleep(time.Minute)
		require.Equal(t, 3, s.lock("l").Holder.Waiting)
		require.Len(t, s.lock("l").Queue, 1, "it is renewed")
		link.Fail(fmt.Errorf("cut off"))
		time.Sleep(time.Minute)
		require.Empty(t, s.lock("l").Queue)
		giveUp()
		waiting.Wait()
		kit.Unlock(t, held)
	})
}
