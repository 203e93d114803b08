package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// cyclesVar sets how many cycles of each kind TestAnswersOnCluster runs.
const cyclesVar = "NATSLOCK_ANSWER_CYCLES"

// want returns an error describing how err differs from target, or nil if it does not.
func want(err, target error) error {
	switch {
	case target == nil && err != nil:
		return err
	case target != nil && err == nil:
		return fmt.Errorf("nil, must match %q", target)
	case !errors.Is(err, target):
		return fmt.Errorf("%w, must match %q", err, target)
	}
	return nil
}

// freed unlocks what was acquired after another client released the lock.
func freed(l *natslock.Lock, err error) error {
	if err == nil {
		err = l.Unlock(context.Background())
	}
	return err
}

// heldBy checks that a one-shot acquire is refused, and that the error names l as the holder.
func heldBy(l *natslock.Lock, got *natslock.Lock, err error) error {
	if err == nil {
		return errors.Join(errors.New("granted beside a holder"), got.Unlock(context.Background()))
	}
	locked, ok := errors.AsType[*natslock.LockedError](err)
	if !ok || locked.Holder == nil || locked.Holder.Token != l.Token() {
		return fmt.Errorf("%w, must name token %d", err, l.Token())
	}
	return nil
}

// answerKinds are changes that client a makes and the server acknowledges, each followed by a query
// from client b, which is connected to another server. Client c is connected to the third. An error
// means that the reply was wrong.
var answerKinds = map[string]func(t *testing.T, a, b, c *peer, name string) error{
	"Break of a holder": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.c.Lock, name)
		err := admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: l.ID(), Reason: "test"})
		return errors.Join(err, end(l, err == nil))
	},
	"Break of a reader": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.RLock, name)
		err := admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindRW, Name: name, ID: l.ID(), Reason: "test"})
		return errors.Join(err, end(l, err == nil))
	},
	"Break of a writer": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.Lock, name)
		err := admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindRW, Name: name, ID: l.ID(), Reason: "test"})
		return errors.Join(err, end(l, err == nil))
	},
	"Break after the unlock of a broken lock": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.c.Lock, name)
		if err := errors.Join(admin.New(a.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: l.ID(), Reason: "test"}), end(l, true)); err != nil {
			return err
		}
		return want(admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: l.ID(), Reason: "test"}), natslock.ErrReleased)
	},
	"Break of an earlier holder": func(t *testing.T, a, b, c *peer, name string) error {
		before := kit.Must(t, c.c.Lock, name)
		kit.Unlock(t, before)
		l := kit.Must(t, a.c.Lock, name)
		err := want(admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: before.ID(), Reason: "test"}), natslock.ErrReleased)
		return errors.Join(err, end(l, false))
	},
	"TryLock after Unlock": func(t *testing.T, a, b, _ *peer, name string) error {
		kit.Unlock(t, kit.Must(t, a.c.Lock, name))
		return freed(b.c.TryLock(t.Context(), name))
	},
	"TryLock after Lock": func(t *testing.T, a, b, c *peer, name string) error {
		kit.Unlock(t, kit.Must(t, c.c.Lock, name))
		l := kit.Must(t, a.c.Lock, name)
		got, err := b.c.TryLock(t.Context(), name)
		return errors.Join(heldBy(l, got, err), end(l, false))
	},
	"TryLock behind a waiter that has given up": func(t *testing.T, a, b, c *peer, name string) error {
		l := kit.Must(t, a.c.Lock, name)
		gaveUp(t, a, func(ctx context.Context) error {
			_, err := c.c.Lock(ctx, name)
			return err
		}, admin.KindMutex, name)
		kit.Unlock(t, l)
		return freed(b.c.TryLock(t.Context(), name))
	},
	"TryLock after a waiter was granted and has unlocked": func(t *testing.T, a, b, c *peer, name string) error {
		l := kit.Must(t, a.c.Lock, name)
		done := make(chan error, 1)
		go func() { done <- freed(c.c.Lock(t.Context(), name)) }()
		queued(t, a, admin.KindMutex, name, 1)
		kit.Unlock(t, l)
		require.NoError(t, kit.Receive(t, done, "the waiter"))
		queued(t, a, admin.KindMutex, name, 0)
		return freed(b.c.TryLock(t.Context(), name))
	},
	"write TryLock after RUnlock": func(t *testing.T, a, b, _ *peer, name string) error {
		kit.Unlock(t, kit.Must(t, a.RLock, name))
		return freed(b.TryLock(t.Context(), name))
	},
	"write TryLock after RLock": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.RLock, name)
		got, err := b.TryLock(t.Context(), name)
		return errors.Join(heldBy(l, got, err), end(l, false))
	},
	"write TryLock after Unlock": func(t *testing.T, a, b, _ *peer, name string) error {
		kit.Unlock(t, kit.Must(t, a.Lock, name))
		return freed(b.TryLock(t.Context(), name))
	},
	"TryRLock after Unlock": func(t *testing.T, a, b, _ *peer, name string) error {
		kit.Unlock(t, kit.Must(t, a.Lock, name))
		return freed(b.TryRLock(t.Context(), name))
	},
	"TryRLock after Lock": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.Lock, name)
		got, err := b.TryRLock(t.Context(), name)
		return errors.Join(heldBy(l, got, err), end(l, false))
	},
	"TryRLock behind a writer that has given up": func(t *testing.T, a, b, c *peer, name string) error {
		l := kit.Must(t, a.RLock, name)
		gaveUp(t, a, func(ctx context.Context) error {
			_, err := c.Lock(ctx, name)
			return err
		}, admin.KindRW, name)
		err := freed(b.TryRLock(t.Context(), name))
		return errors.Join(err, end(l, false))
	},
	"TryRLock after a refused write TryLock": func(t *testing.T, a, b, c *peer, name string) error {
		l := kit.Must(t, a.RLock, name)
		got, err := c.TryLock(t.Context(), name)
		return errors.Join(heldBy(l, got, err), freed(b.TryRLock(t.Context(), name)), end(l, false))
	},
	"Inspect after Lock and Unlock": func(t *testing.T, a, b, _ *peer, name string) error {
		l := kit.Must(t, a.c.Lock, name)
		info, err := admin.New(b.c).Inspect(t.Context(), admin.KindMutex, name)
		if err == nil && (info.Holder == nil || info.Holder.Token != l.Token()) {
			err = fmt.Errorf("inspected holder %+v, must have token %d", info.Holder, l.Token())
		}
		kit.Unlock(t, l)
		info, again := admin.New(b.c).Inspect(t.Context(), admin.KindMutex, name)
		if again == nil && info.Holder != nil {
			again = fmt.Errorf("inspected holder with token %d, must be none", info.Holder.Token)
		}
		return errors.Join(err, again)
	},
}

