package fences_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/natslock/locks/examples/fences"
	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

const patience = 60 * time.Second

// race lets a stale holder and its successor write through a guard at the same time. write returns
// the guard's error, and read returns the token of the last stored write. The tokens come from two
// real locks: the first holder is cut off until its lease has ended, and then continues.
func race(t *testing.T, write func(token uint64) error, read func() uint64) {
	srv := testutil.RunServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stale, link := hold(t, ctx, srv)
	require.NoError(t, write(stale))

	// The stale holder is paused, and wakes up once its successor has the lock.
	link.Blackhole(true)
	next, _ := hold(t, ctx, srv)
	require.Greater(t, next, stale)

	var wg sync.WaitGroup
	firstOfNext, end := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		late := 0 // writes sent after the next holder's first write was done
		for late < 200 {
			after := false
			select {
			case <-firstOfNext:
				after = true
			default:
			}
			err := write(stale)
			if after {
				late++
				if !errors.Is(err, fence.ErrSuperseded) {
					t.Errorf("a stale write was not refused: %v", err)
					break
				}
			}
		}
		close(end)
	})
	wg.Go(func() {
		for n := 0; ; n++ {
			if err := write(next); err != nil {
				t.Errorf("the next holder was refused: %v", err)
			}
			if n == 0 {
				close(firstOfNext)
			}
			if got := read(); got != next {
				t.Errorf("the write with token %d was replaced by one with %d", next, got)
			}
			select {
			case <-end:
				return
			default:
			}
		}
	})
	wg.Wait()
}

// hold acquires a lock on its own connection and returns the lock's token.
func hold(t *testing.T, ctx context.Context, srv *testutil.Server) (uint64, *testutil.Link) {
	nc, link := srv.ConnectLink()
	c, err := natslock.New(ctx, nc, natslock.WithTTL(2*time.Second))
	require.NoError(t, err)
	l, err := c.Lock(ctx, "account", natslock.Detached())
	require.NoError(t, err)
	t.Cleanup(func() {
		link.Heal()
		ended, end := context.WithCancel(context.Background())
		end() // Close would wait for the lock to be unlocked
		_ = c.Close(ended)
		runtime.KeepAlive(l)
	})
	return l.Token(), link
}

func TestSQL(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	for _, s := range []string{fences.Schema, `INSERT INTO accounts (id, balance) VALUES ('a', 0)`} {
		_, err = db.Exec(s)
		require.NoError(t, err)
	}
	race(t, func(token uint64) error {
		return fences.SetBalance(t.Context(), db, token, "a", int64(token))
	}, func() (token uint64) {
		var column uint64
		if err := db.QueryRow(`SELECT balance, token FROM accounts`).Scan(&token, &column); err != nil || column != token {
			t.Errorf("balance %d, token %d: %v", token, column, err)
		}
		return token
	})
	require.ErrorIs(t, fences.SetBalance(t.Context(), db, 1, "b", 1), sql.ErrNoRows)

	// A claim shuts out older holders even before it changes anything.
	const last = 1 << 60
	balance, err := fences.Claim(t.Context(), db, last, "a")
	require.NoError(t, err)
	require.NotZero(t, balance)
	require.ErrorIs(t, fences.SetBalance(t.Context(), db, last-1, "a", 1), fence.ErrSuperseded)
	_, err = fences.Claim(t.Context(), db, last-1, "a")
	require.ErrorIs(t, err, fence.ErrSuperseded)
	_, err = fences.Claim(t.Context(), db, last, "b")
	require.ErrorIs(t, err, sql.ErrNoRows)
}

func TestEntry(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(testutil.RunServer(t).Connect())
	require.NoError(t, err)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	require.NoError(t, err)
	race(t, func(token uint64) error {
		return fences.PutEntry(t.Context(), kv, token, "k", strconv.FormatUint(token, 10))
	}, func() uint64 {
		e, err := kv.Get(t.Context(), "k")
		if err != nil {
			t.Error(err)
			return 0
		}
		_, text, _ := strings.Cut(string(e.Value()), `"value":"`)
		return number(t, strings.TrimSuffix(text, `"}`))
	})
}

func TestConsumer(t *testing.T) {
	t.Parallel()
	var newest fences.Newest
	var mu sync.Mutex
	var last uint64
	race(t, func(token uint64) error {
		m := &nats.Msg{Header: nats.Header{fences.TokenHeader: {strconv.FormatUint(token, 10)}}}
		return newest.ApplyMsg(m, func() error {
			mu.Lock()
			defer mu.Unlock()
			last = token
			return nil
		})
	}, func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return last
	})
	require.Error(t, newest.ApplyMsg(&nats.Msg{}, nil))
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	var newest fences.Newest
	var mu sync.Mutex
	var last uint64
	s := httptest.NewServer(fences.Fenced(&newest, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		last, _ = strconv.ParseUint(r.Header.Get(fences.TokenHeader), 10, 64)
	})))
	t.Cleanup(s.Close)
	post := func(token string) (status int) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		if token != "" {
			r.Header.Set(fences.TokenHeader, token)
		}
		answer, err := s.Client().Do(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	race(t, func(token uint64) error {
		switch status := post(strconv.FormatUint(token, 10)); status {
		case http.StatusOK:
			return nil
		case http.StatusPreconditionFailed:
			return fence.ErrSuperseded
		default:
			return errors.New(http.StatusText(status))
		}
	}, func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return last
	})
	require.Equal(t, http.StatusPreconditionRequired, post(""))
	require.Equal(t, http.StatusBadRequest, post("0"))
}

func number(t *testing.T, text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Error(err)
	}
	return n
}
