//go:build unix

package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
)

// TestHandoffAcrossProcesses has a process take a lock, hand it over and die. Another process
// adopts the lock with the handle's text and the same token, and a third is refused. When the
// second process is killed as well, the TTL frees the lock.
func TestHandoffAcrossProcesses(t *testing.T) {
	st := newStage(t)
	var from, to, late delivery
	owner := start(t, "courier", courierOrder{URL: st.s.URL(), Name: "l", TTL: processTTL})
	owner.read(&from)
	require.Empty(t, from.Err)
	owner.kill()
	_, err := st.c.TryLock(t.Context(), "l")
	require.ErrorIs(t, err, natslock.ErrLocked)

	adopter := start(t, "courier", courierOrder{URL: st.s.URL(), TTL: processTTL, Handle: from.Handle})
	adopter.read(&to)
	require.Empty(t, to.Err)
	require.Equal(t, from.Token, to.Token)
	start(t, "courier", courierOrder{URL: st.s.URL(), TTL: processTTL, Handle: from.Handle}).read(&late)
	require.Contains(t, late.Err, natslock.ErrNotHandedOver.Error())

	adopter.kill()
	l, err := st.c.Lock(t.Context(), "l")
	require.NoError(t, err)
	require.Greater(t, l.Token(), to.Token)
	require.NoError(t, l.Unlock(t.Context()))
}
