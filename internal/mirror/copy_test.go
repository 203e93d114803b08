package mirror

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	locks "github.com/natslock/locks/natslock/admin"
)

// stub returns a lock's record at a revision.
func stub(t testing.TB, key string, revision uint64, status record.Status) kvstore.Record {
	t.Helper()
	body := record.Body{Status: status, ID: fmt.Sprint("id-", key), TTL: 15, Size: int32(revision)}
	value, err := body.Encode()
	require.NoError(t, err)
	return kvstore.Record{Key: key, Value: value, Revision: revision, Time: time.Unix(int64(revision), 0), TTL: 15 * time.Second, Deleted: status == record.StatusGone}
}

// TestCopyInAnyOrder writes to a few keys and delivers the events in order, some before, some during and some after
// a list. Half of the runs lose some of the events before the list. In the end the copy must equal the bucket.
func TestCopyInAnyOrder(t *testing.T) {
	keys := record.KeysOf(record.Mutex, "l")
	all := []string{keys.Gate, keys.Place("a"), keys.Place("b")}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		bucket := map[string]kvstore.Record{}
		copied := newRecords(func(ID) {})
		var late []kvstore.Event // events that are under way
		deliver := func(n int) {
			for _, ev := range late[:n] {
				copied.apply(ev)
			}
			late = late[n:]
		}
		revision := uint64(0)
		lossy := r.IntN(2) == 0
		write := func() {
			revision++
			key := all[r.IntN(len(all))]
			ev := kvstore.Event{Kind: kvstore.Put}
			status := record.StatusWaiting
			if key == keys.Gate {
				status = record.StatusHeld
			}
			if old, there := bucket[key]; there && r.IntN(3) == 0 {
				ev.Kind, status = kvstore.Deleted, record.StatusGone
				if r.IntN(2) == 0 { // the server removes it without telling anybody
					ev.Kind, ev.Record = kvstore.Expired, old
				}
			}
			if ev.Kind != kvstore.Expired {
				ev.Record = stub(t, key, revision, status)
			}
			if delete(bucket, key); ev.Kind == kvstore.Put {
				bucket[key] = ev.Record
			}
			if !lossy || r.IntN(2) == 0 {
				late = append(late, ev)
			}
		}
		for range r.IntN(10) {
			write()
			deliver(r.IntN(len(late) + 1))
		}
		if lossy {
			deliver(len(late)) // a loss is noticed only through what follows it
			lossy = false
		}
		copied.listing()
		deliver(r.IntN(len(late) + 1))
		var list []record.Entry
		for _, rec := range bucket {
			list = append(list, record.Of(rec))
		}
		for range r.IntN(10) {
			write()
			deliver(r.IntN(len(late) + 1))
		}
		copied.listed(list)
		deliver(len(late))
		got := map[string]uint64{}
		for key, s := range copied.byKey {
			got[key] = s.Revision
		}
		want := map[string]uint64{}
		for key, rec := range bucket {
			want[key] = rec.Revision
		}
		require.Equal(t, want, got, "seed %d", seed)
		require.Equal(t, len(bucket) > 0, len(copied.locks) > 0, "seed %d", seed)
	}
}

// TestCopyShows checks that a copy shows what a list of the bucket shows. The tombstone of a place that was granted
// ends the place, and a place's renewal tells how many goroutines wait at it.
func TestCopyShows(t *testing.T) {
	var changed []ID
	copied := newRecords(func(id ID) { changed = append(changed, id) })
	put := func(key string, revision uint64, status record.Status) {
		copied.apply(kvstore.Event{Kind: kvstore.Put, Record: stub(t, key, revision, status)})
	}
	id := ID{locks.KindMutex, "l"}
	keys := record.KeysOf(record.Mutex, "l")
	put(keys.Gate, 1, record.StatusHeld)
	put(keys.Place("b"), 3, record.StatusWaiting)
	put(keys.Place("a"), 2, record.StatusWaiting)
	put(keys.Place("c"), 4, record.StatusHeld) // no waiter wrote it
	require.Equal(t, []ID{id, id, id}, changed)
	info := copied.info(id)
	require.Equal(t, "id-"+keys.Gate, info.Holder.ID)
	require.Equal(t, []int{2, 3}, []int{info.Queue[0].Goroutines, info.Queue[1].Goroutines}, "in the order of their tickets")

	put(keys.Place("a"), 5, record.StatusWaiting)
	renewed := copied.info(id)
	require.True(t, slices.ContainsFunc(renewed.Queue, func(w locks.Waiter) bool { return w.Goroutines == 5 }))
	require.Len(t, info.Queue, 2, "what was shown does not change")
	copied.apply(kvstore.Event{Kind: kvstore.Deleted, Record: stub(t, keys.Place("b"), 6, record.StatusGone)})
	require.Len(t, copied.info(id).Queue, 1)

	copied.clear()
	require.Equal(t, locks.Info{Kind: id.Kind, Name: "l"}, copied.info(id))
	require.Empty(t, copied.infos(func(ID) bool { return true }))
}

// TestCopyOfOverdue checks that a record whose TTL has ended but which the server has not removed is shown as
// overdue, whatever this machine's clock says.
func TestCopyOfOverdue(t *testing.T) {
	copied := newRecords(func(ID) {})
	keys := record.KeysOf(record.Mutex, "l")
	rec := stub(t, keys.Gate, 1, record.StatusHeld)
	overdue := record.Of(rec)
	overdue.Overdue = true
	expired := kvstore.Event{Kind: kvstore.Expired, Record: rec}
	id := ID{locks.KindMutex, "l"}

	copied.listing()
	copied.apply(expired)
	copied.listed([]record.Entry{overdue})
	require.True(t, copied.info(id).Holder.Overdue)
	copied.apply(expired)
	require.True(t, copied.info(id).Holder.Overdue)
	copied.listing()
	copied.listed(nil)
	require.Nil(t, copied.info(id).Holder)
}
