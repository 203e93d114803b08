package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// left returns a record that no process renews, stored at time at after the beginning. by is the time after the
// beginning by which the server had to store it, or 0 for no limit.
func left(revision uint64, ttl, at, by time.Duration) record.Entry {
	e := stored(revision, "me", 0, record.StatusHeld)
	e.Token, e.Fixed, e.Record.TTL, e.Time = 640, true, ttl, time.Unix(1_000, 0).Add(at)
	if by > 0 {
		e.By = time.Unix(1_000, 0).Add(by).UnixMilli()
	}
	return e
}

const second = time.Second

// TestExtending covers the races of an extension. The first record has revision 10 and a TTL of 10 s, hence a
// margin of 1 s. The handle carries its token and wants 10 s.
func TestExtending(t *testing.T) {
	type act struct {
		found record.Entry // as read from the leader, whose clock shows at; requested at that instant as well
		at    time.Duration
		want  HandleStep

		answer   Answer // to the write, which is sent at that instant
		answered time.Duration
		then     HandleStep
	}
	mine := left(10, 10*second, 0, 0)
	taken := mine
	taken.ID = "you"
	older := mine
	older.Token = 641
	renewed := mine
	renewed.Fixed = false
	unreadable := mine
	unreadable.Unreadable = true
	yes := Answer{Revision: 11}
	write := func(at time.Duration, a Answer, answered time.Duration, then HandleStep) act {
		return act{mine, at, HandleWrite, a, answered, then}
	}
	for _, c := range []struct {
		name  string
		acts  []act
		valid time.Duration // until when it is valid; 0: not extended
	}{
		{"at once", []act{write(4*second, yes, 5*second, HandleDone)}, 13 * second},
		{"gone", []act{{at: second, want: HandleGone}}, 0},
		{"released", []act{{found: ended(11, "me", record.StatusGone), at: second, want: HandleGone}}, 0},
		{"taken", []act{{found: taken, at: second, want: HandleTaken}}, 0},
		{"unreadable", []act{{found: unreadable, at: second, want: HandleTaken}}, 0},
		{"renewed by its holder", []act{{found: renewed, at: second, want: HandleKept}}, 0},
		{"another token", []act{{found: older, at: second, want: HandleTaken}}, 0},
		{"broken", []act{{found: stored(11, "me", 0, record.StatusBroken), at: second, want: HandleBroken}}, 0},
		{"broken at once", []act{{found: ended(11, "me", record.StatusBroken), at: second, want: HandleBroken}}, 0},
		{"its validity is over", []act{{found: mine, at: 9 * second, want: HandleLate}}, 0},
		{"overdue", []act{{found: mine, at: 11 * second, want: HandleLate}}, 0},
		{"extended before", []act{{left(11, 10*second, 8*second, 9*second), 9 * second, HandleWrite, Answer{Revision: 12}, 9 * second, HandleDone}}, 18 * second},
		{"stored too late", []act{{found: left(11, 10*second, 9*second, 9*second), at: 10 * second, want: HandleLate}}, 0},
		{"by another process", []act{write(2*second, refusedBy(11), 3*second, HandleRead),
			{found: left(11, 10*second, 2*second, 9*second), at: 4 * second, want: HandleDone}}, 11 * second},
		{"by another process, for less", []act{write(2*second, refusedBy(11), 3*second, HandleRead),
			{left(11, 5*second, 2*second, 9*second), 4 * second, HandleWrite, Answer{Revision: 12}, 4 * second, HandleDone}}, 13 * second},
		{"released meanwhile", []act{write(2*second, refusedBy(11), 3*second, HandleRead), {found: ended(11, "me", record.StatusGone), at: 3 * second, want: HandleGone}}, 0},
		{"broken meanwhile", []act{write(2*second, refusedBy(11), 3*second, HandleRead), {found: stored(11, "me", 0, record.StatusBroken), at: 3 * second, want: HandleBroken}}, 0},
		{"removed meanwhile", []act{write(8*second, refusedBy(0), 9*second, HandleRead), {at: 10 * second, want: HandleGone}}, 0},
		{"refused by a deposed leader", []act{write(2*second, refusedBy(9), 2*second, HandleRead), write(3*second, yes, 3*second, HandleDone)}, 12 * second},
		{"the answer was lost", []act{write(2*second, Answer{Refusal: Unsure}, 3*second, HandleRead),
			{found: left(11, 10*second, 2*second, 9*second), at: 3 * second, want: HandleDone}}, 11 * second},
		{"the write was lost", []act{write(2*second, Answer{Refusal: Unsure}, 3*second, HandleRead), write(3*second, yes, 3*second, HandleDone)}, 12 * second},
		{"the answer came late", []act{write(2*second, yes, 9*second, HandleRead),
			{found: left(11, 10*second, 2*second, 9*second), at: 10 * second, want: HandleDone}}, 11 * second},
		{"it was stored late, and the answer came late", []act{write(8*second, yes, 10*second, HandleRead),
			{found: left(11, 10*second, 9*second, 9*second), at: 10 * second, want: HandleLate}}, 0},
		{"another write is in flight", []act{write(2*second, Answer{Refusal: InFlight}, 2*second, HandleRead), write(2*second, yes, 2*second, HandleDone)}, 11 * second},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &Extending{Handle: Handle{"me", 640}, TTL: 10 * second}
			at := func(d time.Duration) clock.Instant { return clock.Instant(0).Add(d) }
			for i, a := range c.acts {
				require.Equal(t, a.want, x.RecordRead(a.found, time.Unix(1_000, 0).Add(a.at), at(a.at)), i)
				if a.want == HandleWrite {
					require.Equal(t, a.then, x.WriteAnswered(a.answer, a.found.Revision, at(a.at), at(a.answered)), i)
				}
				if a.then == HandleRead && a.want == HandleWrite {
					require.GreaterOrEqual(t, x.AsOf, max(a.found.Revision, a.answer.Last, a.answer.Revision))
				}
			}
			require.Equal(t, at(c.valid), x.Valid)
		})
	}
}

// TestExtendingTerms checks that an extension never ends sooner than the record it replaces, and must be stored
// within that record's validity.
func TestExtendingTerms(t *testing.T) {
	begin := time.Unix(1_000, 0)
	for _, c := range []struct {
		ttl, at, wanted, want time.Duration
	}{
		{10 * second, 4 * second, 10 * second, 10 * second},
		{10 * second, 4 * second, 20 * second, 20 * second},
		{60 * second, 4500 * time.Millisecond, 10 * second, 56 * second},
		{60 * second, 52 * second, 10 * second, 10 * second},
	} {
		x := &Extending{Handle: Handle{"me", 640}, TTL: c.wanted}
		e := left(10, c.ttl, 0, 0)
		require.Equal(t, HandleWrite, x.RecordRead(e, begin.Add(c.at), 0))
		require.Equal(t, clock.NewTerms(c.want), x.Terms)
		require.Equal(t, begin.Add(clock.NewTerms(c.ttl).Validity()), x.By)
	}
}

// TestExtendingShort checks that a confirmation must also arrive within the validity that it grants.
func TestExtendingShort(t *testing.T) {
	x := &Extending{Handle: Handle{"me", 640}, TTL: second}
	require.Equal(t, HandleWrite, x.RecordRead(left(10, 3*second, 0, 0), time.Unix(1_002, 0), 0))
	end := x.Terms.End(0)
	require.Equal(t, HandleRead, x.WriteAnswered(Answer{Revision: 11}, 10, -clock.Instant(second), end))
	require.EqualValues(t, 11, x.AsOf)
}
