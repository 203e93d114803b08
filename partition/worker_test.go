package partition

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// now is the current time in these tests.
var now = time.Unix(1_000_000, 0)

func after(d time.Duration) time.Time { return now.Add(d) }

// group returns a group whose members have tokens from 1 upwards, and whose partitions have the
// given owners.
func group(members []string, owners ...string) State {
	g := State{Group: "g", known: map[uint64]struct{}{}}
	for i, id := range members {
		token := uint64(i + 1)
		g.Members = append(g.Members, Member{ID: id, Weight: 1, Token: token, count: len(owners)})
		g.known[token] = struct{}{}
	}
	var owned []Placement
	for k, id := range owners {
		p := Placement{Number: k}
		if id != "" {
			p.Member, p.Holder = id, &admin.Holder{Holder: natslock.Holder{Token: uint64(100 + k)}}
		}
		owned = append(owned, p)
	}
	g.settle(owned)
	return g
}

// member returns a worker that was the first to join and has read the group at now.
func member(t *testing.T, g State) *worker {
	w := newWorker("a", len(g.Partitions))
	w.joined(1, now.Add(-settle))
	require.Equal(t, []effect{{look, -1}}, w.decide(now))
	require.NoError(t, w.read(g, now))
	return w
}

// TestLooksWhenStill checks that a worker reads the group once its members have been quiet for a
// moment, or after a few seconds at the latest.
func TestLooksWhenStill(t *testing.T) {
	w := newWorker("a", 1)
	require.Zero(t, w.next(now))
	for d := time.Duration(0); d < settleMax; d += settle / 2 {
		w.moved(after(d))
		require.Empty(t, w.decide(after(d)))
	}
	require.Equal(t, after(settleMax), w.next(now))
	require.Equal(t, []effect{{look, -1}}, w.decide(after(settleMax)))
	require.Zero(t, w.next(now), "one look at a time")
	w.moved(after(settleMax))
	require.Empty(t, w.decide(after(settleMax+settle)))
	require.NoError(t, w.read(group(nil, ""), after(settleMax+settle)))
	require.Equal(t, []effect{{look, -1}}, w.decide(after(settleMax+settle)), "of what came during the look")
}

// TestLooksInSpiteOfRenewals checks that renewals of members that a worker does not know yet do not
// delay its first read, but trigger one later.
func TestLooksInSpiteOfRenewals(t *testing.T) {
	w := newWorker("a", 1)
	w.joined(1, now)
	for d := time.Duration(0); d < settle; d += settle / 10 {
		w.renewed(2, after(d))
	}
	require.Equal(t, []effect{{look, -1}}, w.decide(after(settle)))
	require.NoError(t, w.read(group([]string{"a"}, "a"), after(settle)))
	w.decide(after(settle))
	w.renewed(1, after(2*settle))
	require.True(t, w.changed.IsZero())
	w.renewed(2, after(2*settle))
	require.Equal(t, after(3*settle), w.nextLook())
}

// TestLooksAgainAfterFailures checks that a failed read is retried after growing pauses.
func TestLooksAgainAfterFailures(t *testing.T) {
	w := newWorker("a", 1)
	w.moved(now)
	at, last := w.next(now), time.Duration(0)
	for range 12 {
		require.Equal(t, []effect{{look, -1}}, w.decide(at))
		w.unread(at)
		last, at = w.next(at).Sub(at), w.next(at)
	}
	require.Greater(t, last, 4*time.Second)
	require.LessOrEqual(t, last, 10*time.Second)
}

// TestClaims checks that a worker claims the partitions that it should own, withdraws its claims
// when that changes, and releases a grant that comes too late.
func TestClaims(t *testing.T) {
	w := member(t, group([]string{"a"}, "", ""))
	require.Equal(t, []effect{{claim, 0}, {claim, 1}}, w.decide(now))
	require.Empty(t, w.decide(now))
	require.True(t, w.granted(0, now))
	w.lookBy(now)
	require.Equal(t, []effect{{look, -1}}, w.decide(now))
	g := group([]string{"a", "b"}, "a", "")
	require.NoError(t, w.read(g, now))
	require.Equal(t, []string{"a", "b"}, w.plan)
	require.Equal(t, []effect{{withdraw, 1}}, w.decide(now))
	require.Empty(t, w.decide(now))
	require.False(t, w.granted(1, now), "it is another one's by now")
	w.ended(1, false, now)
	require.Equal(t, []int{0}, w.owned())
	require.Empty(t, w.decide(now))
}

// TestGivesWay checks that a holder gives way only according to a plan that is newer than the
// request.
func TestGivesWay(t *testing.T) {
	w := member(t, group([]string{"a"}, "", ""))
	w.decide(now)
	require.True(t, w.granted(0, now) && w.granted(1, now))
	w.moved(now)
	require.Contains(t, w.decide(after(settle)), effect{look, -1})
	w.asked(1) // while the worker reads the group
	require.NoError(t, w.read(group([]string{"a", "b"}, "a", "a"), after(settle)))
	require.Equal(t, []string{"a", "b"}, w.plan)
	require.Equal(t, []effect{{look, -1}}, w.decide(after(settle)), "the list may be older than the request")
	g := group([]string{"a", "b"}, "a", "a")
	g.Partitions[1].Waiting = 1
	require.NoError(t, w.read(g, after(settle)))
	require.Equal(t, []effect{{drain, 1}}, w.decide(after(settle)))
	require.Empty(t, w.decide(after(settle)))
	require.Equal(t, []int{0, 1}, w.owned(), "until its function has returned")
	w.ended(1, false, after(settle))
	require.Equal(t, []int{0}, w.owned())
}

