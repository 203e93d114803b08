package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
)

// TestBid checks whether the outcome of an attempt decides the bid and, if it does not, how the attempt is repeated.
func TestBid(t *testing.T) {
	type came struct {
		outcome   Outcome
		why       Trouble
		tombstone uint64
	}
	again := func(why Trouble) came { return came{Again, why, 0} }
	for _, c := range []struct {
		name string
		bid  Bid
		came came
		want Repeat
	}{
		{"granted", Bid{}, came{Granted, 0, 0}, Repeat{Decided: Granted}},
		{"held", Bid{}, came{Busy, 0, 0}, Repeat{Decided: Busy}},
		{"refused by a record that was not read", Bid{}, came{Refused, 0, 7}, Repeat{Decided: Refused}},
		{"a tombstone to claim at", Bid{}, came{Free, 0, 7}, Repeat{Decided: Free}},
		{"the expected tombstone has expired", Bid{}, came{Free, 0, 0}, Repeat{}},
		{"what was handed over has gone", Bid{Adopts: true}, came{Free, 0, 0}, Repeat{Decided: Free}},
		{"a late answer", Bid{}, came{Lost, 0, 0}, Repeat{Closes: true}},
		{"a record below a known revision", Bid{}, came{Failed, 0, 0}, Repeat{Decided: Failed, Closes: true}},
		{"no answer", Bid{}, again(Silence), Repeat{Backoff: Outage}},
		{"no answer, to one who asks once", Bid{Once: true}, again(Silence), Repeat{Decided: Failed}},
		{"no answer to a join", Bid{Guarded: true}, again(Silence), Repeat{Backoff: Outage, Closes: true}},
		{"another write in flight", Bid{Once: true}, again(Replicating), Repeat{Backoff: Flight}},
		{"another write in flight, of a join", Bid{Guarded: true}, again(Replicating), Repeat{Backoff: Flight}},
		{"no permission", Bid{}, again(Hopeless), Repeat{Decided: Failed}},
		{"no room for a newcomer", Bid{}, again(NoSpace), Repeat{Backoff: Outage}},
		{"no room for a waiter, at first", Bid{Placed: true}, again(NoSpace), Repeat{Backoff: Outage}},
		{"no leader", Bid{}, again(Leaderless), Repeat{Backoff: Outage}},
		{"an unmapped subject, at first", Bid{}, again(Unmapped), Repeat{Backoff: Outage, N: unmappedPause}},
		{"an unmapped subject, at first, of a one-shot", Bid{Once: true}, again(Unmapped), Repeat{Backoff: Outage, N: unmappedPause}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := c.bid
			b.Begin(followBegun)
			require.False(t, b.MayPass(7, followBegun))
			require.Equal(t, c.want, b.AttemptEnded(c.came.outcome, c.came.why, c.came.tombstone, followBegun))
		})
	}
}

// TestBidCrowded checks that a waiter whose claims keep finding no room gives up its place to make room.
func TestBidCrowded(t *testing.T) {
	b := Bid{Placed: true}
	b.Begin(followBegun)
	for n := range fullTries {
		require.Equal(t, Repeat{Backoff: Outage, N: n}, b.AttemptEnded(Again, NoSpace, 0, followBegun))
	}
	require.Equal(t, Repeat{Decided: NoRoom, Closes: true}, b.AttemptEnded(Again, NoSpace, 0, followBegun))
	b = Bid{Placed: true}
	b.Begin(followBegun)
	for range fullTries {
		b.AttemptEnded(Again, Silence, 0, followBegun)
	}
	require.Equal(t, Undecided, b.AttemptEnded(Again, NoSpace, 0, followBegun).Decided, "an outage is no want of room")
	b = Bid{}
	b.Begin(followBegun)
	for n := range 2 * fullTries {
		require.Equal(t, Repeat{Backoff: Outage, N: n}, b.AttemptEnded(Again, NoSpace, 0, followBegun), "it has no place")
	}
}

// TestBidLeaderless checks that a bid tolerates a stream without a leader for a limited time only, and that the time
// keeps running in the next offer.
func TestBidLeaderless(t *testing.T) {
	var b Bid
	at := followBegun
	b.Begin(at)
	at = at.Add(NoStreamFor)
	require.Equal(t, Outage, b.AttemptEnded(Again, Leaderless, 0, at).Backoff)
	b.Begin(at)
	at = at.Add(time.Millisecond)
	require.Equal(t, Failed, b.AttemptEnded(Again, Leaderless, 0, at).Decided)
	b.AttemptEnded(Busy, 0, 0, at)
	require.Zero(t, b.Begun, "an answer ends that time")
}

