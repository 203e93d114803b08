package session

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// heldUp is a user's context whose methods block while it is held up.
type heldUp struct {
	context.Context
	held chan struct{}
	busy chan struct{}
	once sync.Once
	on   bool
}

func (s *heldUp) Value(key any) any {
	if s.on {
		s.once.Do(func() { close(s.busy) })
		<-s.held
	}
	return s.Context.Value(key)
}

// A holder leaves or releases a lease whose end is just being published. The holder's context ends before the call
// returns, and before the record is deleted.
func TestContextFirstBesideAnEnd(t *testing.T) {
	for name, leave := range map[string]func(h *Holder) error{
		"leave":   func(h *Holder) error { return h.Leave(h.lease.s.b.Instant()) },
		"release": func(h *Holder) error { return h.Release(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			holding(t, record.Shared, nil, func(t *testing.T, l *Lease, kv *asked) {
				parent := &heldUp{Context: t.Context(), held: make(chan struct{}), busy: make(chan struct{})}
				h := inside(t, l, t.Context())
				inside(t, l, parent)
				parent.on = true
				go func() {
					l.s.Lock()
					defer l.s.Unlock()
					l.Fail(core.EndBroken, "by an operator")
				}()
				<-parent.busy // the other holder's context has ended
				left := make(chan error, 1)
				go func() { left <- leave(h) }()
				synctest.Wait()
				ended := h.Context().Err() != nil
				deletes := len(kv.sent()) > 0
				close(parent.held)
				require.True(t, ended || !deletes && len(left) == 0, "the context goes on: deleted: %v, returned: %v", deletes, len(left) > 0)
			})
		})
	}
}
