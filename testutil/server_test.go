package testutil_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func ExampleRunServer() {
	// In a test:
	_ = func(t *testing.T) {
		s := testutil.RunServer(t)
		nc := s.Connect()
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		_, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
		require.NoError(t, err)

		s.Restart() // the bucket is still there, and nc reconnects by itself
	}
}

func TestRestartKeepsPortAndData(t *testing.T) {
	s := testutil.RunServer(t)
	back := make(chan struct{}, 1)
	nc := s.Connect(nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	kv := bucket(t, nc, 1)
	rev, err := kv.PutString(t.Context(), "k", "v")
	require.NoError(t, err)
	url, old := s.URL(), s.Server()

	s.Restart()

	require.Equal(t, url, s.URL())
	require.NotSame(t, old, s.Server())
	require.True(t, s.Running())
	<-back
	e, err := kv.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, rev, e.Revision())
}

func TestStopAndStartAgain(t *testing.T) {
	s := testutil.RunServer(t)
	nc := s.Connect()
	s.Stop()
	s.Stop()
	require.False(t, s.Running())
	kit.Eventually(t, "the client notices", func() bool { return !nc.IsConnected() })
	_, err := nats.Connect(s.URL())
	require.Error(t, err)
	_, err = s.InProcessConn()
	require.Error(t, err)
	s.Restart()
	kit.Eventually(t, "the client is back", nc.IsConnected)
}

func TestWithoutJetStream(t *testing.T) {
	s := testutil.RunServer(t, testutil.WithoutJetStream())
	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	_, err = js.AccountInfo(t.Context())
	require.ErrorIs(t, err, jetstream.ErrJetStreamNotEnabled)
}

func TestUsers(t *testing.T) {
	for name, opt := range map[string]testutil.ServerOption{
		"options": testutil.WithConfig(func(o *server.Options) {
			o.Users = []*server.User{{Username: "ann", Password: "pw", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"ok"}},
			}}}
		}),
		"text": testutil.WithConfigText(`
			authorization { users = [ { user: ann, password: pw, permissions: { publish: ok } } ] }`),
	} {
		t.Run(name, func(t *testing.T) {
			s := testutil.RunServer(t, opt)
			_, err := nats.Connect(s.URL(), s.Dialer())
			require.ErrorIs(t, err, nats.ErrAuthorization)

			denied := make(chan error, 1)
			nc := s.Connect(nats.UserInfo("ann", "pw"),
				nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
			require.NoError(t, nc.Publish("ok", nil))
			require.NoError(t, nc.Publish("other", nil))
			require.ErrorIs(t, <-denied, nats.ErrPermissionViolation)

			s.Restart()
			kit.Eventually(t, "the user is still known", nc.IsConnected)
		})
	}
}

func TestWithStoreDir(t *testing.T) {
	dir := t.TempDir()
	t.Run("write", func(t *testing.T) {
		s := testutil.RunServer(t, testutil.WithStoreDir(dir))
		require.Equal(t, dir, s.StoreDir())
		bucket(t, s.Connect(), 1)
	})
	_, err := os.Stat(filepath.Join(dir, "jetstream"))
	require.NoError(t, err, "the directory outlives the server")
	t.Run("read", func(t *testing.T) {
		s := testutil.RunServer(t, testutil.WithStoreDir(dir))
		js, err := jetstream.New(s.Connect())
		require.NoError(t, err)
		_, err = js.KeyValue(context.Background(), "b")
		require.NoError(t, err)
	})
}

// TestStartFails checks that a server that cannot start reports why.
func TestStartFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	tb := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		testutil.RunServer(tb, testutil.WithStoreDir(file))
	}()
	<-done
	require.Contains(t, tb.said, "storage directory is not a directory")
}

// failing is a testing.TB that records the failure.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestWithLog checks that the server's log goes to the test's log and stops with the server.
func TestWithLog(t *testing.T) {
	tb := &logging{TB: t}
	s := testutil.RunServer(tb, testutil.WithLog())
	require.Positive(t, kit.Goroutines("nats-server/v2/server"))
	s.Stop()
	kit.Eventually(t, "it is gone", func() bool { return kit.Goroutines("nats-server/v2/server") == 0 })
	require.Contains(t, tb.text(), "Server is ready")
	require.Contains(t, tb.text(), "Initiating Shutdown")
}

// logging is a testing.TB that records its log.
type logging struct {
	testing.TB
	mu   sync.Mutex
	said strings.Builder
}

func (l *logging) Logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.said, format+"\n", args...)
}

func (l *logging) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}
