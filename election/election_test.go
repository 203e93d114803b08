package election_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestElection checks that both this package and the admin tools see the value in the leader's
// record.
func TestElection(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s, natslock.WithOwner("a")), join(t, s)
		first, second, reader := a.elect("one"), b.elect("two"), join(t, s).elect("")
		_, err := reader.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader)
		require.ErrorContains(t, err, name)

		term := campaign(t, first)
		sent := a.nc.Stats().OutMsgs
		token, ok := first.IsLeader()
		require.True(t, ok)
		require.Equal(t, term.Token(), token)
		require.NoError(t, term.Err())
		require.Positive(t, term.Remaining())
		require.Equal(t, sent, a.nc.Stats().OutMsgs, "without I/O")
		l, err := reader.Leader(t.Context())
		require.NoError(t, err)
		require.False(t, l.Vacant())
		require.Equal(t, "one", string(l.Value))
		require.Equal(t, token, l.Token)
		require.Equal(t, "a", l.Owner)
		require.True(t, time.Now().Equal(l.Since))
		info, err := admin.New(b.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.Equal(t, "one", info.Holder.Meta["value"])
		require.Equal(t, info.Holder.ID, l.ID)

		next := begin(t, second)
		synctest.Wait()
		_, ok = second.IsLeader()
		require.False(t, ok)
		require.NoError(t, term.Proclaim(t.Context(), []byte("uno")))
		l, err = reader.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, "uno", string(l.Value))
		require.Equal(t, token, l.Token)

		require.NoError(t, term.Resign(t.Context()))
		require.ErrorIs(t, context.Cause(term.Context()), natslock.ErrReleased)
		require.ErrorIs(t, term.Err(), natslock.ErrReleased)
		require.Zero(t, term.Remaining())
		_, ok = first.IsLeader()
		require.False(t, ok)
		require.ErrorIs(t, term.Proclaim(t.Context(), nil), natslock.ErrReleased)
		require.NoError(t, term.Resign(t.Context()), "the result of the first")
		after := next.Granted(t)
		require.Greater(t, after.Token(), term.Token())
		l, err = reader.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, "two", string(l.Value))

		// An operator deposes the leader. It no longer leads, although it has not stopped yet.
		require.NoError(t, admin.New(a.Client).Break(t.Context(), admin.BreakRequest{Name: name, ID: l.ID, Reason: "enough"}))
		_, err = reader.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader)
		time.Sleep(10 * time.Second)
		require.ErrorIs(t, context.Cause(after.Context()), natslock.ErrBroken)
		require.ErrorIs(t, after.Resign(t.Context()), natslock.ErrLost)
		last := campaign(t, first)
		l, err = reader.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, "one", string(l.Value), "each term begins with the value of its election")
		require.NoError(t, last.Resign(t.Context()))
	})
}