// TestKeeps checks that a holder keeps a partition that the plan gives to someone else until
// somebody asks for it, and keeps its own partition even if somebody does.
func TestKeeps(t *testing.T) {
	w := member(t, group([]string{"a"}, "", ""))
	w.decide(now)
	require.True(t, w.granted(0, now) && w.granted(1, now))
	w.lookBy(now)
	require.Len(t, w.decide(now), 1)
	require.NoError(t, w.read(group([]string{"a", "b"}, "a", "a"), now))
	require.Empty(t, w.decide(now), "nobody asks")
	require.Equal(t, after(minLook), w.next(now), "somebody is to ask, and the notification can be lost")

	w.asked(0)
	require.Equal(t, []effect{{look, -1}}, w.decide(now))
	g := group([]string{"a", "b"}, "a", "a")
	g.Partitions[0].Waiting = 1
	require.NoError(t, w.read(g, now))
	require.Empty(t, w.decide(now), "it is its own")
	require.Equal(t, after(2*minLook), w.next(now), "their plans differ: it looks again")
	require.Equal(t, []effect{{look, -1}}, w.decide(after(2*minLook)))
	require.NoError(t, w.read(group([]string{"a", "b"}, "a", "b"), after(2*minLook)))
	w.ended(1, false, after(2*minLook))
	require.Empty(t, w.decide(after(2*minLook)))
	require.Zero(t, w.next(after(2*minLook)), "nobody waits any more")
}

// TestForgetsAWithdrawnRequest checks that a withdrawn request no longer counts: if the plan
// reassigns the partition later, the holder keeps it until somebody asks again.
func TestForgetsAWithdrawnRequest(t *testing.T) {
	w := member(t, group([]string{"a"}, "", ""))
	w.decide(now)
	require.True(t, w.granted(0, now) && w.granted(1, now))
	w.asked(1)
	require.Equal(t, []effect{{look, -1}}, w.decide(now))
	require.NoError(t, w.read(group([]string{"a"}, "a", "a"), now))
	require.Empty(t, w.decide(now))
	w.lookBy(now)
	require.Equal(t, []effect{{look, -1}}, w.decide(now))
	require.NoError(t, w.read(group([]string{"a", "b"}, "a", "a"), now))
	require.Empty(t, w.decide(now), "nobody asks yet")
	require.Equal(t, after(minLook), w.next(now), "the next request is not notified")
}

// TestLooksAgainAfterAnOldList checks that a worker reads the group again if the list still shows a
// member whose end was already notified.
func TestLooksAgainAfterAnOldList(t *testing.T) {
	w := member(t, group([]string{"a", "b"}, "a", "b"))
	w.slots[0] = slot{phase: held, since: now}
	require.Empty(t, w.decide(now))
	require.Zero(t, w.next(now))
	w.gone(2, now)
	require.Equal(t, []effect{{look, -1}}, w.decide(after(settle)))
	require.NoError(t, w.read(group([]string{"a", "b"}, "a", "b"), after(settle)))
	require.Empty(t, w.decide(after(settle)))
	require.Equal(t, after(settle+minLook), w.next(after(settle)))
	w.renewed(2, after(settle)) // it is still there after all
	require.Empty(t, w.past)
}

// TestReadsAfterARejoin checks that a worker that lost its membership and joined again makes no
// claims based on what it read before.
func TestReadsAfterARejoin(t *testing.T) {
	w := member(t, group([]string{"a"}, ""))
	w.left(now)
	w.joined(9, now)
	require.Empty(t, w.decide(now))
	require.Equal(t, after(settle), w.next(now))
}

// TestAbandons checks that a worker that can no longer hear from anybody leaves immediately.
func TestAbandons(t *testing.T) {
	w := member(t, group([]string{"a", "b"}, "a", "b"))
	w.slots[0] = slot{phase: held, since: now}
	w.abandon(now)
	require.Equal(t, []effect{{drain, 0}}, w.decide(now))
	require.Zero(t, w.next(now))
}

// TestGivesWayByTheList checks that a holder whose notification of a request was lost finds the
// request in the list.
func TestGivesWayByTheList(t *testing.T) {
	w := member(t, group([]string{"a"}, "", ""))
	w.decide(now)
	require.True(t, w.granted(0, now) && w.granted(1, now))
	w.lookBy(now)
	w.decide(now)
	g := group([]string{"a", "b"}, "a", "a")
	g.Partitions[1].Waiting = 1
	require.NoError(t, w.read(g, now))
	require.Equal(t, []effect{{drain, 1}}, w.decide(now))
}

