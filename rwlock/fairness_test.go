package rwlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// crowd runs readers or writers of x in a loop on each of the peers, and counts their grants. Each
// is inside for some tens of milliseconds, and outside for less.
type crowd struct {
	grants atomic.Int64
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

func newCrowd(t *testing.T, u *history.Recorder, peers []*peer, each int, writes bool, opts ...natslock.LockOption) *crowd {
	ctx, stop := context.WithCancel(context.Background())
	c := &crowd{stop: stop}
	for i, p := range peers {
		take := p.RLock
		if writes {
			take = p.Lock
		}
		for g := range each {
			c.wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(g)))
				for ctx.Err() == nil {
					l, err := take(context.Background(), "x", opts...)
					if !assert.NoError(t, err) {
						return
					}
					u.Granted(admin.KindRW, modeOf(writes), l)
					c.grants.Add(1)
					time.Sleep(time.Duration(20+rng.IntN(60)) * time.Millisecond)
					assert.NoError(t, l.Unlock(context.Background()))
					time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond)
				}
			})
		}
	}
	return c
}

// outsider has p acquire the lock several times against the crowd. It returns the most grants to
// the crowd, and the longest time, that p had to wait for.
func (c *crowd) outsider(t *testing.T, u *history.Recorder, p *peer, writes bool) (most int64, longest time.Duration) {
	take := p.RLock
	if writes {
		take = p.Lock
	}
	for range 6 {
		time.Sleep(300*time.Millisecond + rand.N(100*time.Millisecond))
		before, begun := c.grants.Load(), time.Now()
		l, err := take(t.Context(), "x")
		require.NoError(t, err)
		most, longest = max(most, c.grants.Load()-before), max(longest, time.Since(begun))
		u.Granted(admin.KindRW, modeOf(writes), l)
		time.Sleep(5 * time.Millisecond)
		kit.Unlock(t, l)
	}
	return most, longest
}

// TestNoStarvation measures how many grants of the other side a newcomer has to wait for. That is
// at most one per goroutine on the other side, plus one already in progress.
func TestNoStarvation(t *testing.T) {
	own := natslock.TTL(15 * time.Second) // a different TTL prevents sharing
	for _, tc := range []struct {
		name    string
		clients int
		each    int
		writes  bool // whether the crowd writes
		opts    []natslock.LockOption
		inside  bool // whether the outsider belongs to the crowd's first client
	}{
		{name: "a writer against readers", clients: 6, each: 2, opts: []natslock.LockOption{own}},
		{name: "a writer against readers that share", clients: 4, each: 5},
		{name: "a writer against one client's readers", clients: 1, each: 20},
		{name: "a writer against its own client's readers", clients: 1, each: 20, inside: true},
		{name: "a reader against writers", clients: 6, each: 1, writes: true},
		{name: "a reader against one client's writers", clients: 1, each: 6, writes: true, inside: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				u := history.NewRecorder()
				var peers []*peer
				for i := range tc.clients {
					peers = append(peers, newPeer(t, s.Connect(), uint64(i)))
				}
				outsider := newPeer(t, s.Connect(), 100)
				if tc.inside {
					outsider = peers[0]
				}
				u.Tap(t, s.Connect())
				c := newCrowd(t, u, peers, tc.each, tc.writes, tc.opts...)
				most, longest := c.outsider(t, u, outsider, !tc.writes)
				c.stop()
				c.wg.Wait()
				t.Logf("waited for at most %d grants, %v, of %d", most, longest, c.grants.Load())
				// Every goroutine once, plus one that is just entering.
				require.LessOrEqual(t, most, int64(tc.clients*tc.each+1))
				if !tc.writes {
					require.Less(t, longest, 200*time.Millisecond, "readers were let in behind it")
				}
				u.Check(t)
				require.Greater(t, c.grants.Load(), int64(30))
			})
		})
	}
}

// TestSharingUnnotified loses every notification of a client whose goroutines read continuously.
// The client lists the gate, so a writer waits less than a second plus the time that the readers
// inside take.
func TestSharingUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = time.Hour
		u := history.NewRecorder()
		readers, writer := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl)), newPeer(t, s.Connect(), 2, natslock.WithTTL(ttl))
		readers.f.DropAllEvents(true)
		c := newCrowd(t, u, []*peer{readers}, 10, false)
		_, longest := c.outsider(t, u, writer, true)
		c.stop()
		c.wg.Wait()
		t.Logf("waited %v at most", longest)
		require.Less(t, longest, time.Second+80*time.Millisecond)
		require.Greater(t, readers.c.Stats().Granted, uint64(100))
		u.Check(t)
	})
}