// TestRefused checks that every method of an unusable election returns an error and sends nothing.
func TestRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		sent := c.nc.Stats().OutMsgs
		lead := func(context.Context, *election.Term) error { panic("it leads") }
		large := make([]byte, election.MaxValue+1)
		for why, e := range map[string]*election.Election{
			"not created by New": nil,
			"created by New":     {},
			"client is nil":      election.New(nil, name),
			"an option is nil":   election.New(c.Client, name, nil),
			"4097 bytes":         election.New(c.Client, name, election.Value(large)),
			"function is nil":    election.New(c.Client, name, election.OnChange(nil)),
		} {
			_, err := e.Campaign(t.Context())
			require.ErrorIs(t, err, natslock.ErrInvalid)
			require.ErrorContains(t, err, why)
			require.ErrorIs(t, e.Run(t.Context(), lead), natslock.ErrInvalid)
			_, err = e.Leader(t.Context())
			require.ErrorIs(t, err, natslock.ErrInvalid)
			n := 0
			for _, err := range e.Observe(t.Context()) {
				require.ErrorIs(t, err, natslock.ErrInvalid)
				n++
			}
			require.Equal(t, 1, n)
			_, ok := e.IsLeader()
			require.False(t, ok)
		}
		require.ErrorIs(t, c.elect("").Run(t.Context(), nil), natslock.ErrInvalid)
		for _, ttl := range []time.Duration{0, 25 * time.Hour} {
			require.ErrorIs(t, c.elect("", election.TTL(ttl)).Run(t.Context(), lead), natslock.ErrInvalid)
		}
		long := election.New(c.Client, strings.Repeat("x", 1000))
		require.ErrorIs(t, long.Run(t.Context(), lead), natslock.ErrInvalid)
		for _, err := range long.Observe(t.Context()) {
			require.ErrorIs(t, err, natslock.ErrInvalid)
		}
		require.Equal(t, sent, c.nc.Stats().OutMsgs)
		for _, none := range []*election.Term{nil, {}} {
			require.Zero(t, none.Token())
			require.Error(t, none.Context().Err())
			require.ErrorIs(t, none.Err(), natslock.ErrInvalid)
			require.Zero(t, none.Remaining())
			require.ErrorIs(t, none.Proclaim(t.Context(), nil), natslock.ErrInvalid)
			require.ErrorIs(t, none.Resign(t.Context()), natslock.ErrInvalid)
		}

		// The largest value that fits is stored and read back in full.
		e := c.elect(string(large[1:]))
		term := campaign(t, e)
		require.ErrorIs(t, term.Proclaim(t.Context(), large), natslock.ErrInvalid)
		l, err := e.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, large[1:], l.Value)
		require.ErrorIs(t, c.Close(closing(t)), context.Canceled)
		require.ErrorIs(t, e.Run(t.Context(), lead), natslock.ErrClosed)
		for _, err := range e.Observe(t.Context()) {
			require.ErrorIs(t, err, natslock.ErrClosed)
		}
		require.Error(t, term.Context().Err())
	})
}

// TestPlacesWithoutValues checks that candidates' places do not carry their values. Otherwise every
// listing of the queue would transfer all of them.
func TestPlacesWithoutValues(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		places, err := s.Connect().SubscribeSync("$KV.natslock.wait.>")
		require.NoError(t, err)
		value := strings.Repeat("v", election.MaxValue)
		term := campaign(t, join(t, s).elect(value))
		for range 3 {
			c := join(t, s)
			begin(t, c.elect(value))
			begin(t, c.elect(value))
			synctest.Wait()
		}
		time.Sleep(20 * time.Second) // the places are renewed
		n, _, err := places.Pending()
		require.NoError(t, err)
		require.Greater(t, n, 9)
		for range n {
			m, err := places.NextMsg(time.Second)
			require.NoError(t, err)
			if len(m.Data) == 0 {
				continue // a probe that proves a subscription
			}
			require.Less(t, len(m.Data), 1<<10)
			body, err := record.Decode(m.Data)
			require.NoError(t, err)
			require.Empty(t, body.Meta)
			require.Equal(t, "election", body.Purpose.String())
		}
		require.NoError(t, term.Resign(t.Context()))
	})
}

// TestResignMessages checks that a resignation hands over in one round trip: the leader sends its
// tombstone, and the next candidate sends its claim.
func TestResignMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := join(t, s), join(t, s), join(t, s)
		term := campaign(t, a.elect("a"))
		next := begin(t, b.elect("b"))
		synctest.Wait()
		behind := begin(t, c.elect("c"))
		time.Sleep(time.Minute)
		sent := func(m *member) uint64 { return m.nc.Stats().OutMsgs }
		ofA, ofB, ofC, begun := sent(a), sent(b), sent(c), time.Now()
		claims := make(chan uint64, 1)
		b.faults.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if strings.HasPrefix(w.Key, "lock.") && !w.Delete {
				select {
				case claims <- sent(b) - ofB:
				default:
				}
			}
			return faults.Pass
		})
		require.NoError(t, term.Resign(t.Context()))
		t2 := next.Granted(t)
		require.Equal(t, begun, next.At)
		synctest.Wait()
		t.Logf("sent by the leader %d, by the next one %d, of them before its claim %d, by a third one %d", sent(a)-ofA, sent(b)-ofB, <-claims, sent(c)-ofC)
		require.EqualValues(t, 1, sent(a)-ofA)
		require.LessOrEqual(t, sent(b)-ofB, uint64(4))
		require.False(t, behind.Over())
		require.NoError(t, t2.Resign(t.Context()))
	})
}