// TestPaceOfLooks checks that a waiting worker reads the group less and less often, and that a
// worker that waits for nothing does not read it at all.
func TestPaceOfLooks(t *testing.T) {
	w := member(t, group([]string{"a"}, "b"))
	require.Equal(t, []effect{{claim, 0}}, w.decide(now))
	at, pauses := now, []time.Duration{}
	for range 5 {
		next := w.next(at)
		pauses = append(pauses, next.Sub(at))
		at = next
		require.Equal(t, []effect{{look, -1}}, w.decide(at))
		require.NoError(t, w.read(group([]string{"a"}, "b"), at))
		require.Empty(t, w.decide(at))
	}
	require.Equal(t, []time.Duration{minLook, 2 * minLook, 4 * minLook, maxLook, maxLook}, pauses)
	w.granted(0, at)
	at = at.Add(lookAfter)
	require.Equal(t, []effect{{look, -1}}, w.decide(at))
	require.NoError(t, w.read(group([]string{"a"}, "a"), at))
	require.Empty(t, w.decide(at))
	require.Zero(t, w.next(at))
}

// TestClaimsAsAMemberOnly checks that a worker makes no claims if the list does not show it, or if
// it is not a member.
func TestClaimsAsAMemberOnly(t *testing.T) {
	w := newWorker("a", 1)
	w.joined(7, now.Add(-settle))
	w.decide(now)
	require.NoError(t, w.read(group([]string{"b"}, ""), now))
	require.Empty(t, w.decide(now))
	require.Equal(t, after(settle), w.next(now))

	w = member(t, group([]string{"a"}, ""))
	w.left(now)
	require.Empty(t, w.decide(now))
}

// TestRefusesAnotherCount checks that the first member determines the number of partitions.
func TestRefusesAnotherCount(t *testing.T) {
	w := newWorker("a", 4)
	w.joined(1, now.Add(-settle))
	w.decide(now)
	require.ErrorIs(t, w.read(group([]string{"a"}, "", ""), now), ErrCount)
}

// TestPauseAfterFailures checks that each failure of the function delays the next claim for longer,
// unless the function had been running for some time.
func TestPauseAfterFailures(t *testing.T) {
	w := member(t, group([]string{"a"}, ""))
	at := now
	for i := range 4 {
		require.Contains(t, w.decide(at), effect{claim, 0})
		w.granted(0, at)
		w.ended(0, true, at)
		require.NotContains(t, w.decide(at), effect{claim, 0})
		pause := w.slots[0].retry.Sub(at)
		require.InDelta(t, 75<<i, pause.Milliseconds(), float64(int(25)<<i))
		at = at.Add(pause)
	}
	w.decide(at)
	w.granted(0, at)
	at = at.Add(time.Minute)
	w.returned(0, at)
	w.ended(0, true, at)
	require.LessOrEqual(t, w.slots[0].retry.Sub(at), 100*time.Millisecond)
}

// TestLeaves checks that a worker that leaves withdraws its claims, but keeps each partition until
// somebody asks for it, nobody is left to ask, or it has waited long enough.
func TestLeaves(t *testing.T) {
	leaving := func() *worker {
		w := member(t, group([]string{"a", "b"}, "a", "a", "b"))
		w.slots[0] = slot{phase: held, since: now}
		w.slots[1] = slot{phase: held, since: now}
		w.slots[2] = slot{phase: claiming}
		w.close(now)
		require.Equal(t, []effect{{withdraw, 2}}, w.decide(now))
		w.ended(2, false, now)
		w.left(now)
		return w
	}
	w := leaving()
	w.asked(1)
	require.Contains(t, w.decide(now), effect{drain, 1}, "asked for")
	w.ended(1, false, now)
	require.NoError(t, w.read(group([]string{"a", "b"}, "a", "b", "b"), now)) // its own record is still there
	require.Empty(t, w.decide(now))
	require.False(t, w.done())
	require.Contains(t, w.decide(after(handOver)), effect{drain, 0}, "for long enough")
	require.NoError(t, w.read(group(nil, "a", "b", "b"), after(handOver)))
	w.ended(0, false, now)
	require.True(t, w.done())

	w = leaving()
	require.Equal(t, []effect{{look, -1}}, w.decide(after(settle)))
	require.NoError(t, w.read(group(nil, "a", "a", ""), after(settle)))
	require.Equal(t, []effect{{drain, 0}, {drain, 1}}, w.decide(after(settle)), "nobody is there")
}

// TestStateOfTwoCounts checks that the member with the lowest token determines the number of
// partitions, and that the group shows only partitions below it.
func TestStateOfTwoCounts(t *testing.T) {
	g := State{Members: []Member{{ID: "late", Token: 9, count: 8}, {ID: "first", Token: 2, count: 4}}}
	g.settle([]Placement{{Number: 3}, {Number: 7}})
	require.Equal(t, 4, g.Count)
	require.Len(t, g.Partitions, 4)
	require.Equal(t, "first", g.Members[0].ID)
	require.Equal(t, "late", g.Refused[0].ID)
	for _, p := range g.Partitions {
		require.Equal(t, "first", p.Planned)
	}
}