// end unlocks l and checks the result: ErrBroken if the lock was broken, and no error otherwise.
func end(l *natslock.Lock, broken bool) error {
	if broken {
		return want(l.Unlock(context.Background()), natslock.ErrBroken)
	}
	return want(l.Unlock(context.Background()), nil)
}

// queued waits until client p sees n clients in the queue.
func queued(t *testing.T, p *peer, kind admin.Kind, name string, n int) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("%d queued", n), func() bool {
		info, err := admin.New(p.c).Inspect(t.Context(), kind, name)
		return err == nil && len(info.Queue) == n && (kind == admin.KindMutex || info.Holder == nil || n > 0)
	})
}

// gaveUp lets a client queue and give up. It returns once client p sees that the server has deleted
// everything the client left behind.
func gaveUp(t *testing.T, p *peer, lock func(context.Context) error, kind admin.Kind, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- lock(ctx) }()
	kit.Eventually(t, "a waiter", func() bool {
		info, err := admin.New(p.c).Inspect(t.Context(), kind, name)
		return err == nil && (len(info.Queue) == 1 || kind == admin.KindRW && info.Holder != nil)
	})
	cancel()
	require.ErrorIs(t, kit.Receive(t, done, "the waiter"), natslock.ErrTimeout)
	queued(t, p, kind, name, 0)
}

