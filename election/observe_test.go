package election_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestObserve checks that an observer receives the current leader first, and then each change
// immediately.
func TestObserve(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := join(t, s), join(t, s), join(t, s)
		o := observe(t, c.elect(""))
		synctest.Wait()
		require.Equal(t, []string{"-"}, o.values())
		ofA := campaign(t, a.elect("a"))
		next := begin(t, b.elect("b"))
		synctest.Wait()
		late := observe(t, c.elect(""))
		require.NoError(t, ofA.Proclaim(t.Context(), []byte("a2")))
		require.NoError(t, ofA.Proclaim(t.Context(), []byte("a2")))
		synctest.Wait()
		require.NoError(t, ofA.Resign(t.Context()))
		ofB := next.Granted(t)
		time.Sleep(time.Minute) // renewals are not changes
		require.NoError(t, ofB.Resign(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"-", "a", "a2", "-", "b", "-"}, o.values())
		require.Equal(t, "a2", late.values()[len(late.values())-4])
		l, at := o.last()
		require.True(t, l.Vacant())
		require.Equal(t, time.Now(), at)

		// A break is yielded immediately, and only once, as a vacancy.
		ofA = campaign(t, a.elect("a"))
		synctest.Wait()
		l, _ = o.last()
		require.NoError(t, admin.New(c.Client).Break(t.Context(), admin.BreakRequest{Name: name, ID: l.ID}))
		synctest.Wait()
		l, at = o.last()
		require.True(t, l.Vacant())
		require.Equal(t, time.Now(), at)
		time.Sleep(10 * time.Second)
		require.Error(t, ofA.Resign(t.Context()))
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"-", "a", "a2", "-", "b", "-", "a", "-"}, o.values())
		o.stop()
		kit.Receive(t, o.over, "the end of an observer")
		require.NoError(t, o.err)
	})
}

// TestObserveMessages checks that an idle observer sends a read only after four seconds without a
// notification, and none if the leader renews more often than that.
func TestObserveMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, c := range []struct {
			ttl  time.Duration
			most uint64
		}{{0, 13 + 7}, {6 * time.Second, 1 + 7}} { // the watch checks the bucket 6 or 7 times
			e := join(t, s).elect("a", options(c.ttl)...)
			term := campaign(t, e)
			m := join(t, s)
			o := observe(t, m.elect(""))
			time.Sleep(time.Minute + 3333*time.Millisecond) // between two checks
			before := m.nc.Stats().OutMsgs
			time.Sleep(time.Minute)
			sent := m.nc.Stats().OutMsgs - before
			t.Logf("TTL %v: %d messages a minute", c.ttl, sent)
			require.LessOrEqual(t, sent, c.most)
			require.Equal(t, []string{"a"}, o.values())
			require.NoError(t, term.Resign(t.Context()))
			o.stop()
		}
	})
}

func options(ttl time.Duration) []election.Option {
	if ttl == 0 {
		return nil
	}
	return []election.Option{election.TTL(ttl)}
}

// TestObserveLostNotifications checks that an observer is correct again within five seconds even if
// notifications are lost.
func TestObserveLostNotifications(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const most = 5 * time.Second
		c := join(t, s)
		o := observe(t, c.elect(""))
		synctest.Wait()
		right := func(value string) {
			t.Helper()
			begun := time.Now()
			for {
				if l, _ := o.last(); string(l.Value) == value {
					t.Logf("right after %v", time.Since(begun))
					return
				}
				require.Less(t, time.Since(begun), most)
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
		}
		// Each change comes at a different interval after the observer's last news.
		for i := range 8 {
			c.faults.DropEvents(nil)
			a, b := join(t, s), join(t, s)
			ofA := campaign(t, a.elect("a"))
			right("a")
			time.Sleep(time.Duration(i) * 700 * time.Millisecond)
			c.faults.DropAllEvents(true)
			require.NoError(t, ofA.Proclaim(t.Context(), []byte("a2")))
			right("a2")
			next := begin(t, b.elect("b"))
			synctest.Wait()
			require.NoError(t, ofA.Resign(t.Context()))
			right("b")
			require.NoError(t, next.Granted(t).Resign(t.Context()))
			right("")
			c.faults.DropAllEvents(false)
		}
	})
}

