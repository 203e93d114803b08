package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// taking is that of attempt 2 of the claim "me", which expected a revision.
func taking(expect uint64) *Taking {
	return &Takings("me", []Attempt{{N: 2, Expect: expect}}, false)[0]
}

func refusedBy(revision uint64) Answer { return Answer{Refusal: Conflict, Last: revision} }

// TestTaking: a tombstone takes what an attempt expects. The attempt is refused from then on, where it
// expects a revision: that never comes again.
func TestTaking(t *testing.T) {
	for expect, want := range map[uint64][]int{7: {2}, 0: nil} {
		k := taking(expect)
		require.False(t, k.OnlyOwn)
		require.Empty(t, k.Settled())
		require.Equal(t, Removed, k.WriteAnswered(Answer{Revision: 9}, true))
		require.Equal(t, want, k.Settled(), "expected %d", expect)
	}
}

// TestTakingOfOwn: the attempt was applied, or an earlier one. Its record is deleted at its revision.
func TestTakingOfOwn(t *testing.T) {
	k := taking(7)
	require.Equal(t, ReadRecord, k.WriteAnswered(refusedBy(8), true))
	require.Equal(t, WriteAgain, k.RecordRead(stored(8, "me", 1, record.StatusHeld), false, 8, true, 0))
	require.EqualValues(t, 8, k.Revision)
	require.Empty(t, k.Settled(), "it is still there")
	require.Equal(t, Removed, k.WriteAnswered(Answer{Revision: 9}, true))
	require.Equal(t, []int{1, 2}, k.Settled(), "the one that was applied, and the one that was to be taken")
}

// TestTakingOfAnothers: the key has the record of another claim, or nothing. It stays.
func TestTakingOfAnothers(t *testing.T) {
	for _, e := range []record.Entry{stored(8, "you", 1, record.StatusHeld), ended(8, "me", record.StatusGone)} {
		k := taking(7)
		require.LessOrEqual(t, k.RecordRead(e, false, 8, true, 0), LostBefore)
		require.Equal(t, []int{2}, k.Settled(), "it expects a revision that has been replaced")
		k = taking(0)
		require.LessOrEqual(t, k.RecordRead(e, false, 8, true, 0), LostBefore)
		require.Empty(t, k.Settled(), "the key may be empty again")
	}
	k := taking(7)
	require.Equal(t, LostBefore, k.RecordRead(record.Entry{}, false, 0, true, 0))
	require.Empty(t, k.Settled())
}

// TestTakingGuarded: what a join expects is the gate, which stays. The record that the attempt may have left does not.
func TestTakingGuarded(t *testing.T) {
	k := Takings("me", []Attempt{{N: 2, Expect: 7}}, true)[0]
	require.True(t, k.OnlyOwn)
	require.False(t, k.OwnRecordRead(stored(7, "you", 1, record.StatusHeld)))
	require.True(t, k.OwnRecordRead(stored(8, "me", 2, record.StatusHeld)))
	require.EqualValues(t, 8, k.Revision)
}

// TestTakings: attempts that expect the same are taken away once.
func TestTakings(t *testing.T) {
	all := Takings("me", []Attempt{{N: 1}, {N: 2}, {N: 3, Expect: 7}}, false)
	require.Len(t, all, 2)
	require.Equal(t, 1, all[0].Attempt.N)
	require.EqualValues(t, 7, all[1].Revision)
}
