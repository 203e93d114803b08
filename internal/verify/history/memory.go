package history

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// memoryTap records the changes to an in-memory bucket. It watches through a store that no
// client uses and that receives every applied write in order.
type memoryTap struct {
	store kvstore.KV
	mu    sync.Mutex
	got   []Entry
}

// TapMemory records the changes to an in-memory bucket from now on.
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

// all returns the changes so far. It first waits for the answer to a write of its own, which
// arrives after the notifications of all earlier changes.
func (p *memoryTap) all() []Entry {
	there := make(chan struct{})
	_, err := p.store.Send(kvstore.Write{Key: "tap", Expect: kvstore.NoRevision, TTL: time.Second}, func(kvstore.Answer) { close(there) })
	if err == nil { // otherwise the test has ended
		<-there
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Entry(nil), p.got...)
}