// TestObserveCrash checks that an observer sees the vacancy after a leader has crashed, even if
// nobody else campaigns.
func TestObserveCrash(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := join(t, s), join(t, s)
		o := observe(t, c.elect(""))
		term := campaign(t, a.elect("a"))
		time.Sleep(30 * time.Second)
		a.link.Cut()
		info, err := admin.New(c.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"-", "a", "-"}, o.values())
		_, at := o.last()
		t.Logf("vacant %v after the end of the lease", at.Sub(info.Holder.Expires))
		require.Less(t, at.Sub(info.Holder.Expires), time.Second)
		require.False(t, at.Before(info.Holder.Expires))
		require.ErrorIs(t, context.Cause(term.Context()), natslock.ErrLost)
		a.link.Heal()
		_ = term.Resign(t.Context())
	})
}

// TestLeaderOverdue checks that a crashed leader stops being the leader even if the server has lost
// its TTLs and keeps the record.
func TestLeaderOverdue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := join(t, s), join(t, s)
		e := c.elect("")
		o := observe(t, e)
		term := campaign(t, a.elect("a"))
		synctest.Wait()
		a.link.Cut()
		kit.RestartWithoutTTLs(t, s)
		time.Sleep(10 * time.Second)
		l, err := e.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, term.Token(), l.Token)
		time.Sleep(6 * time.Second)
		_, err = e.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader)
		require.Equal(t, []string{"-", "a", "-"}, o.values())
		info, err := admin.New(c.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.True(t, info.Holder.Overdue)
		a.link.Heal()
		_ = term.Resign(t.Context())
	})
}

// TestNobodyLeadsByWhatIsLeft covers the mutex features that a holder of an election's lock can
// use. Nobody leads while the lock is idle or in cooldown, or has been handed over but not adopted.
func TestNobodyLeadsByWhatIsLeft(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := join(t, s), join(t, s)
		e := c.elect("")
		o := observe(t, e)
		synctest.Wait()
		vacant := func(want ...string) {
			t.Helper()
			synctest.Wait()
			_, err := e.Leader(t.Context())
			require.ErrorIs(t, err, election.ErrNoLeader)
			require.Equal(t, want, o.values())
			time.Sleep(6 * time.Second) // the observer has read the record
			require.Equal(t, want, o.values())
			require.Equal(t, want[len(want)-1:], observe(t, e).values())
		}
		value := func(v string) natslock.LockOption { return natslock.Meta(map[string]string{"value": v}) }
		l, err := a.Lock(t.Context(), name, value("a"), natslock.MinHold(time.Minute))
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, l.Unlock(t.Context()))
		vacant("-", "a", "-")
		time.Sleep(time.Minute)

		l, err = a.Lock(t.Context(), name, value("b"))
		require.NoError(t, err)
		synctest.Wait()
		h, err := l.Handoff(t.Context())
		require.NoError(t, err)
		vacant("-", "a", "-", "b", "-")
		l, err = c.Adopt(t.Context(), h, value("c"))
		require.NoError(t, err)
		synctest.Wait()
		shown, err := e.Leader(t.Context())
		require.NoError(t, err)
		require.Equal(t, h.Token, shown.Token)
		require.Equal(t, []string{"-", "a", "-", "b", "-", "c"}, o.values())
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestObserveDeletedByHand checks that deleting the record by hand ends the term and notifies
// observers immediately.
func TestObserveDeletedByHand(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := join(t, s), join(t, s)
		nc := s.Connect()
		o := observe(t, c.elect(""))
		term := campaign(t, a.elect("a"))
		time.Sleep(30 * time.Second)
		m := message("$KV.natslock.lock."+name, "KV-Operation", "DEL")
		require.NoError(t, nc.PublishMsg(m))
		require.NoError(t, nc.Flush())
		synctest.Wait()
		require.Equal(t, []string{"-", "a", "-"}, o.values())
		require.ErrorIs(t, context.Cause(term.Context()), natslock.ErrLost)
		require.Error(t, term.Resign(t.Context()))

		// A record that this library did not write belongs to an unknown leader.
		require.NoError(t, nc.PublishMsg(message("$KV.natslock.lock."+name)))
		require.NoError(t, nc.Flush())
		time.Sleep(time.Second)
		l, _ := o.last()
		require.False(t, l.Vacant())
		require.Empty(t, l.Owner)
	})
}

