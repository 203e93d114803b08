package certmagiclock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"

	certmagiclock "github.com/natslock/locks/adapters/certmagic"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// names lists names that certmagic uses, and others that a key can hold only in escaped form.
var names = []string{
	"issue_cert_example.com", "issue_cert_*.example.com", "register_acme_account_ops@example.com",
	"ari_aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE", "storage_clean", "a b/c", "..", ".", ">", "=2E", "é", "",
}

// TestExclusion checks that each name is a separate lock, which excludes other goroutines of the
// same instance as well as other instances.
func TestExclusion(t *testing.T) {
	s := testutil.RunServer(t)
	dir := t.TempDir()
	instances := []*instance{join(t, s.Connect(), dir, newAuthority()), join(t, s.Connect(), dir, newAuthority())}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	inside := make([]atomic.Int64, len(names))
	for _, i := range instances {
		for n, name := range names {
			for range 4 {
				wg.Go(func() {
					for range 5 {
						if err := i.storage.Lock(ctx, name); err != nil {
							t.Errorf("lock %q: %v", name, err)
							return
						}
						if k := inside[n].Add(1); k != 1 {
							t.Errorf("%d goroutines have the lock %q", k, name)
						}
						ok, err := i.storage.TryLock(ctx, name)
						if ok || err != nil {
							t.Errorf("a second lock %q: %v, %v", name, ok, err)
						}
						inside[n].Add(-1)
						if err := i.storage.Unlock(ctx, name); err != nil {
							t.Errorf("unlock %q: %v", name, err)
						}
					}
				})
			}
		}
	}
	wg.Wait()
}

func TestTryLock(t *testing.T) {
	s := testutil.RunServer(t)
	a, b := join(t, s.Connect(), t.TempDir(), newAuthority()), join(t, s.Connect(), t.TempDir(), newAuthority())
	try := func(i *instance, want bool) {
		t.Helper()
		ok, err := i.storage.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, want, ok)
	}
	try(a, true)
	try(a, false)
	try(b, false)
	require.NoError(t, a.storage.Unlock(t.Context(), "x"))
	try(b, true)
	require.NoError(t, b.storage.Unlock(t.Context(), "x"))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ok, err := a.storage.TryLock(ended, "x")
	require.False(t, ok)
	require.ErrorIs(t, err, context.Canceled)
	try(a, true)
	require.NoError(t, a.storage.Unlock(ended, "x"))
}

// TestWaitEnds checks that a wait ends with its context, whether this instance or another one has
// the lock, and that a lock survives the context that it was acquired with.
func TestWaitEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s.Connect(), t.TempDir(), newAuthority()), join(t, s.Connect(), t.TempDir(), newAuthority())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, a.storage.Lock(ctx, "x"))
		for _, i := range []*instance{a, b} {
			err := i.storage.Lock(ctx, "x")
			require.ErrorIs(t, err, natslock.ErrTimeout)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, `"certmagic.x"`)
		}
		time.Sleep(time.Minute)
		ok, err := b.storage.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, a.storage.Unlock(ctx, "x"))
	})
}

// TestNotLocked checks that an instance can neither unlock nor renew a name that it has not locked.
func TestNotLocked(t *testing.T) {
	s := testutil.RunServer(t)
	a, b := join(t, s.Connect(), t.TempDir(), newAuthority()), join(t, s.Connect(), t.TempDir(), newAuthority())
	require.NoError(t, b.storage.Lock(t.Context(), "x"))
	for range 2 {
		require.ErrorIs(t, a.storage.Unlock(t.Context(), "x"), natslock.ErrReleased)
		require.ErrorIs(t, a.storage.RenewLockLease(t.Context(), "x", time.Minute), natslock.ErrReleased)
	}
	require.NoError(t, b.storage.RenewLockLease(t.Context(), "x", 30*24*time.Hour))

	// A waiter does not hold the lock.
	waiting := watchQueue(t, t.Context(), a.locks, "certmagic.x")
	locked := make(chan error, 1)
	go func() { locked <- a.storage.Lock(t.Context(), "x") }()
	<-waiting
	require.ErrorIs(t, a.storage.Unlock(t.Context(), "x"), natslock.ErrReleased)
	require.NoError(t, b.storage.Unlock(t.Context(), "x"))
	require.NoError(t, <-locked)
	require.NoError(t, a.storage.Unlock(t.Context(), "x"))
	require.ErrorIs(t, b.storage.Unlock(t.Context(), "x"), natslock.ErrReleased)
}

