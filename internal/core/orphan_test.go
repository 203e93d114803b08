package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// taking is that of attempt 2 of the claim "me", which expected a revision.
func taking(expect uint64) *Taking {
	return &Taking{ID: "me", Attempt: Attempt{N: 2, Expect: expect}, Expect: expect}
}

func refusedBy(revision uint64) Answer { return Answer{Refusal: Conflict, Last: revision} }

// TestTaking: a tombstone takes what an attempt expects. The attempt is refused from then on, where it
// expects a revision: that never comes again.
func TestTaking(t *testing.T) {
	for expect, want := range map[uint64][]int{7: {2}, 0: nil} {
		k := taking(expect)
		require.Equal(t, Delete, k.Begin())
		next, settled := k.Deleted(Answer{Revision: 9})
		require.Equal(t, Taken, next)
		require.Equal(t, want, settled, "expected %d", expect)
	}
}

// TestTakingOfOwn: the attempt was applied, or an earlier one. Its record is deleted at its revision.
func TestTakingOfOwn(t *testing.T) {
	k := taking(7)
	next, _ := k.Deleted(refusedBy(8))
	require.Equal(t, ReadLast, next)
	next, _ = k.Last(stored(8, "me", 1, record.StatusHeld), refusedBy(8))
	require.Equal(t, Delete, next)
	require.EqualValues(t, 8, k.Expect)
	next, settled := k.Deleted(Answer{Revision: 9})
	require.Equal(t, Taken, next)
	require.Equal(t, []int{1, 2}, settled, "the one that was applied, and the one that was to be taken")
}

// TestTakingOfAnothers: the key has the record of another claim, or nothing. It stays.
func TestTakingOfAnothers(t *testing.T) {
	gone := stored(8, "me", 1, record.StatusGone)
	gone.Deleted = true
	for _, e := range []record.Entry{stored(8, "you", 1, record.StatusHeld), gone} {
		k := taking(7)
		next, settled := k.Last(e, refusedBy(8))
		require.Equal(t, Taken, next)
		require.Equal(t, []int{2}, settled, "it expects a revision that has been replaced")
		k = taking(0)
		next, settled = k.Last(e, refusedBy(8))
		require.Equal(t, Taken, next)
		require.Empty(t, settled, "the key may be empty again")
	}
	next, settled := taking(7).Deleted(refusedBy(0))
	require.Equal(t, Taken, next)
	require.Empty(t, settled)
}

// TestTakingAdopted: what a join expects is the gate, and an adoption expects a lock that another client
// may adopt. Neither is taken away. The record that the attempt may have left is.
func TestTakingAdopted(t *testing.T) {
	for _, k := range []*Taking{
		{ID: "me", Attempt: Attempt{N: 2, Expect: 7}, Expect: 7, Guarded: true},
		{ID: "me", Attempt: Attempt{N: 2, Expect: 7}, Expect: 7, Adopts: true},
	} {
		require.Equal(t, ReadOwn, k.Begin())
		require.Equal(t, Await, k.Own(stored(7, "you", 1, record.StatusHanded)))
		require.Equal(t, Delete, k.Own(stored(8, "me", 2, record.StatusHeld)))
		require.EqualValues(t, 8, k.Expect)
	}
}

// TestTakingAgain: without an answer, and while another write is replicated, the tombstone is sent again.
func TestTakingAgain(t *testing.T) {
	for refusal, want := range map[Refusal]TakingStep{InFlight: RetrySoon, Unsure: Retry, Never: Retry, Full: Retry} {
		next, settled := taking(7).Deleted(Answer{Refusal: refusal})
		require.Equal(t, want, next)
		require.Empty(t, settled)
	}
	next, _ := taking(7).Last(stored(7, "me", 1, record.StatusHeld), refusedBy(7))
	require.Equal(t, Retry, next, "a refusal that cannot be")
}

// TestTakings: attempts that expect the same are taken away once.
func TestTakings(t *testing.T) {
	all := Takings("me", []Attempt{{N: 1}, {N: 2}, {N: 3, Expect: 7}}, false, false)
	require.Len(t, all, 2)
	require.Equal(t, 1, all[0].Attempt.N)
	require.EqualValues(t, 7, all[1].Expect)
}