// TestResignedGoesToTheBack checks that a candidate that has just resigned queues behind everyone
// who was waiting at that point, including other candidates of its own client. This holds even
// within the client's turn, and even if the candidate has just seen an empty queue.
func TestResignedGoesToTheBack(t *testing.T) {
	t.Run("turn", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: time.Second})), join(t, s)
			a := campaign(t, c.elect("a"))
			b := begin(t, c.elect("b"))
			synctest.Wait()
			d := begin(t, other.elect("d"))
			synctest.Wait()
			require.NoError(t, a.Resign(t.Context()))
			ofB := b.Granted(t)
			again := begin(t, c.elect("a"))
			synctest.Wait()
			require.NoError(t, ofB.Resign(t.Context()))
			ofD := d.Granted(t)
			require.False(t, again.Over())
			require.NoError(t, ofD.Resign(t.Context()))
			require.NoError(t, again.Granted(t).Resign(t.Context()))
		})
	})
	t.Run("bypass", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := join(t, s), join(t, s)
			e := c.elect("a")
			require.NoError(t, campaign(t, e).Resign(t.Context()))
			a := campaign(t, e) // the candidate has read the queue
			d := begin(t, other.elect("d"))
			synctest.Wait()
			other.faults.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(50 * time.Millisecond) })
			require.NoError(t, a.Resign(t.Context()))
			again := begin(t, e)
			ofD := d.Granted(t)
			require.False(t, again.Over())
			require.NoError(t, ofD.Resign(t.Context()))
			require.NoError(t, again.Granted(t).Resign(t.Context()))
		})
	})
	t.Run("linger", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := join(t, s), join(t, s)
			l, err := c.Lock(t.Context(), name, natslock.Linger(time.Minute)) // a mutex with the election's name
			require.NoError(t, err)
			b := begin(t, c.elect("b"))
			synctest.Wait()
			d := begin(t, other.elect("d"))
			synctest.Wait()
			require.NoError(t, l.Unlock(t.Context()))
			require.NoError(t, b.Granted(t).Resign(t.Context()))
			again := begin(t, c.elect("b"))
			ofD := d.Granted(t)
			synctest.Wait()
			require.False(t, again.Over())
			require.NoError(t, ofD.Resign(t.Context()))
			require.NoError(t, again.Granted(t).Resign(t.Context()))
		})
	})
}

// TestSiblings checks that candidates of the same client each have their own place, take over in
// the order in which they asked, and appear in the record with their own values.
func TestSiblings(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s), join(t, s)
		term := campaign(t, c.elect("0"))
		var rest []*candidacy
		for i := range 5 {
			rest = append(rest, begin(t, c.elect(fmt.Sprint(i+1))))
			synctest.Wait()
		}
		o := observe(t, other.elect(""))
		synctest.Wait()
		for i, r := range rest {
			require.NoError(t, term.Resign(t.Context()))
			term = r.Granted(t)
			time.Sleep(100*time.Millisecond + time.Microsecond)
			l, err := other.elect("").Leader(t.Context())
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i+1), string(l.Value))
			require.Equal(t, term.Token(), l.Token)
		}
		require.NoError(t, term.Resign(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"0", "-", "1", "-", "2", "-", "3", "-", "4", "-", "5", "-"}, o.values())
	})
}

