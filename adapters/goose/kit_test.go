package gooselock_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	gooselock "github.com/natslock/locks/adapters/goose"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

const (
	// name is the lock's name in each test.
	name = "billing.migrations"
	// patience bounds each wait for an event.
	patience = 60 * time.Second
)

// member is a client on its own connection, whose link the tests can disturb.
type member struct {
	*natslock.Client
	link *testutil.Link
}

func join(t *testing.T, s *testutil.Server, opts ...natslock.Option) *member {
	t.Helper()
	nc, link := s.ConnectLink()
	c, err := natslock.New(t.Context(), nc, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	return &member{c, link}
}

// database returns the path of a new database. It sets the journal mode up front, and the file
// keeps it. If two connections changed the mode at the same time, SQLite would refuse immediately,
// regardless of the busy timeout.
func database(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "billing.db")
	_, err := open(t, path).Exec("PRAGMA journal_mode = WAL")
	require.NoError(t, err)
	return path
}

// open opens the database for a replica.
func open(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// provider opens the database for a replica, with migrations written in Go.
func provider(t *testing.T, path string, locker goose.ProviderOption, migrations ...*goose.Migration) *goose.Provider {
	t.Helper()
	p, err := goose.NewProvider(goose.DialectSQLite3, open(t, path), nil,
		locker, goose.WithGoMigrations(migrations...), goose.WithDisableGlobalRegistry(true))
	require.NoError(t, err)
	return p
}

// migration returns a migration written in Go that runs in a transaction.
func migration(version int64, up func(ctx context.Context, tx *sql.Tx) error) *goose.Migration {
	return goose.NewGoMigration(version, &goose.GoFunc{RunTx: up}, nil)
}

// journal records the migrations that begin, and counts those that overlap with another one.
type journal struct {
	mu     sync.Mutex
	begun  []int64
	inside int
	beside int
}

func (j *journal) begin(version int64) (end func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.begun = append(j.begun, version)
	if j.inside++; j.inside > 1 {
		j.beside++
	}
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.inside--
	}
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v in vain for %s", patience, what)
		panic("unreachable")
	}
}

// up is an Up that runs in its own goroutine.
type up struct {
	done    chan struct{}
	results []*goose.MigrationResult
	err     error
}

func begin(t *testing.T, ctx context.Context, p *goose.Provider) *up {
	u := &up{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(func() { cancel(); <-u.done })
	go func() {
		defer close(u.done)
		u.results, u.err = p.Up(ctx)
	}()
	return u
}

// breakLock breaks the lock as an operator would. If atOnce is set, others need not wait for its
// holder to unlock.
func breakLock(t *testing.T, c *natslock.Client, atOnce bool) {
	t.Helper()
	info, err := admin.New(c).Inspect(t.Context(), admin.KindMutex, name)
	require.NoError(t, err)
	require.NotNil(t, info.Holder)
	require.NoError(t, admin.New(c).Break(t.Context(), admin.BreakRequest{Name: name, ID: info.Holder.ID, Reason: "it hangs", Immediately: atOnce}))
}

func locker(m *member, opts ...natslock.LockOption) goose.ProviderOption {
	return goose.WithLocker(gooselock.NewLocker(m, name, opts...))
}
