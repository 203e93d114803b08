package certmagiclock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestObtainOnce checks that when two instances want a certificate at the same time, the authority
// issues only one. The first instance keeps its lock until the second is queued.
func TestObtainOnce(t *testing.T) {
	for domain, host := range map[string]string{"www.example.com": "www.example.com", "*.example.com": "any.example.com"} {
		t.Run(domain, func(t *testing.T) {
			s := testutil.RunServer(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ca, dir := newAuthority(), t.TempDir()
			instances := []*instance{join(t, s.Connect(), dir, ca), join(t, s.Connect(), dir, ca)}
			queued := watchQueue(t, ctx, instances[0].locks, "certmagic.issue_cert_"+domain)
			ca.before = func(ctx context.Context, _ int64) error { return receive(ctx, queued) }

			managed := make(chan error, 2)
			for _, i := range instances {
				go func() { managed <- i.ManageSync(ctx, []string{domain}) }()
			}
			require.NoError(t, errors.Join(<-managed, <-managed))
			require.EqualValues(t, 1, ca.asked.Load())
			require.EqualValues(t, 1, ca.issued.Load())
			require.Equal(t, served(t, instances[0], host), served(t, instances[1], host))
			require.Zero(t, instances[0].errors.Len()+instances[1].errors.Len())
		})
	}
}

// watchQueue returns a channel that is closed when a client has queued for a lock.
func watchQueue(t *testing.T, ctx context.Context, locks *natslock.Client, name string) <-chan struct{} {
	watching, queued := make(chan struct{}), make(chan struct{})
	go func() {
		for ev, err := range admin.New(locks).Watch(ctx, ">") {
			switch {
			case err != nil:
				t.Errorf("watch: %v", err)
				return
			case ev.Type == admin.EventWatching:
				close(watching)
			case ev.Type == admin.EventQueued && ev.Name == name:
				close(queued)
				return
			}
		}
	}()
	require.NoError(t, receive(ctx, watching))
	return queued
}

func receive(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// served returns the serial number of the certificate that an instance serves for a host.
func served(t *testing.T, i *instance, host string) string {
	t.Helper()
	cert, err := i.GetCertificate(&tls.ClientHelloInfo{ServerName: host})
	require.NoError(t, err)
	require.NoError(t, cert.Leaf.VerifyHostname(host))
	return cert.Leaf.SerialNumber.String()
}

const domain, lockName = "example.com", "issue_cert_example.com"

// TestLossDuringObtain checks what happens if the lock is lost while a certificate is being
// obtained. Certmagic does not notice the loss: its certificate replaces the new holder's, and it
// logs the error from Unlock.
func TestLossDuringObtain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ca, dir := newAuthority(), t.TempDir()
		nc, link := s.ConnectLink()
		cutOff, other := join(t, nc, dir, ca), join(t, s.Connect(), dir, ca)
		goOn := make(chan struct{})
		ca.before = func(ctx context.Context, n int64) error {
			if n > 1 {
				return nil
			}
			link.Cut()
			return receive(ctx, goOn)
		}
		managed := make(chan error, 1)
		go func() { managed <- cutOff.ManageSync(t.Context(), []string{domain}) }()
		synctest.Wait()
		require.NoError(t, other.ManageSync(t.Context(), []string{domain}), "after the TTL")
		require.Empty(t, managed)
		close(goOn)
		require.NoError(t, <-managed)
		link.Heal()

		require.NotEqual(t, served(t, cutOff, domain), served(t, other, domain))
		third := join(t, s.Connect(), dir, ca)
		require.NoError(t, third.ManageSync(t.Context(), []string{domain}))
		require.Equal(t, served(t, cutOff, domain), served(t, third, domain), "the later certificate counts")
		require.EqualValues(t, 2, ca.issued.Load())
		require.Zero(t, other.errors.Len())
		logged := cutOff.errors.All()
		require.Len(t, logged, 1)
		require.Equal(t, "unable to unlock", logged[0].Message)
		require.Contains(t, logged[0].ContextMap()["error"], natslock.ErrLost.Error())
	})
}

// TestLossBetweenAttempts checks that a loss between two attempts does no harm: the next attempt
// acquires the lock again and finds the other instance's certificate.
func TestLossBetweenAttempts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ca, dir := newAuthority(), t.TempDir()
		nc, link := s.ConnectLink()
		cutOff, other := join(t, nc, dir, ca), join(t, s.Connect(), dir, ca)
		ca.before = func(_ context.Context, n int64) error {
			if n > 1 {
				return nil
			}
			link.Cut()
			return errors.New("the authority is busy")
		}
		obtained := make(chan error, 1)
		begun := time.Now()
		go func() { obtained <- cutOff.ObtainCertAsync(t.Context(), domain) }()
		synctest.Wait()
		require.NoError(t, other.ManageSync(t.Context(), []string{domain}), "after the TTL")
		require.EqualValues(t, 1, ca.issued.Load())
		link.Heal()
		require.NoError(t, <-obtained)
		require.GreaterOrEqual(t, time.Since(begun), time.Minute, "certmagic waits that long between attempts")
		require.EqualValues(t, 1, ca.issued.Load())
		require.EqualValues(t, 2, ca.asked.Load())
		for _, e := range cutOff.errors.All() {
			require.NotEqual(t, "unable to unlock", e.Message)
		}
	})
}

// TestCleanUpOwnLocks checks that a process that ends releases its locks, so that the next instance
// does not have to wait for the TTL.
func TestCleanUpOwnLocks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ca, dir := newAuthority(), t.TempDir()
		ending, other := join(t, s.Connect(), dir, ca), join(t, s.Connect(), dir, ca)
		ca.before = func(ctx context.Context, n int64) error {
			ok, err := other.storage.TryLock(ctx, lockName)
			require.NoError(t, err)
			require.False(t, ok)
			certmagic.CleanUpOwnLocks(ctx, zap.NewNop())
			ok, err = other.storage.TryLock(ctx, lockName)
			require.NoError(t, err)
			require.True(t, ok)
			return other.storage.Unlock(ctx, lockName)
		}
		require.NoError(t, ending.ManageSync(t.Context(), []string{domain}))
	})
}
