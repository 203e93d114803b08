package keeper

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// owner owns a record without duties and notes its end. Like a cohort, it takes the keeper's mutex when the record
// ends.
type owner struct {
	Record
	why  string
	over int
}

func (o *owner) NextDuty(due clock.Instant) clock.Instant { return due }
func (o *owner) Perform(clock.Instant)                    {}
func (o *owner) Confirmed(uint64)                         {}
func (o *owner) Refused(error)                            {}
func (o *owner) NoRoom(uint64, error) bool                { return false }
func (o *owner) AtRisk(error)                             {}
func (o *owner) Cooldown(clock.Instant) time.Duration     { return 0 }
func (o *owner) NoteEnd(_ core.End, why string)           { o.why = why }
func (o *owner) Over() {
	o.keeper.Lock()
	defer o.keeper.Unlock()
	o.over++
}

// kept creates n records in a keeper with an in-memory bucket.
func kept(t *testing.T, n int) (*Keeper, []*owner) {
	b := bucket.New(kvstore.NewMemory(kvstore.DefaultBucket).Open(), "", nil)
	r := New(b, Config{Holding: func() {}, Doubted: func() {}, Warn: func(string, ...any) {}})
	all := make([]*owner, n)
	for i := range all {
		o := &owner{}
		r.Make(&o.Record, Granted{
			Name: "l", Key: "lock.l", Revision: 1, Body: record.Body{ID: "me", Status: record.StatusHeld},
			Terms: clock.NewTerms(time.Minute), Sent: b.Instant(),
		}, o)
		r.Take(&o.Record)
		all[i] = o
	}
	t.Cleanup(func() { r.Close(t.Context()); r.Finish(t.Context()); b.KV.Close() })
	return r, all
}

// TestEndsFollowTheMutex checks that the consequences of an end run when the mutex is released, no matter who releases
// it: once per record, and without the mutex held.
func TestEndsFollowTheMutex(t *testing.T) {
	r, all := kept(t, 3)
	r.Lock()
	for _, o := range all {
		o.Fail(core.EndLost, "gone")
		o.Fail(core.EndLost, "again")
	}
	for _, o := range all {
		require.Equal(t, "gone", o.why)
		require.Zero(t, o.over, "under the mutex")
	}
	r.Unlock()
	for _, o := range all {
		require.Equal(t, 1, o.over)
	}
	require.Zero(t, r.Held())
}

// TestLeaveTwice checks that a holder ends its record only once and that both callers wait for that end.
func TestLeaveTwice(t *testing.T) {
	_, all := kept(t, 1)
	gone := all[0].Leave(record.StatusGone)
	require.Equal(t, gone, all[0].Leave(record.StatusGone))
	<-gone
	require.Equal(t, 1, all[0].over)
}

// TestTombstoneOfAPlaceThatGrows checks that goroutines may join a place's FIFO until its seeker has noted the grant.
// It relies on the race detector.
func TestTombstoneOfAPlaceThatGrows(t *testing.T) {
	_, all := kept(t, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		all[0].SetSize(2)
	}()
	_, err := all[0].closing(record.StatusGranted, 1, false)
	require.NoError(t, err)
	<-done
}
