//go:build unix

package cluster_test

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// turns records the grants of a mutex by the server's clock, and how long it was free before each.
type turns struct {
	mu    sync.Mutex
	freed time.Time // zero while the mutex is held
	all   []turn
}

type turn struct {
	at   time.Time
	free time.Duration
}

func tapTurns(t testing.TB, store *kvstore.Store, key string) *turns {
	t.Helper()
	x := &turns{}
	watch, err := store.Watch(key, func(ev kvstore.Event) {
		x.mu.Lock()
		defer x.mu.Unlock()
		switch at := ev.Record.Time; {
		case ev.Kind == kvstore.Deleted:
			x.freed = at
		case ev.Kind == kvstore.Put && !x.freed.IsZero():
			x.all = append(x.all, turn{at, at.Sub(x.freed)})
			x.freed = time.Time{}
		}
	})
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	return x
}

// since returns the turns that began between begin and end.
func (x *turns) since(begin, end time.Time) (some []turn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, u := range x.all {
		if u.at.After(begin) && u.at.Before(end) {
			some = append(some, u)
		}
	}
	return some
}

// TestDeadFirstKilled kills the processes at the head of a mutex's queue on three servers while the
// processes behind them contend for it. The lock must be granted out of turn once for each dead
// process and then pass from hand to hand as before, even though the places of the dead would last
// for seconds longer. Behind two that have just died, the next waiter may learn of the free lock
// only from its timer (docs/protocol, out of turn), so the first pause may then be longer.
func TestDeadFirstKilled(t *testing.T) {
	tier.Proof(t)
	const (
		ttl   = 15 * time.Second // also that of a place
		live  = 3
		span  = 5 * time.Second
		pause = 1500 * time.Millisecond // as in TestDeadFirst of package queue
		// Nobody takes the lock out of turn before 1.2 s, and a hand-over takes a few milliseconds.
		least = time.Second
		// The servers, the two processes involved and this one share a machine.
		slack = 500 * time.Millisecond
		// A waiter reads at every third of its place's TTL, or up to a thirtieth later.
		timer = ttl/3 + ttl/30
	)
	cl := testutil.RunCluster(t, 3) // not in parallel with other tests, because it measures time
	first, second := kit.NewClient(t, cl.Connect(), r3), kit.NewClient(t, cl.Connect(), r3, natslock.WithOwner("second"))
	mutex := which{Name: "l", Kind: admin.KindMutex}
	seen := tapTurns(t, kit.OpenStore(t, cl.Connect()), mutex.key())
	queue := func() (owners []string) {
		info, err := admin.New(first).Inspect(t.Context(), mutex.Kind, mutex.Name)
		require.NoError(t, err)
		for _, w := range info.Queue {
			owners = append(owners, w.Owner)
		}
		return owners
	}
	contend := func(server int, owner string) *process {
		return start(t, "contender", contenderOrder{URL: cl.Servers()[server%3].URL(), TTL: ttl, Owner: owner, Name: mutex.Name})
	}
	for i := range live {
		contend(i, "live")
	}

	for _, x := range []struct {
		dead int
		ago  time.Duration // how long they have been dead when the lock becomes free
		late time.Duration // how much longer the first pause may be
	}{
		{dead: 1},
		{dead: 5, late: timer},
		{dead: 5, ago: 6 * time.Second}, // longer than the renewal interval
	} {
		passed := t.Run(fmt.Sprint(x.dead, " ", x.ago), func(t *testing.T) {
			from := time.Now()
			kit.Eventually(t, "the lock goes from hand to hand", func() bool { return len(seen.since(from, time.Now())) > 10*live })
			late := machine.Lateness(t)
			begun := time.Now()
			time.Sleep(span)
			before := len(seen.since(begun, begun.Add(span)))

			// Those that will die queue behind the second client, and all others behind them.
			others := slices.Repeat([]string{"live"}, live)
			waits := func(owners []string) {
				kit.Eventually(t, fmt.Sprint(owners, " wait"), func() bool { return slices.Equal(queue(), owners) })
			}
			l := mustTake(t, first, mutex)
			waits(others)
			got := await(t, second, mutex)
			order := append(slices.Clip(others), "second")
			waits(order)
			var dying []*process
			for i := range x.dead {
				dying = append(dying, contend(i, "dying"))
			}
			dead := slices.Repeat([]string{"dying"}, x.dead)
			waits(append(order, dead...))
			require.NoError(t, l.Unlock(t.Context()))
			l = got.Granted(t)
			order = append(dead, others...)
			waits(order)
			for _, p := range dying {
				p.signal(syscall.SIGKILL)
			}
			for _, p := range dying {
				p.kill()
			}
			time.Sleep(x.ago)
			require.Equal(t, order, queue())

			free := time.Now()
			require.NoError(t, l.Unlock(t.Context()))
			kit.Eventually(t, "nobody waits for the dead", func() bool { return !slices.Contains(queue(), "dying") })
			begun = time.Now()
			time.Sleep(span)
			after := len(seen.since(begun, begun.Add(span)))
			var pauses []time.Duration
			for _, u := range seen.since(free, begun.Add(span)) {
				if u.free > least {
					pauses = append(pauses, u.free)
				}
			}
			t.Logf("%d grants in %v before and %d after, pauses %v, the machine late by %v", before, span, after, pauses, late())
			require.GreaterOrEqual(t, after, before*8/10)
			require.NotEmpty(t, pauses)
			require.LessOrEqual(t, len(pauses), x.dead)
			pauses[0] -= x.late
			for _, p := range pauses {
				require.LessOrEqual(t, p, pause+slack+3*late())
			}
		})
		if !passed {
			return // the lock may still be held
		}
	}
}
