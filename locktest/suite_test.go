package locktest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.MoreAtOnce()
	kit.LeakCheck(m)
}

// counted is a Locker that also reports how many goroutines wait.
type counted struct {
	natslock.Locker
	client *natslock.Client
}

func (c counted) Stats() natslock.Stats { return c.client.Stats() }

func TestLockerInMemory(t *testing.T) {
	t.Parallel()
	locktest.TestLocker(t, func(t *testing.T) natslock.Locker { return inMemory(t) })
}

func TestRLockerInMemory(t *testing.T) {
	t.Parallel()
	locktest.TestRLocker(t, func(t *testing.T) (reader, writer natslock.Locker) { return sides(inMemory(t).Client()) })
}

func TestLockerOnServer(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	locktest.TestLocker(t, func(t *testing.T) natslock.Locker { return onServer(t, s) })
}

func TestRLockerOnServer(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	locktest.TestRLocker(t, func(t *testing.T) (reader, writer natslock.Locker) { return sides(onServer(t, s)) })
}

func inMemory(t *testing.T) *locktest.Locker {
	locks := locktest.New()
	t.Cleanup(locks.Close)
	return locks
}

func onServer(t *testing.T, s *testutil.Server) *natslock.Client {
	c, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(t.Context()) }) // the test's context has ended by then
	return c
}

func sides(c *natslock.Client) (reader, writer natslock.Locker) {
	rw := rwlock.New(c)
	return counted{rw.RLocker(), c}, counted{rw, c}
}
