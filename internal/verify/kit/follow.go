package kit

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock/admin"
)

// Follower receives the events of a Watch, except renewals, one at a time.
type Follower struct {
	t      *testing.T
	Events chan admin.Event
	Ended  chan error
}

// Follow starts a watch, and returns once it is running.
func Follow(t *testing.T, m *Member, pattern string) *Follower {
	f := &Follower{t: t, Events: make(chan admin.Event, 1000), Ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for ev, err := range admin.New(m.Client).Watch(ctx, pattern) {
			if err != nil {
				f.Ended <- err
				return
			}
			if ev.Type != admin.EventRenewed {
				f.Events <- ev
			}
		}
		f.Ended <- nil
	}()
	f.Next(admin.EventWatching)
	return f
}

// Next waits for the next event, which must be of type typ.
func (f *Follower) Next(typ admin.EventType) admin.Event {
	f.t.Helper()
	ev := Receive(f.t, f.Events, typ.String())
	require.Equal(f.t, typ, ev.Type)
	return ev
}

// Nothing requires that no event has arrived.
func (f *Follower) Nothing() {
	f.t.Helper()
	synctest.Wait()
	require.Empty(f.t, f.Events)
}