// TestFiftyCandidates checks that 50 candidates send no more messages than 50 clients waiting for a
// mutex, even if all the candidates share a client.
func TestFiftyCandidates(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const n = 50
		// count returns how many messages n clients, or n goroutines of one client, send when they
		// start waiting and during the following three minutes.
		count := func(one bool, wait func(ctx context.Context, m *member) error) (begin, idle uint64) {
			members := []*member{join(t, s)}
			for !one && len(members) < n {
				members = append(members, join(t, s))
			}
			sent := func() (all uint64) {
				for _, m := range members {
					all += m.nc.Stats().OutMsgs
				}
				return all
			}
			before := sent()
			ctx, cancel := context.WithCancel(t.Context())
			results := make(chan error)
			for i := range n {
				go func() { results <- wait(ctx, members[i%len(members)]) }()
				synctest.Wait()
			}
			begin = sent() - before
			time.Sleep(3 * time.Minute)
			idle = sent() - before - begin
			cancel()
			for range n {
				require.ErrorIs(t, <-results, context.Canceled)
			}
			return begin, idle
		}
		l, err := join(t, s).Lock(t.Context(), "mutex")
		require.NoError(t, err)
		mutexBegin, mutexIdle := count(false, func(ctx context.Context, m *member) error {
			_, err := m.Lock(ctx, "mutex")
			return err
		})
		require.NoError(t, l.Unlock(t.Context()))
		for _, one := range []bool{false, true} {
			term := campaign(t, join(t, s).elect("leader"))
			begin, idle := count(one, func(ctx context.Context, m *member) error {
				_, err := m.elect("value").Campaign(ctx)
				return err
			})
			require.NoError(t, term.Resign(t.Context()))
			t.Logf("one client %v: %d candidates %d and %d in three minutes, waiters %d and %d", one, n, begin, idle, mutexBegin, mutexIdle)
			require.LessOrEqual(t, begin, mutexBegin)
			require.LessOrEqual(t, idle, mutexIdle+n, "a renewal of each falls on either side of the end")
		}
	})
}

// TestTermIsKept checks that an Election keeps leading even if the caller drops the Term, because
// some services only use IsLeader.
func TestTermIsKept(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		e := join(t, s).elect("")
		kept, err := e.Campaign(context.WithoutCancel(t.Context()))
		require.NoError(t, err)
		kit.Keep(t, kept)
		collect()
		time.Sleep(time.Minute)
		_, ok := e.IsLeader()
		require.True(t, ok)
	})
}

// TestParentEnds checks that the term ends, and IsLeader reports it, when the campaign's context
// ends.
func TestParentEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		e := join(t, s).elect("")
		ctx, cancel := context.WithCancelCause(t.Context())
		term, err := e.Campaign(ctx)
		require.NoError(t, err)
		why := errors.New("the service stops")
		cancel(why)
		require.ErrorIs(t, context.Cause(term.Context()), why)
		_, ok := e.IsLeader()
		require.False(t, ok)
		require.NoError(t, term.Resign(ctx))
		_, err = e.Campaign(ctx)
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, why)
	})
}

// TestCampaignInOutage checks that a campaign that times out because of an outage does not blame
// another leader.
func TestCampaignInOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		leader, c := join(t, s), join(t, s)
		kept, err := leader.elect("").Campaign(context.WithoutCancel(t.Context()))
		require.NoError(t, err)
		kit.Keep(t, kept)
		campaign := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := c.elect("").Campaign(ctx)
			require.ErrorIs(t, err, natslock.ErrTimeout)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return err
		}
		require.NotErrorIs(t, campaign(), natslock.ErrUnavailable)
		c.link.Blackhole(true)
		require.ErrorIs(t, campaign(), natslock.ErrUnavailable)
		c.link.Heal()
	})
}