// TestObserveOutage checks that an observer survives an outage of its connection and is correct
// again within five seconds.
func TestObserveOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := join(t, s), join(t, s)
		o := observe(t, c.elect(""))
		term := campaign(t, a.elect("a"))
		time.Sleep(10 * time.Second)
		for range 3 {
			c.link.Cut()
			time.Sleep(time.Minute)
			require.Len(t, o.values(), 2, "it does not take a leader that it cannot see for gone")
			c.link.Heal()
			time.Sleep(10 * time.Second)
		}
		c.link.Cut()
		require.NoError(t, term.Resign(t.Context()))
		time.Sleep(time.Minute)
		c.link.Heal()
		time.Sleep(5 * time.Second)
		require.Equal(t, []string{"-", "a", "-"}, o.values())
	})
}

// TestObserveForged checks that forged and late notifications mislead an observer for at most five
// seconds.
func TestObserveForged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := join(t, s), join(t, s)
		o := observe(t, c.elect(""))
		synctest.Wait() // the observer is watching
		var old []kvstore.Event
		c.faults.DropEvents(func(ev kvstore.Event) bool {
			old = append(old, ev)
			return false
		})
		first := campaign(t, a.elect("a"))
		synctest.Wait() // later changes could hide it
		require.NoError(t, first.Resign(t.Context()))
		synctest.Wait()
		term := campaign(t, a.elect("b"))
		synctest.Wait()
		c.faults.DropEvents(nil)
		before := o.values()
		require.Equal(t, []string{"-", "a", "-", "b"}, before)
		for _, ev := range old { // replayed in their original order
			c.faults.Forge(ev)
		}
		synctest.Wait()
		l, _ := o.last()
		require.Equal(t, "b", string(l.Value))
		require.Equal(t, before, o.values())

		// The observer reads the record before it believes a notification, so it is never misled, not
		// even briefly. The notifications announce a release, the same leader at a later revision, and
		// a leader that never existed, over and over.
		reads := 0
		c.faults.FailReads(func(faults.ReadOp, string) error { reads++; return nil })
		for range 1000 {
			for _, ev := range old {
				ev.Record.Revision += 1 << 61
				require.Positive(t, c.faults.Forge(ev))
			}
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, before, o.values())
		require.Less(t, reads, 100, "a flood is answered slowly")
		c.faults.FailReads(nil)
		time.Sleep(5 * time.Second)
		require.Equal(t, before, o.values())
		require.NoError(t, term.Resign(t.Context()))
		synctest.Wait()
		l, _ = o.last()
		require.True(t, l.Vacant())
	})
}

// TestOnChange checks that OnChange is called for each change while Run is running, and never after
// it has returned.
func TestOnChange(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var got []string
		r := newReign()
		e := join(t, s).elect("a", election.OnChange(func(l election.Leader) { got = append(got, string(l.Value)) }))
		x := run(t, e, r, "a")
		r.wait(t, 0)
		synctest.Wait()
		x.cancel()
		kit.Receive(t, x.done, "the end of Run")
		require.ErrorIs(t, x.err, context.Canceled)
		n := len(got)
		require.Contains(t, got, "a")
		time.Sleep(time.Minute)
		require.Len(t, got, n)
		_, err := e.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader, "it has resigned")
	})
}

// TestOnChangeRefused checks that if OnChange can no longer be served, Run stops its lead first and
// then returns the reason.
func TestOnChangeRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		m, r := join(t, s), newReign()
		x := run(t, m.elect("a", election.OnChange(func(election.Leader) {})), r, "a")
		r.wait(t, 0)
		time.Sleep(10 * time.Second)
		m.faults.FailReads(func(faults.ReadOp, string) error { return natslock.ErrPermission })
		kit.Receive(t, x.done, "the end of Run")
		require.ErrorIs(t, x.err, natslock.ErrPermission)
		require.NotErrorIs(t, x.err, context.Canceled)
		require.False(t, r.all()[0].end.IsZero())
	})
}
