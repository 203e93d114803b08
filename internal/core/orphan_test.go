package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// taking returns the Taking of attempt 2 of the claim "me", which expected revision expect.
func taking(expect uint64) *Taking {
	return &Takings("me", []Attempt{{N: 2, Expect: expect}}, false)[0]
}

func refusedBy(revision uint64) Answer { return Answer{Refusal: Conflict, Last: revision} }

// TestTaking checks that a tombstone replaces what an attempt expects. An attempt that expects a revision is refused
// forever, because that revision never comes back.
func TestTaking(t *testing.T) {
	for expect, want := range map[uint64][]int{7: {2}, 0: nil} {
		k := taking(expect)
		require.False(t, k.OnlyOwn)
		require.Empty(t, k.Settled())
		require.Equal(t, Removed, k.WriteAnswered(Answer{Revision: 9}, true))
		require.Equal(t, want, k.Settled(), "expected %d", expect)
	}
}

// TestTakingOfOwn checks that if this attempt or an earlier one was applied, its record is deleted at its own
// revision.
func TestTakingOfOwn(t *testing.T) {
	k := taking(7)
	require.Equal(t, ReadRecord, k.WriteAnswered(refusedBy(8), true))
	require.Equal(t, WriteAgain, k.RecordRead(stored(8, "me", 1, record.StatusHeld), false, 8, true, 0))
	require.EqualValues(t, 8, k.Revision)
	require.Empty(t, k.Settled(), "it is still there")
	require.Equal(t, Removed, k.WriteAnswered(Answer{Revision: 9}, true))
	require.Equal(t, []int{1, 2}, k.Settled(), "the one that was applied, and the one that was to be taken")
}

// TestTakingOfAnothers checks that another claim's record under the key, or an empty key, is left alone.
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

// TestTakingGuarded checks that a join deletes the record that its attempt may have left but not the gate, although
// the gate is what the join expects.
func TestTakingGuarded(t *testing.T) {
	k := Takings("me", []Attempt{{N: 2, Expect: 7}}, true)[0]
	require.True(t, k.OnlyOwn)
	require.False(t, k.OwnRecordRead(stored(7, "you", 1, record.StatusHeld)))
	require.True(t, k.OwnRecordRead(stored(8, "me", 2, record.StatusHeld)))
	require.EqualValues(t, 8, k.Revision)
}

// TestTakings checks that several attempts with the same expectation need only one tombstone.
func TestTakings(t *testing.T) {
	all := Takings("me", []Attempt{{N: 1}, {N: 2}, {N: 3, Expect: 7}}, false)
	require.Len(t, all, 2)
	require.Equal(t, 1, all[0].Attempt.N)
	require.EqualValues(t, 7, all[1].Revision)
}