// TestLine queues readers and writers of different clients behind a writer. They are served by
// ticket: writers one by one, and the readers between two writers together.
func TestLine(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		u := history.NewRecorder()
		holder := newPeer(t, s.Connect(), 100)
		first, err := holder.Lock(t.Context(), "x")
		require.NoError(t, err)
		u.Granted(admin.KindRW, admin.Exclusive, first)
		const line = "RRWRWWWRRRRWRWW"
		grants := make(chan grant, len(line))
		for i, mode := range line {
			p, who := newPeer(t, s.Connect(), uint64(i)), fmt.Sprint(i)
			if mode == 'R' {
				p.read(who, grants)
			} else {
				p.write(who, grants)
			}
			time.Sleep(20 * time.Millisecond)
		}
		synctest.Wait()
		info, err := admin.New(holder.c).Inspect(t.Context(), admin.KindRW, "x")
		require.NoError(t, err)
		require.Len(t, info.Queue, len(line))
		time.Sleep(20 * time.Second) // long enough to renew their places a few times
		begun := time.Now()
		kit.Unlock(t, first)
		for at := 0; at < len(line); {
			n := 1
			for line[at] == 'R' && at+n < len(line) && line[at+n] == 'R' {
				n++
			}
			var want, got []string
			var in []*natslock.Lock
			for i := range n {
				want = append(want, fmt.Sprint(at+i))
				g := <-grants
				require.NoError(t, g.err)
				u.Granted(admin.KindRW, modeOf(line[at] == 'W'), g.l)
				got, in = append(got, g.who), append(in, g.l)
			}
			require.ElementsMatch(t, want, got)
			nobody(t, grants, "out of turn")
			for _, l := range in[1:] {
				kit.Unlock(t, l)
				nobody(t, grants, "beside the last reader")
			}
			kit.Unlock(t, in[0])
			at += n
		}
		require.Less(t, time.Since(begun), time.Duration(len(line)+1)*time.Second+200*time.Millisecond, "somebody was let in by a timer")
		u.Check(t)
		require.Equal(t, 4, u.History().Counts()["readers at once"])
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// behind is a replica that has missed the queue: it shows an empty one unless the listing must
// include a certain revision.
type behind struct{ kvstore.KV }

func (b behind) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := b.KV.List(ctx, pattern, min, opts...)
	if min == 0 {
		l.Records = nil
	}
	return l, err
}

func (b behind) Alone() bool { return false }

// TestNewcomer has a newcomer arrive when the lock is free but the first in line has not taken it
// yet. The newcomer must not overtake the line, even if a lagging replica answers it.
func TestNewcomer(t *testing.T) {
	for name, under := range map[string]func(kvstore.KV) kvstore.KV{
		"current": func(kv kvstore.KV) kvstore.KV { return kv },
		"lagging": func(kv kvstore.KV) kvstore.KV { return behind{kv} },
	} {
		t.Run(name, func(t *testing.T) { newcomer(t, under) })
	}
}

func newcomer(t *testing.T, under func(kvstore.KV) kvstore.KV) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		c, d := newPeerOver(t, s.Connect(), 3, under), newPeerOver(t, s.Connect(), 4, under)
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		grants := make(chan grant, 3)
		b.write("queued", grants)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		b.f.OnSend(kit.At("rw take", faults.Delay(300*time.Millisecond)))
		kit.Unlock(t, l)
		synctest.Wait()
		_, err = c.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "a reader past the line")
		_, err = c.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "a writer past the line")
		c.read("reader", grants)
		synctest.Wait()
		d.write("writer", grants)
		first := <-grants
		require.NoError(t, first.err)
		require.Equal(t, "queued", first.who)
		nobody(t, grants, "beside a writer")
		kit.Unlock(t, first.l)
		for _, who := range []string{"reader", "writer"} {
			g := <-grants
			require.NoError(t, g.err)
			require.Equal(t, who, g.who)
			kit.Unlock(t, g.l)
		}
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}
