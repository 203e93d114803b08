package main

import (
	"bufio"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// healthz waits until /healthz returns this status and text.
func (p *process) healthz(status int, text string) {
	p.t.Helper()
	var got int
	var body string
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if got, body = p.get("/healthz"); got == status && strings.Contains(body, text) {
			return
		}
	}
	require.Fail(p.t, "not so", "%d %s, wanted %d with %q", got, body, status, text)
}

// pageState returns the state and the number of locks that the page shows to a new browser.
func (p *process) pageState() (state, why string, locks int) {
	p.t.Helper()
	answer, err := http.Get(p.page() + "live")
	require.NoError(p.t, err)
	defer answer.Body.Close()
	line, err := bufio.NewReaderSize(answer.Body, 1<<20).ReadString('\n')
	require.NoError(p.t, err)
	var up struct {
		Health struct{ State, Why string }
		Rows   []json.RawMessage
	}
	require.NoError(p.t, json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &up))
	http.DefaultClient.CloseIdleConnections()
	return up.Health.State, up.Health.Why, len(up.Rows)
}

// bucketStream returns the configuration of the bucket's stream.
func bucketStream(t *testing.T, js jetstream.JetStream) jetstream.StreamConfig {
	t.Helper()
	s, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	return s.CachedInfo().Config
}

// TestWithoutMajority checks that the exporter reports that nobody gets a lock while two of three
// servers are down, although it is connected and the third one replies, and that it recovers
// afterwards. It reports a misconfigured bucket in the same way.
func TestWithoutMajority(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	nc := cluster.ConnectTo(0)
	c := clientOn(t, nc, natslock.WithTTL(time.Minute))
	hold(t, c, "orders.1")
	cluster.WaitStreamLeader(t, "KV_natslock")
	p := launch(t, "--server="+cluster.URLs())
	p.shows(`natslock_exporter_up 1`, `natslock_bucket_writable 1`, `natslock_bucket_replicas_current 3`, `natslock_bucket_held{lock="orders"} 1`)
	p.healthz(200, "ok")

	cluster.StopServer(1)
	cluster.StopServer(2)
	p.healthz(503, "no leader since ")
	p.shows(`natslock_exporter_up 0`, `natslock_bucket_writable 0`, `natslock_bucket_replicas_current 0`)
	state, why, locks := p.pageState()
	require.Equal(t, "no leader", state)
	require.Contains(t, why, "start the missing servers")
	require.Equal(t, 1, locks, "as last read")

	cluster.Restart(1)
	p.healthz(200, "ok")
	p.shows(`natslock_exporter_up 1`, `natslock_bucket_writable 1`, `natslock_bucket_replicas_current 2`, `natslock_exporter_gaps_total 1`)
	cluster.Restart(2)
	p.shows(`natslock_bucket_replicas_current 3`)
	state, _, _ = p.pageState()
	require.Equal(t, "live", state)

	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := bucketStream(t, js)
	cfg.MaxMsgsPerSubject = 5
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	p.healthz(503, `"lockctl init" repairs it`)
	p.shows(`natslock_exporter_up 0`, `natslock_bucket_writable 0`, `natslock_bucket_replicas_current 3`)
	cfg.MaxMsgsPerSubject = 1
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	p.healthz(200, "ok")
	cfg.Sealed = true
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	p.healthz(503, `re-create the bucket with "nats stream rm KV_natslock" and "lockctl init"`)
	state, _, _ = p.pageState()
	require.Equal(t, "unfit", state)
}

// outdate lets the bucket advance and returns a function that replaces the server's files with a
// backup made before that.
func outdate(t *testing.T, s *testutil.Server) (restore func()) {
	t.Helper()
	c, _ := client(t, s)
	unlock(t, hold(t, c, "orders.1"))
	s.Stop()
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(s.StoreDir())))
	s.Restart()
	for range 50 {
		unlock(t, hold(t, c, "orders.1"))
	}
	return func() {
		t.Helper()
		s.Stop()
		require.NoError(t, fs.WalkDir(os.DirFS(s.StoreDir()), ".", func(path string, _ fs.DirEntry, err error) error {
			if path == "." || err != nil {
				return err
			}
			require.NoError(t, os.RemoveAll(filepath.Join(s.StoreDir(), path)))
			return fs.SkipDir
		}))
		require.NoError(t, os.CopyFS(s.StoreDir(), os.DirFS(backup)))
		s.Restart()
	}
}

// TestRestored checks that the exporter reports a bucket restored from a backup, says that it must
// be created again, and then follows the new one.
func TestRestored(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := testutil.RunServer(t)
	restore := outdate(t, s)
	p := follow(t, s)
	p.healthz(200, "ok")
	restore()
	p.healthz(503, `it was restored from a backup or has lost writes. Clients grant no locks in it; stop them, then re-create the bucket with "nats stream rm KV_natslock" and "lockctl init"`)
	p.shows(`natslock_exporter_up 0`, `natslock_bucket_writable 0`)
	state, _, _ := p.pageState()
	require.Equal(t, "unfit", state)

	deleteBucket(t, s)
	clientOn(t, s.Connect()) // creates the bucket
	p.healthz(200, "ok")
}