// TestBidUnmapped checks that a subject without responders is treated as unmapped only after the stream has had a
// leader at every attempt for a while, because the first attempt may have met a change of leader. The period carries
// over to the next offer.
func TestBidUnmapped(t *testing.T) {
	later := followBegun.Add(learnFor)
	for _, once := range []bool{false, true} {
		b := Bid{Once: once}
		b.Begin(followBegun)
		b.AttemptEnded(Again, Unmapped, 0, followBegun)
		require.Equal(t, Undecided, b.AttemptEnded(Again, Unmapped, 0, later-1).Decided)
		b.Begin(later)
		require.Equal(t, Failed, b.AttemptEnded(Again, Unmapped, 0, later).Decided)
	}
	for _, between := range []Trouble{Leaderless, Silence, Replicating} {
		b := Bid{}
		b.Begin(followBegun)
		b.AttemptEnded(Again, Unmapped, 0, followBegun)
		b.AttemptEnded(Again, between, 0, followBegun)
		require.Equal(t, Undecided, b.AttemptEnded(Again, Unmapped, 0, later).Decided)
	}
	b := Bid{}
	b.Begin(followBegun)
	b.AttemptEnded(Again, Unmapped, 0, followBegun)
	b.AttemptEnded(Lost, 0, 0, followBegun)
	require.Equal(t, Undecided, b.AttemptEnded(Again, Unmapped, 0, later).Decided, "the server has answered meanwhile")
}

// TestBidBackoffs checks that the pauses between unanswered attempts grow, and that an attempt acknowledged too late is
// repeated immediately, but not forever.
func TestBidBackoffs(t *testing.T) {
	var b Bid
	b.Begin(followBegun)
	for n := range 3 {
		require.EqualValues(t, 1, b.Patience())
		require.Equal(t, Repeat{Backoff: Outage, N: n}, b.AttemptEnded(Again, Silence, 0, followBegun))
	}
	for range 3 {
		require.Equal(t, Repeat{Closes: true}, b.AttemptEnded(Lost, 0, 0, followBegun))
	}
	require.Equal(t, Repeat{Closes: true, Backoff: Outage, N: 4}, b.AttemptEnded(Lost, 0, 0, followBegun))
	require.Equal(t, Repeat{Backoff: Outage}, b.AttemptEnded(Again, Silence, 0, followBegun), "the silence is a new one")
	require.Equal(t, Repeat{Backoff: Flight}, b.AttemptEnded(Again, Replicating, 0, followBegun))
	require.Equal(t, Repeat{Backoff: Flight, N: 1}, b.AttemptEnded(Again, Replicating, 0, followBegun))

	b = Bid{}
	b.Begin(followBegun)
	for tries := 1; tries <= 5; tries++ {
		want := Repeat{}
		if tries > 3 {
			want = Repeat{Backoff: Short, N: tries - 1}
		}
		b.MayPass(7, followBegun)
		require.Equal(t, want, b.AttemptEnded(Free, 0, 0, followBegun), "the tombstones that it expects expire again and again")
	}
}

// TestBidPatience checks that each join after an unanswered one waits longer for its reply, up to a bound.
func TestBidPatience(t *testing.T) {
	b := Bid{Guarded: true}
	b.Begin(followBegun)
	for _, want := range []time.Duration{1, 2, 2, 2} {
		require.Equal(t, want, b.Patience())
		b.AttemptEnded(Again, Silence, 0, followBegun)
	}
	b.AttemptEnded(Lost, 0, 0, followBegun)
	require.EqualValues(t, 1, b.Patience(), "the server answers again")
	b = Bid{Guarded: true, Once: true}
	b.AttemptEnded(Again, Silence, 0, followBegun)
	require.EqualValues(t, 1, b.Patience(), "a one-shot")
}

// TestBidPasses checks that a claim based on a look at the queue is not repeated once that look is too old. A mutex
// without a record has no queue, but a slot may have one.
func TestBidPasses(t *testing.T) {
	until := followBegun.Add(100 * time.Millisecond)
	for _, c := range []struct {
		name   string
		bid    Bid
		expect uint64
		at     clock.Instant
		want   bool
	}{
		{"in time", Bid{Until: until}, 7, until - 1, false},
		{"too late", Bid{Until: until}, 7, until, true},
		{"at no record", Bid{Until: until}, 0, until, false},
		{"of a slot without a record", Bid{Until: until, Slot: true}, 0, until, true},
		{"from the head of the queue", Bid{}, 7, until, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.bid.Begin(followBegun)
			require.False(t, c.bid.MayPass(c.expect, c.at), "who makes the offer has looked just now")
			require.Equal(t, c.want, c.bid.MayPass(c.expect, c.at))
		})
	}
}
