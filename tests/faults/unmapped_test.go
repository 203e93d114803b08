package faults_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// nobody is the fate of a write to a subject that no stream accepts.
var nobody = faults.Refuse(fmt.Errorf("%w: %w", kvstore.ErrUnavailable, kvstore.ErrNoStream))

// TestUnmappedName checks that a name the account does not import is reported as a missing
// permission. The stream's leader replies, but no stream accepts the write.
func TestUnmappedName(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		rw := rwlock.New(c.Client)
		sem := semaphore.New(c.Client, 2)
		var asked atomic.Int32
		f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadState {
				asked.Add(1)
			}
			return nil
		})
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if strings.Contains(w.Key, ".other") {
				return nobody
			}
			return faults.Pass
		})
		for what, take := range map[string]kit.Taking{
			"lock": c.Lock, "lock once": c.TryLock, "write": rw.Lock, "write once": rw.TryLock, "read": rw.RLock,
			"permit": sem.Acquire, "permit once": sem.TryAcquire,
		} {
			kind, _, _ := strings.Cut(what, " ") // a client may use a name for only one kind of lock
			if kind == "read" {
				kind = "write"
			}
			asked.Store(0)
			begun := time.Now()
			_, err := take(t.Context(), kind+".other")
			require.ErrorIs(t, err, natslock.ErrPermission, what)
			require.NotErrorIs(t, err, natslock.ErrUnavailable, what)
			require.ErrorContains(t, err, `"$KV.natslock.`, what)
			require.ErrorContains(t, err, "Use a lock name that both cover", what)
			require.NotContains(t, err.Error(), "\n", what)
			require.Less(t, time.Since(begun), 4*time.Second, what)
			if kind != "permit" { // an acquire of a permit also reads the slots
				require.LessOrEqual(t, asked.Load(), int32(6), what)
			}
		}
		asked.Store(0)
		kit.Unlock(t, kit.Must(t, c.Lock, "covered"), kit.Must(t, c.TryLock, "covered 2"))
		require.Zero(t, asked.Load(), "a lock that is granted asks for no state")
	})
}

// TestUnmappedForAMoment checks that a write without a stream is not always a missing permission.
// After an election the servers learn of the new leader later than the leader itself does, and a
// stream without a leader has no state that a server could report.
func TestUnmappedForAMoment(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		for _, take := range []kit.Taking{c.Lock, c.TryLock} {
			elected := time.Now().Add(1500 * time.Millisecond)
			f.OnSend(func(int, kvstore.Write) faults.Fate {
				if time.Now().Before(elected) {
					return nobody
				}
				return faults.Pass
			})
			kit.Unlock(t, kit.Must(t, take, "l"))
		}
		f.OnSend(func(int, kvstore.Write) faults.Fate { return nobody })
		f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadState {
				return kvstore.ErrUnavailable
			}
			return nil
		})
		for _, take := range []kit.Taking{c.Lock, c.TryLock} {
			_, err := take(t.Context(), "l")
			require.ErrorIs(t, err, natslock.ErrUnavailable)
			require.NotErrorIs(t, err, natslock.ErrPermission)
		}
	})
}
