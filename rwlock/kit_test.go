package rwlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

func TestMain(m *testing.M) { kit.Main(m) }

// peer is a client with its reader-writer locks and a store that can inject faults.
type peer struct {
	*rwlock.RWLock
	c  *natslock.Client
	nc *nats.Conn
	f  *faults.Store
}

func newPeer(t testing.TB, nc *nats.Conn, seed uint64, opts ...natslock.Option) *peer {
	t.Helper()
	return newPeerOver(t, nc, seed, func(kv kvstore.KV) kvstore.KV { return kv }, opts...)
}

// newPeerOver creates a peer with another layer between the faults and the store.
func newPeerOver(t testing.TB, nc *nats.Conn, seed uint64, under func(kvstore.KV) kvstore.KV, opts ...natslock.Option) *peer {
	t.Helper()
	p := &peer{nc: nc}
	p.c, p.f = kit.FaultyOver(t, nc, seed, under, opts...)
	p.RWLock = rwlock.New(p.c)
	return p
}

// modeOf returns the mode in which a writer or a reader wants the lock.
func modeOf(writes bool) admin.Mode {
	if writes {
		return admin.Exclusive
	}
	return admin.Shared
}

// overTurn waits until the turn of a lease that was just granted has ended. Until then, readers
// join it without knowing about others.
func overTurn() { time.Sleep(2 * time.Millisecond) }

// claimOf returns the ID of the claim behind a lock, which readers of one client share.
func claimOf(l *natslock.Lock) string {
	id, _, _ := strings.Cut(l.ID(), ".")
	return id
}

// spoiler modifies the state that the leader reports.
type spoiler struct {
	kvstore.KV
	state func(kvstore.State) kvstore.State
}

func (s *spoiler) State(ctx context.Context, pattern string) (kvstore.State, error) {
	st, err := s.KV.State(ctx, pattern)
	if err == nil && strings.HasPrefix(pattern, "read.") {
		st = s.state(st)
	}
	return st, err
}

func rwOf(c *natslock.Client) *rwlock.RWLock { return rwlock.New(c) }
