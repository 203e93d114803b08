package session

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// asked is a store that leaves the reply to each write to the test.
type asked struct {
	kvstore.KV
	mu     sync.Mutex
	writes []write
}

type write struct {
	kvstore.Write
	answer func(kvstore.Answer)
}

func (a *asked) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	w.Value = bytes.Clone(w.Value)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes = append(a.writes, write{w, done})
	return func() {}, nil
}

// sent returns the writes so far once every goroutine is blocked.
func (a *asked) sent() []write {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// holding runs fn with a lease and lets fn reply to the lease's writes.
func holding(t *testing.T, mode record.Mode, observe func(context.Context, Event), fn func(t *testing.T, l *Lease, kv *asked)) {
	synctest.Test(t, func(t *testing.T) {
		kv := &asked{KV: kvstore.NewMemory(kvstore.DefaultBucket).Open()}
		b := bucket.New(kv, "", nil)
		s := New(b, Config{WatchAfter: -1, Observe: observe})
		defer func() {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			s.Close(ctx)
		}()
		fn(t, s.Hold(keeper.Granted{
			Name: "l", Key: "lock.l", Revision: 1, Body: record.Body{ID: "me", Status: record.StatusHeld, Mode: uint8(mode)},
			Terms: clock.NewTerms(time.Minute), Sent: b.Instant(),
		}, time.Time{}), kv)
	})
}

func inside(t *testing.T, l *Lease, parent context.Context) *Holder {
	t.Helper()
	h := &Holder{}
	admitted, err := l.Admit(h, Admission{Parent: parent})
	require.NoError(t, err)
	require.True(t, admitted)
	return h
}