// TestAnswersOnCluster queries three replicas right after another client's change was acknowledged.
// Every reply must be true, whichever replica lags.
func TestAnswersOnCluster(t *testing.T) {
	tier.Proof(t)
	cycles := 60
	if v := os.Getenv(cyclesVar); v != "" {
		var err error
		cycles, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	cl := testutil.RunCluster(t, 3)
	var peers []*peer
	for i := range 3 {
		peers = append(peers, newPeer(t, cl.ConnectTo(i), uint64(i), r3, natslock.WithOwner(fmt.Sprint(i))))
	}
	for kind, cycle := range answerKinds {
		t.Run(kind, func(t *testing.T) {
			wrong := 0
			begun := time.Now()
			for i := range cycles {
				// Use names that these clients have used a moment ago as well as new ones.
				name := fmt.Sprintf("%s %d", kind, i%8)
				if i%2 == 0 {
					name = fmt.Sprintf("%s new %d", kind, i)
				}
				if err := cycle(t, peers[i%3], peers[(i+1)%3], peers[(i+2)%3], name); err != nil {
					if wrong++; wrong <= 3 {
						t.Errorf("cycle %d: %v", i, err)
					}
				}
			}
			t.Logf("%d wrong answers in %d cycles, %v", wrong, cycles, time.Since(begun).Round(time.Millisecond))
		})
	}
}

// lateLeader is a replicated store whose leader has applied nothing after a certain revision,
// although the followers have.
type lateLeader struct {
	kvstore.KV
	last atomic.Uint64 // 0 if the leader has applied everything
}

func (*lateLeader) Alone() bool { return false }

func (s *lateLeader) State(ctx context.Context, pattern string) (kvstore.State, error) {
	st, err := s.KV.State(ctx, pattern)
	if last := s.last.Load(); last > 0 {
		st.LastRevision = min(st.LastRevision, last)
	}
	return st, err
}

// TestViewsWaitForLeader lets a follower show that a holder has left before the leader has applied
// that, so that the leader would still refuse an acquire. A view that shows a free lock waits for
// the leader, but for at most a second.
func TestViewsWaitForLeader(t *testing.T) {
	holder := func(p *peer) acquireFunc { return p.c.Lock }
	reader := func(p *peer) acquireFunc { return p.RLock }
	inspect := func(kind admin.Kind) func(context.Context, *natslock.Client, *natslock.Lock) error {
		return func(ctx context.Context, c *natslock.Client, _ *natslock.Lock) error {
			info, err := admin.New(c).Inspect(ctx, kind, "x")
			if err == nil && (info.Holder != nil || len(info.Readers) > 0) {
				return errors.New("it shows the lock as held")
			}
			return err
		}
	}
	breaks := func(kind admin.Kind) func(context.Context, *natslock.Client, *natslock.Lock) error {
		return func(ctx context.Context, c *natslock.Client, l *natslock.Lock) error {
			err := admin.New(c).Break(ctx, admin.BreakRequest{Kind: kind, Name: "x", ID: l.ID(), Reason: "test"})
			if ctx.Err() != nil {
				return err
			}
			return want(err, natslock.ErrReleased)
		}
	}
	for name, c := range map[string]struct {
		take func(*peer) acquireFunc
		view func(context.Context, *natslock.Client, *natslock.Lock) error
	}{
		"Inspect of a holder": {holder, inspect(admin.KindMutex)},
		"Inspect of a reader": {reader, inspect(admin.KindRW)},
		"Break of a holder":   {holder, breaks(admin.KindMutex)},
		"Break of a reader":   {reader, breaks(admin.KindRW)},
		"List": {holder, func(ctx context.Context, c *natslock.Client, _ *natslock.Lock) error {
			for info, err := range admin.New(c).List(ctx, ">") {
				if err != nil {
					return err
				}
				return fmt.Errorf("it lists %v", info)
			}
			return nil
		}},
		"the holder alone": {holder, func(ctx context.Context, c *natslock.Client, _ *natslock.Lock) error {
			h, _, err := bridge.Admin[*natslock.Client, *admin.Holder, admin.Info, admin.Event]().Holder(ctx, c, "x")
			if h != nil {
				return fmt.Errorf("it shows %v", h)
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				store := &lateLeader{}
				a := newPeer(t, s.Connect(), 0)
				b := newPeerOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV {
					store.KV = kv
					return store
				})
				release := func() *natslock.Lock {
					store.last.Store(0)
					l := kit.Must(t, c.take(a), "x")
					st, err := store.State(t.Context(), "")
					require.NoError(t, err)
					store.last.Store(st.LastRevision)
					kit.Unlock(t, l)
					return l
				}
				l := release()
				done := make(chan error, 1)
				go func() { done <- c.view(t.Context(), b.c, l) }()
				time.Sleep(900 * time.Millisecond)
				require.Empty(t, done, "ahead of the leader")
				store.last.Store(0)
				require.NoError(t, kit.Receive(t, done, "the view"))

				l = release()
				begun := time.Now()
				require.NoError(t, c.view(t.Context(), b.c, l))
				require.InDelta(t, time.Second, time.Since(begun), float64(50*time.Millisecond))

				l = release()
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				require.ErrorIs(t, c.view(ctx, b.c, l), context.DeadlineExceeded)
			})
		})
	}
}
