package session

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// held returns a lease of a session with an in-memory bucket.
func held(t *testing.T) *Lease {
	b := bucket.New(kvstore.NewMemory(kvstore.DefaultBucket).Open(), "", nil)
	s := New(b, Config{})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Close(ctx)
	})
	return s.Hold(keeper.Granted{
		Name: "l", Key: "lock.l", Revision: 1, Body: record.Body{ID: "me", Status: record.StatusHeld},
		Terms: clock.NewTerms(time.Minute), Sent: b.Instant(),
	}, time.Time{})
}

// asking is a user's context whose methods ask for the state of a lock.
type asking struct {
	context.Context
	l *Lease
}

func (a asking) Value(key any) any {
	_, _, _ = a.l.Status()
	return a.Context.Value(key)
}

// TestAdmitCallsUsersOutside checks that the methods of a context, which may be of any type, are called
// without the mutex held.
func TestAdmitCallsUsersOutside(t *testing.T) {
	l := held(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = l.Admit(&Holder{}, Admission{Parent: asking{ctx, l}})
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the client is deadlocked")
	}
}

// TestLostAfterABreak checks that a broken lock ends because of the break, whatever else reveals its end.
func TestLostAfterABreak(t *testing.T) {
	l := held(t)
	why := "by an operator: it hung"
	l.s.Lock()
	l.Break = &why
	l.Fail(core.EndLost, "the bucket is gone")
	l.s.Unlock()
	_, _, cause := l.Status()
	require.ErrorIs(t, cause, ErrBroken)
	require.ErrorContains(t, cause, why)
}

// TestKeepSettles checks that a lease renewed so that others can continue it is left to them only when no
// renewal is under way.
func TestKeepSettles(t *testing.T) {
	l := held(t)
	l.Body.Fixed = true
	stop := l.Keep()
	now := l.s.b.Instant()
	l.s.Lock()
	require.True(t, l.Renews())
	n, _ := l.BeginRenewal(now, 1)
	l.s.Unlock()
	require.False(t, stop())
	l.s.Lock()
	require.True(t, l.Renews())
	l.AnswerArrived(n, core.Answer{Revision: 2}, now)
	l.s.Unlock()
	require.True(t, stop())
	l.s.Lock()
	defer l.s.Unlock()
	require.False(t, l.Renews())
}
