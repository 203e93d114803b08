package topologies_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// without returns p without its JetStream context, so that it uses the connection's own.
func without(p place) place {
	p.js = nil
	return p
}

// TestForgottenDomain checks the error of a client of a leaf node that does not name the hub's
// domain.
func TestForgottenDomain(t *testing.T) {
	t.Parallel()
	t.Run("without JetStream", func(t *testing.T) {
		t.Parallel()
		n := leaf(t)
		at(t, n.places[0])
		_, err := natslock.New(t.Context(), n.last().connect())
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorIs(t, err, nats.ErrNoResponders)
		require.ErrorContains(t, err, "another domain or account (use jetstream.NewWithDomain")
	})
	t.Run("with its own", func(t *testing.T) {
		t.Parallel()
		n := leafDomain(t)
		hub := at(t, n.places[0])
		_, err := natslock.New(t.Context(), n.last().connect(), natslock.WithCreate(false))
		require.ErrorIs(t, err, kvstore.ErrNotFound)
		require.ErrorContains(t, err, "another domain or account (use jetstream.NewWithDomain")

		lost := at(t, without(n.last()))
		require.Contains(t, lost.log.String(), "created lock bucket")
		require.Contains(t, lost.log.String(), "domain=leaf")
		// This is why there is a warning: the two clients do not exclude each other and do not
		// receive each other's notifications.
		a, b := kit.Must(t, hub.Lock, "both"), kit.Must(t, lost.Lock, "both")
		require.NoError(t, a.Err())
		require.NoError(t, b.Err())
		before := hub.io.notices()
		kit.Unlock(t, b)
		require.NoError(t, a.Extend(t.Context(), 0))
		kit.Eventually(t, "the hub is notified of its own renewal", func() bool { return hub.io.notices() > before })
		require.NoError(t, a.Err())
		kit.Unlock(t, a)

		// With the domain, everything is as it should be.
		c := kit.Must(t, hub.Lock, "both")
		far, err := throughDomain(t.Context(), n.last().connect())
		require.NoError(t, err)
		_, err = far.TryLock(t.Context(), "both")
		require.ErrorIs(t, err, natslock.ErrLocked)
		kit.Unlock(t, c)
		require.NoError(t, far.Close(t.Context()))
	})
	t.Run("misspelled", func(t *testing.T) {
		t.Parallel()
		n := leaf(t)
		p := n.last()
		p.js = inDomain("hup")
		_, err := p.open(p.connect())
		require.ErrorIs(t, err, kvstore.ErrUnavailable)
		require.ErrorContains(t, err, "the domain may be misspelled")
	})
}

// TestForgottenImport omits one import at a time, except that of the notifications, which is a
// topology of its own.
func TestForgottenImport(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	const remedy = "an account's import or export may be missing"
	t.Run("state", func(t *testing.T) {
		t.Parallel()
		n := accountsWithout(t, "STREAM.INFO")
		at(t, n.places[0])
		_, err := natslock.New(t.Context(), nil, n.last().options(t, n.last().connect())...)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "locks.API.STREAM.INFO.KV_natslock")
		require.ErrorContains(t, err, remedy)
	})
	t.Run("records", func(t *testing.T) {
		t.Parallel()
		n := accountsWithout(t, "$KV.natslock.>")
		at(t, n.places[0])
		u := at(t, n.last())
		for name, take := range map[string]kit.Taking{"once": u.TryLock, "l": u.Lock, "d": u.rw.Lock} {
			_, err := take(kit.Bounded(t), name)
			require.ErrorIs(t, err, natslock.ErrPermission)
			require.ErrorContains(t, err, "does not import the subject")
		}
	})
	for _, reads := range []string{"STREAM.MSG.GET", "DIRECT.GET"} {
		t.Run(reads, func(t *testing.T) { // the other kind of read suffices
			t.Parallel()
			n := accountsWithout(t, reads)
			runAll(t, n)
		})
	}
	t.Run("both reads", func(t *testing.T) {
		t.Parallel()
		n := accountsWithout(t, "GET")
		owner, u := at(t, n.places[0]), at(t, n.last())
		l := kit.Must(t, u.Lock, "free") // needs no read
		kit.Unlock(t, l)
		l = kit.Must(t, owner.Lock, "busy")
		_, err := u.TryLock(t.Context(), "busy")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "GET.KV_natslock")
		require.ErrorContains(t, err, remedy)
		kit.Unlock(t, l)
	})
	t.Run("creation", func(t *testing.T) {
		t.Parallel()
		n := accounts(t)
		_, err := natslock.New(t.Context(), nil, n.last().options(t, n.last().connect())...)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "locks.API.STREAM.CREATE.KV_natslock")
		_, err = n.last().open(n.last().connect())
		require.ErrorIs(t, err, kvstore.ErrNotFound)
		require.ErrorContains(t, err, "the bucket has not been created yet")
	})
}

// TestLinkTooSlow checks that a writer fails with a clear error if the link is too slow. On three
// replicas it has to prove within 0.8 s, by two writes and their replies, that no reader is left.
// With a round trip of 240 ms it cannot, whatever the TTL, but all other operations work.
func TestLinkTooSlow(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	n := slowLinkOf(t, 120*time.Millisecond)
	at(t, n.places[0], n.opts...)
	u := at(t, n.last())
	for name, take := range map[string]kit.Taking{"waiting": u.rw.Lock, "once": u.rw.TryLock} {
		ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
		defer cancel()
		_, err := take(ctx, name)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "too slow")
		require.ErrorContains(t, err, "two round trips must complete within 800ms")
	}
	kit.Unlock(t, kit.Must(t, u.Lock, "alone"))
	kit.Unlock(t, kit.Must(t, u.rw.RLock, "reading"))
}
