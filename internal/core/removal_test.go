package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// removal ends the record of "me" that was acknowledged at revision 10.
func removal() *Removal { return &Removal{ID: "me", Revision: 10} }

func ended(revision uint64, id string, status record.Status) record.Entry {
	e := stored(revision, id, 1, status)
	e.Deleted = true
	return e
}

// TestRemovalWrote checks what follows from the reply to the write.
func TestRemovalWrote(t *testing.T) {
	for _, c := range []struct {
		refusal    Refusal
		alone      bool
		want       RemovalStep
		unanswered bool
	}{
		{Acknowledged, true, Removed, false},
		{Conflict, true, ReadRecord, false},
		{InFlight, true, WriteSoon, false},
		{InFlight, false, WriteSoon, true}, // a deposed leader refuses the same way
		{Unsure, true, WriteLater, true},
	} {
		r := removal()
		require.Equal(t, c.want, r.WriteAnswered(Answer{Refusal: c.refusal}, c.alone))
		require.Equal(t, c.unanswered, r.unanswered)
	}
}

// TestRemovalFound checks what follows from the record that refused the write, at revision 11.
func TestRemovalFound(t *testing.T) {
	type found struct {
		entry  record.Entry
		named  uint64
		alone  bool
		unread bool
	}
	at := func(e record.Entry) found { return found{entry: e, named: 11, alone: true} }
	leaving := func(r *Removal) { r.Final = 3 }
	handing := func(r *Removal) { r.Final, r.HandsOff = 3, true }
	renewal := func(n uint64) record.Entry {
		e := stored(11, "me", 0, record.StatusHeld)
		e.Renewal = n
		return e
	}
	lost := func(r *Removal) { r.WriteAnswered(Answer{Refusal: Unsure}, true) }
	for _, c := range []struct {
		name  string
		is    func(*Removal)
		found found
		want  RemovalStep
	}{
		{"a renewal of its own", nil, at(stored(11, "me", 1, record.StatusHeld)), WriteAgain},
		{"the next holder's", nil, at(stored(11, "you", 1, record.StatusHeld)), LostBefore},
		{"nothing", nil, at(record.Entry{}), LostBefore},
		{"the next holder's, where an answer was lost", lost, at(stored(11, "you", 1, record.StatusHeld)), Removed},
		{"its own tombstone", nil, at(ended(11, "me", record.StatusGone)), Removed},
		{"its last renewal", leaving, at(renewal(3)), Removed},
		{"a renewal before its last one", leaving, at(renewal(2)), WriteAgain},
		{"its last renewal, broken", leaving, at(stored(11, "me", 0, record.StatusBroken)), WriteAgain},
		{"what it hands over", handing, at(renewal(3)), Removed},
		{"a renewal before what it hands over", handing, at(renewal(2)), WriteAgain},
		{"another's, where it hands over", handing, at(stored(11, "you", 1, record.StatusHeld)), LostBefore},
		{"an own tombstone, where it hands over and an answer was lost", func(r *Removal) { handing(r); lost(r) }, at(ended(11, "me", record.StatusGone)), LostBefore},
		{"its record, by a leader that does not know it", nil, found{entry: stored(10, "me", 1, record.StatusHeld), named: 9}, WriteSoon},
		{"no answer", nil, found{named: 11, alone: true, unread: true}, WriteLater},
		{"an older record, of a server that lags", nil, found{entry: stored(9, "me", 1, record.StatusHeld), named: 11}, WriteLater},
		// A refusal by a leader that does not know the acknowledged revision comes from a deposed leader.
		{"another's, by a deposed leader", nil, found{entry: stored(12, "you", 1, record.StatusHeld), named: 9}, Removed},
		{"another's, by the only server", nil, found{entry: stored(12, "you", 1, record.StatusHeld), named: 9, alone: true}, LostBefore},
		{"nothing yet, by a deposed leader", nil, found{named: 9}, LostBefore},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := removal()
			if c.is != nil {
				c.is(r)
			}
			require.Equal(t, c.want, r.RecordRead(c.found.entry, c.found.unread, c.found.named, c.found.alone, 0))
		})
	}
}

// TestRemovalOfRenewed checks that the next write expects the renewal that was still under way.
func TestRemovalOfRenewed(t *testing.T) {
	r := removal()
	r.RecordRead(stored(11, "me", 1, record.StatusHeld), false, 11, true, 0)
	require.EqualValues(t, 11, r.Revision)
}

// TestRemovalBroken checks that an operator's break stands, whatever is found after it. The broken record is deleted,
// unless the lock was to be handed over, in which case it is left as it is.
func TestRemovalBroken(t *testing.T) {
	for _, e := range []record.Entry{stored(11, "me", 1, record.StatusBroken), ended(11, "me", record.StatusBroken)} {
		r := removal()
		r.HandsOff = true
		require.Equal(t, LostBefore, r.RecordRead(e, false, 11, true, 0))
		require.NotNil(t, r.Broken)
	}
	r := removal()
	require.Equal(t, WriteAgain, r.RecordRead(stored(11, "me", 1, record.StatusBroken), false, 11, true, 0))
	require.NotNil(t, r.Broken)
	require.Equal(t, Removed, r.RecordRead(stored(12, "you", 1, record.StatusHeld), false, 12, true, 0))
	r = removal()
	require.Equal(t, Removed, r.RecordRead(ended(11, "me", record.StatusBroken), false, 11, true, 0))
	require.NotNil(t, r.Broken)
}

// TestRemovalLate checks that an empty key proves nothing after more than a second, because a tombstone may have come
// and gone.
func TestRemovalLate(t *testing.T) {
	require.Equal(t, Removed, removal().RecordRead(record.Entry{}, false, 9, false, 2*time.Second))
}

// TestRemovalExact checks that only the exact record that is meant is removed.
func TestRemovalExact(t *testing.T) {
	r := removal()
	r.Exact = true
	require.Equal(t, Removed, r.WriteAnswered(refusedBy(11), true))
	require.Equal(t, WriteLater, r.WriteAnswered(Answer{Refusal: Unsure}, true))
}
