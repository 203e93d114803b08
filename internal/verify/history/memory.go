package history

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// begins is the time when a bucket in memory is made, that of a server in a bubble:
// sequences count from 2016, and the clock of synctest begins in the year 2000.
var begins = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// InMemory runs fn with a bucket in memory, in a bubble of fake time without a server. It
// is for simulations and tables of faults: they are several times as fast as in a
// testutil.Bubble. Connect clients with [NewLine] or [FaultyInMemory]. Nothing leaves the
// bubble, so several may run at a time.
func InMemory(t *testing.T, fn func(t *testing.T, m *kvstore.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(begins))
		fn(t, kvstore.NewMemory(kvstore.DefaultBucket))
	})
}

// memoryTap records the changes of a bucket in memory: the bucket notifies a store that no
// client has, of each write that it has applied and in their order.
type memoryTap struct {
	store kvstore.KV
	mu    sync.Mutex
	got   []Entry
}

// TapMemory records the changes of a bucket in memory from now on.
func (r *Recorder) TapMemory(t testing.TB, m *kvstore.Memory) {
	t.Helper()
	p := &memoryTap{store: m.Open()}
	t.Cleanup(p.store.Close)
	_, err := p.store.Watch(">", func(ev kvstore.Event) {
		if ev.Kind != kvstore.Put && ev.Kind != kvstore.Deleted {
			return
		}
		rec := ev.Record
		e := Entry{Key: rec.Key, Revision: rec.Revision, At: r.at(rec.Time), TTL: rec.TTL, Deleted: rec.Deleted}
		if rec.TTL == 0 {
			e.TTL = never
		}
		r.value(&e, rec.Value)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.got = append(p.got, e)
	})
	require.NoError(t, err)
	r.taps = append(r.taps, p)
}

// all returns the changes. The answer to a write comes after the notifications of all
// changes before it.
func (p *memoryTap) all() []Entry {
	there := make(chan struct{})
	_, err := p.store.Send(kvstore.Write{Key: "tap", Expect: kvstore.NoRevision, TTL: time.Second}, func(kvstore.Answer) { close(there) })
	if err == nil { // else the test has ended
		<-there
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Entry(nil), p.got...)
}
