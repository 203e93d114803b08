package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestBreak checks which step an operator's break takes after each read. The leader has stored revisions up
// to 20.
func TestBreak(t *testing.T) {
	mine, other := stored(10, "me", 1, record.StatusHeld), stored(12, "you", 1, record.StatusHeld)
	broken := stored(11, "me", 1, record.StatusBroken)
	for _, c := range []struct {
		name  string
		now   bool
		found []record.Entry // in the order of the reads
		want  []BreakStep
	}{
		{"its record", false, []record.Entry{mine}, []BreakStep{BreakWrite}},
		{"another claim's", false, []record.Entry{other, other}, []BreakStep{BreakRead, BreakTaken}},
		{"another claim's, by a replica that lags", false, []record.Entry{other, mine}, []BreakStep{BreakRead, BreakWrite}},
		{"nothing", false, []record.Entry{{}, {}}, []BreakStep{BreakRead, BreakGone}},
		{"a broken record", false, []record.Entry{broken, broken}, []BreakStep{BreakRead, BreakDone}},
		{"a broken record, which is to go", true, []record.Entry{broken}, []BreakStep{BreakWrite}},
		{"a tombstone of a break", false, []record.Entry{ended(12, "me", record.StatusBroken), ended(12, "me", record.StatusBroken)}, []BreakStep{BreakRead, BreakGone}},
		{"a tombstone of this break", true, []record.Entry{mine, ended(12, "me", record.StatusBroken), ended(12, "me", record.StatusBroken)}, []BreakStep{BreakWrite, BreakRead, BreakDone}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &Break{ID: "me", Immediately: c.now}
			for i, e := range c.found {
				require.Equal(t, c.want[i], b.RecordRead(e, false, 20), i)
			}
			if c.want[0] == BreakRead {
				require.EqualValues(t, 20, b.AsOf)
			}
		})
	}
}

// TestBreakEmpty checks that an empty key proves the claim is gone only if the leader's state contains what
// was read.
func TestBreakEmpty(t *testing.T) {
	mine := stored(10, "me", 1, record.StatusHeld)
	b := &Break{ID: "me"}
	require.Equal(t, BreakRead, b.RecordRead(mine, true, 10))
	require.Equal(t, BreakGone, b.RecordRead(mine, true, 10))
	require.Equal(t, BreakWrite, (&Break{ID: "me"}).RecordRead(mine, true, 9))
	require.Equal(t, BreakWrite, (&Break{ID: "me", AsOf: 11}).RecordRead(mine, true, 10))
}

// TestBreakWrote checks that a refused break follows a holder that has renewed its record.
func TestBreakWrote(t *testing.T) {
	b := &Break{ID: "me"}
	require.Equal(t, BreakDone, b.WriteAnswered(Answer{Revision: 11}, 10, 20))
	require.Equal(t, BreakRead, b.WriteAnswered(Answer{Refusal: Unsure}, 10, 20))
	require.Zero(t, b.AsOf)
	require.Equal(t, BreakRead, b.WriteAnswered(refusedBy(12), 10, 11))
	require.EqualValues(t, 12, b.AsOf)
	require.Equal(t, BreakGone, b.RecordRead(record.Entry{}, false, 20), "it needs no other proof")
	b = &Break{ID: "me"}
	b.WriteAnswered(refusedBy(0), 10, 20)
	require.EqualValues(t, 20, b.AsOf)
}

// TestBrokenFor checks that a broken record lives for as long as its holder may still believe in it.
func TestBrokenFor(t *testing.T) {
	begin := time.Unix(1_000, 0)
	e := stored(10, "me", 1, record.StatusHeld)
	e.Record.TTL, e.Time = 15*time.Second, begin
	b := &Break{}
	require.Equal(t, 15*time.Second, b.BrokenFor(e, begin.Add(10*time.Second), time.Minute))
	require.Zero(t, b.BrokenFor(e, begin.Add(15*time.Second+record.OverdueSlack), time.Minute), "overdue")
	require.Zero(t, (&Break{Immediately: true}).BrokenFor(e, begin, time.Minute))
	e.Fixed = true
	require.Equal(t, 15*time.Second, b.BrokenFor(e, begin.Add(record.OverdueSlack), time.Minute))
	require.Equal(t, 14*time.Second, b.BrokenFor(e, begin.Add(record.OverdueSlack+1900*time.Millisecond), time.Minute))
	none := stored(10, "me", 1, record.StatusHeld)
	require.Equal(t, time.Minute, b.BrokenFor(none, begin, time.Minute))
}