// TestLostLockKeepsItsName checks that a goroutine that has lost its lock cannot release its
// successor's. Unlock identifies the lock only by name, so the next goroutine of the same Storage
// waits for the first one's Unlock.
func TestLostLockKeepsItsName(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		day, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		a, b := join(t, s.Connect(), t.TempDir(), newAuthority()), join(t, s.Connect(), t.TempDir(), newAuthority())
		require.NoError(t, a.storage.Lock(day, "x"))
		breakLock(t, b.locks, "x", true)
		next := make(chan error, 1)
		go func() { next <- a.storage.Lock(day, "x") }()
		synctest.Wait()
		require.Empty(t, next)
		ok, err := a.storage.TryLock(day, "x")
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, b.storage.Lock(day, "x"), "another process has it by now")

		err = a.storage.Unlock(day, "x")
		require.ErrorIs(t, err, natslock.ErrLost)
		synctest.Wait()
		require.Empty(t, next)
		require.NoError(t, b.storage.RenewLockLease(day, "x", 0), "the lock of b is untouched")
		require.NoError(t, b.storage.Unlock(day, "x"))
		require.NoError(t, <-next)
		require.NoError(t, a.storage.Unlock(day, "x"))
	})
}

// TestRenewTakesLostLockAgain checks that RenewLockLease queues for a lost lock behind the instance
// that now holds it.
func TestRenewTakesLostLockAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		day, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		a, b := join(t, s.Connect(), t.TempDir(), newAuthority()), join(t, s.Connect(), t.TempDir(), newAuthority())
		renewed := make(chan error, 1)
		renew := func(ctx context.Context) { renewed <- a.storage.RenewLockLease(ctx, "x", time.Minute) }
		require.NoError(t, a.storage.Lock(day, "x"))
		renew(day)
		require.NoError(t, <-renewed)

		// The record of a broken lock does not keep out the instance that held it.
		begun := time.Now()
		breakLock(t, b.locks, "x", false)
		renew(day)
		require.NoError(t, <-renewed)
		require.Zero(t, time.Since(begun))

		// RenewLockLease gives up when its context ends, and can be called again.
		minute, cancel := context.WithTimeout(day, time.Minute)
		defer cancel()
		breakLock(t, b.locks, "x", true)
		require.NoError(t, b.storage.Lock(day, "x"))
		renew(minute)
		err := <-renewed
		require.ErrorIs(t, err, natslock.ErrLost)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		go renew(day)
		synctest.Wait()
		require.Empty(t, renewed)
		require.NoError(t, b.storage.Unlock(day, "x"))
		require.NoError(t, <-renewed)
		ok, err := b.storage.TryLock(day, "x")
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, a.storage.Unlock(day, "x"))
	})
}

// TestUnlockDuringRenew checks that Unlock leaves no lock behind if RenewLockLease is still
// waiting, which happens when certmagic.CleanUpOwnLocks runs at the end of a process.
func TestUnlockDuringRenew(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		day, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		a, b := join(t, s.Connect(), t.TempDir(), newAuthority()), join(t, s.Connect(), t.TempDir(), newAuthority())
		require.NoError(t, a.storage.Lock(day, "x"))
		breakLock(t, b.locks, "x", true)
		require.NoError(t, b.storage.Lock(day, "x"))
		renewed := make(chan error, 1)
		go func() { renewed <- a.storage.RenewLockLease(day, "x", time.Minute) }()
		synctest.Wait()
		require.ErrorIs(t, a.storage.Unlock(day, "x"), natslock.ErrLost)
		require.NoError(t, b.storage.Unlock(day, "x"))
		require.ErrorIs(t, <-renewed, natslock.ErrReleased)
		info, err := admin.New(b.locks).Inspect(day, admin.KindMutex, "certmagic.x")
		require.NoError(t, err)
		require.Nil(t, info.Holder)
	})
}

// secret is a storage without a description.
type secret struct {
	certmagic.Storage
	Password string
}

func TestString(t *testing.T) {
	files := &certmagic.FileStorage{Path: "/shared"}
	require.Equal(t, files.String(), certmagiclock.New(files, nil).String())
	require.Equal(t, "*certmagiclock_test.secret", fmt.Sprint(certmagiclock.New(&secret{Password: "hunter2"}, nil)))
}

// TestOptions checks that the options apply to each lock, and that an invalid option makes each
// lock fail.
func TestOptions(t *testing.T) {
	s := testutil.RunServer(t)
	locks, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	defer locks.Close(context.Background())
	storage := certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, locks, natslock.TTL(time.Hour), natslock.Meta(map[string]string{"site": "eu"}))
	require.NoError(t, storage.Lock(t.Context(), "x"))
	info, err := admin.New(locks).Inspect(t.Context(), admin.KindMutex, "certmagic.x")
	require.NoError(t, err)
	require.Equal(t, time.Hour, info.Holder.TTL)
	require.Equal(t, "eu", info.Holder.Meta["site"])
	require.NoError(t, storage.Unlock(t.Context(), "x"))

	storage = certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, locks, natslock.TTL(time.Millisecond))
	for range 2 {
		require.ErrorIs(t, storage.Lock(t.Context(), "x"), natslock.ErrInvalid)
		ok, err := storage.TryLock(t.Context(), "x")
		require.False(t, ok)
		require.True(t, errors.Is(err, natslock.ErrInvalid))
	}
}
