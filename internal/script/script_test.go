package script_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/script"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	kit.LeakCheck(m)
}

const ttl = 10 * time.Second

// process returns a client that acts as one process of a script, with its own connection and injected faults.
func process(t *testing.T, s *testutil.Server, opts ...natslock.Option) (c *natslock.Client, f *faults.Store) {
	t.Helper()
	c, err := natslock.New(t.Context(), s.Connect(), append(opts, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
		f = faults.New(kv, 1)
		return f
	}))...)
	require.NoError(t, err)
	t.Cleanup(func() { exit(c) })
	return c, f
}

// exit ends a process.
func exit(c *natslock.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Close(ctx)
}

// kind is a kind of lock together with a mode.
type kind struct {
	name  string
	kind  admin.Kind
	take  func(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error)
	other func(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error) // a kind that it excludes
}

func kinds() []kind {
	mutex := func(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error) {
		return c.Lock(ctx, "x", opts...)
	}
	write := func(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error) {
		return rwlock.New(c).Lock(ctx, "x", opts...)
	}
	read := func(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error) {
		return rwlock.New(c).RLock(ctx, "x", opts...)
	}
	permit := func(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error) {
		return semaphore.New(c, 1).Acquire(ctx, "x", opts...)
	}
	return []kind{
		{"mutex", admin.KindMutex, mutex, mutex}, {"writer", admin.KindRW, write, read},
		{"reader", admin.KindRW, read, write}, {"permit", admin.KindSemaphore, permit, permit},
	}
}

// left has a process take a lock, leave it to its handle, and exit.
func left(t *testing.T, s *testutil.Server, k kind) script.Handle {
	t.Helper()
	c, _ := process(t, s)
	l, err := k.take(t.Context(), c, natslock.TTL(ttl), natslock.NoRenew())
	require.NoError(t, err)
	h, _, err := script.Leave(l, ttl)
	require.NoError(t, err)
	exit(c)
	return h
}

func holderOf(t *testing.T, c *natslock.Client, h script.Handle) *admin.Holder {
	t.Helper()
	i, err := admin.New(c).Inspect(t.Context(), h.Kind(), h.Name())
	require.NoError(t, err)
	for _, held := range append(append(i.Permits, i.Readers...), deref(i.Holder)...) {
		if held.ID == h.ID {
			return &held
		}
	}
	return nil
}

func deref(h *admin.Holder) []admin.Holder {
	if h == nil {
		return nil
	}
	return []admin.Holder{*h}
}

// A handle holds its lock from the acquire, which is a single write, through the extensions to the release, each by a
// process of its own. Nobody else gets in before the release, and then the next one does.
func TestHeldByHandle(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) { heldByHandle(t, s, k) })
		})
	}
}

func heldByHandle(t *testing.T, s *testutil.Server, k kind) {
	taker, f := process(t, s, natslock.WithOwner("me"), script.For(4711))
	before := f.Counts()
	l, err := k.take(t.Context(), taker, natslock.TTL(ttl), natslock.NoRenew())
	require.NoError(t, err)
	h, lasts, err := script.Leave(l, ttl)
	require.NoError(t, err)
	require.Equal(t, before.Sends+1, f.Counts().Sends, "one write")
	require.Equal(t, ttl, lasts.TTL)
	require.Equal(t, 9*time.Second, lasts.Valid())
	require.Equal(t, ttl, lasts.Free())
	exit(taker)

	text, err := h.MarshalText()
	require.NoError(t, err)
	var again script.Handle
	require.NoError(t, again.UnmarshalText(text))
	require.Equal(t, h, again)
	require.NotContains(t, string(text), " ")

	waiter, _ := process(t, s)
	var in atomic.Bool
	done := make(chan *natslock.Lock, 1)
	go func() {
		next, err := k.other(t.Context(), waiter)
		if err == nil {
			in.Store(true)
		}
		done <- next
	}()
	begun := holderOf(t, waiter, h)
	require.NotNil(t, begun)
	require.Equal(t, "me", begun.Owner)
	require.Equal(t, 4711, begun.PID)
	for i, d := range []time.Duration{8 * time.Second, 0, 8 * time.Second, 8 * time.Second} {
		time.Sleep(d)
		c, _ := process(t, s)
		lasts, err := again.Extend(t.Context(), c, 0)
		require.NoError(t, err, i)
		require.Equal(t, []time.Duration{ttl, 9 * time.Second, ttl}, []time.Duration{lasts.TTL, lasts.Valid(), lasts.Free()})
		held := holderOf(t, c, h)
		require.Equal(t, []any{h.Token, begun.Since, true, ttl}, []any{held.Token, held.Since, held.Fixed, held.TTL})
		exit(c)
	}
	// It keeps its end if less is requested.
	c, _ := process(t, s)
	lasts, err = h.Extend(t.Context(), c, time.Second)
	require.NoError(t, err)
	require.GreaterOrEqual(t, lasts.Free(), ttl-time.Second)
	lasts, err = h.Extend(t.Context(), c, time.Minute)
	require.NoError(t, err)
	require.Equal(t, time.Minute, lasts.TTL)
	require.False(t, in.Load(), "beside the script")

	// Only the handle's own claim is extended and released.
	for _, wrong := range []script.Handle{{Left: h.Left, TTL: h.TTL}, {Left: h.Left, TTL: h.TTL}} {
		wrong.Token++
		_, err = wrong.Extend(t.Context(), c, 0)
		require.ErrorIs(t, err, natslock.ErrLost)
		require.ErrorIs(t, wrong.Release(t.Context(), c), natslock.ErrLost)
		require.NotNil(t, holderOf(t, c, h))
	}

	require.NoError(t, h.Release(t.Context(), c))
	next := <-done
	require.NotNil(t, next)
	require.Greater(t, next.Token(), h.Token)
	_, err = h.Extend(t.Context(), c, 0)
	require.ErrorIs(t, err, natslock.ErrLost)
	require.ErrorIs(t, h.Release(t.Context(), c), natslock.ErrLost)
	require.NoError(t, next.Unlock(t.Context()))
}

// A broken script lock keeps others out until its TTL ends or the script releases it.
func TestBrokenByHandle(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) { brokenByHandle(t, s, k) })
		})
	}
}

func brokenByHandle(t *testing.T, s *testutil.Server, k kind) {
	for _, releases := range []bool{false, true} {
		h, begun := left(t, s, k), time.Now()
		c, _ := process(t, s)
		time.Sleep(3 * time.Second)
		require.NoError(t, admin.New(c).Break(t.Context(), admin.BreakRequest{Kind: k.kind, Name: "x", ID: h.ID, Reason: "it hangs"}))
		_, err := h.Extend(t.Context(), c, 0)
		require.ErrorIs(t, err, natslock.ErrBroken)
		require.ErrorContains(t, err, "it hangs")
		if releases {
			require.ErrorIs(t, h.Release(t.Context(), c), natslock.ErrBroken)
		}
		next, err := k.other(t.Context(), c)
		require.NoError(t, err)
		if since := time.Since(begun); releases {
			require.Less(t, since, 4*time.Second)
		} else {
			require.GreaterOrEqual(t, since, ttl, "the script may have worked so long")
		}
		require.NoError(t, next.Unlock(t.Context()))

		h = left(t, s, k)
		require.NoError(t, admin.New(c).Break(t.Context(), admin.BreakRequest{Kind: k.kind, Name: "x", ID: h.ID, Immediately: true}))
		_, err = h.Extend(t.Context(), c, 0)
		require.ErrorIs(t, err, natslock.ErrBroken)
		next, err = k.other(t.Context(), c)
		require.NoError(t, err)
		require.ErrorIs(t, h.Release(t.Context(), c), natslock.ErrLost)
		require.NoError(t, next.Unlock(t.Context()), "the next holder's lock stays")
	}
}

// Whatever happens to the write of an extension, the reported validity is true.
func TestExtendAnswers(t *testing.T) {
	var held error
	for _, c := range []struct {
		name  string
		at    time.Duration // when Extend is called
		fates []faults.Fate
		valid time.Duration // at most, from the call on
		want  error
	}{
		{"lost answer", 2 * time.Second, []faults.Fate{faults.LoseAnswer}, 9 * time.Second, held},
		{"lost write", 2 * time.Second, []faults.Fate{faults.Drop}, 10100 * time.Millisecond, held},
		{"lost for long", 2 * time.Second, []faults.Fate{faults.Drop, faults.Drop, faults.Drop}, 13 * time.Second, held},
		{"in flight", 2 * time.Second, []faults.Fate{faults.Refuse(kvstore.ErrInFlight)}, 10 * time.Second, held},
		{"slow answer", 7 * time.Second, []faults.Fate{faults.DelayAnswer(900 * time.Millisecond)}, 9 * time.Second, held},
		{"stored late", 8500 * time.Millisecond, []faults.Fate{faults.Delay(900 * time.Millisecond)}, 0, natslock.ErrLost},
		{"not stored", 8500 * time.Millisecond, []faults.Fate{faults.Drop}, 0, natslock.ErrLost},
		{"too late", 9100 * time.Millisecond, nil, 0, natslock.ErrLost},
		{"no answer", 2 * time.Second, []faults.Fate{faults.Drop, faults.Drop, faults.Drop, faults.Drop, faults.Drop, faults.Drop}, 0, natslock.ErrUnavailable},
		{"refused", 2 * time.Second, []faults.Fate{faults.Refuse(kvstore.ErrPermission)}, 0, natslock.ErrPermission},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				h := left(t, s, kinds()[0])
				p, f := process(t, s)
				n := 0
				f.OnSend(func(int, kvstore.Write) faults.Fate {
					if n++; n <= len(c.fates) {
						return c.fates[n-1]
					}
					return faults.Pass
				})
				time.Sleep(c.at)
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				lasts, err := h.Extend(ctx, p, 0)
				if c.want != held {
					require.ErrorIs(t, err, c.want)
					require.Equal(t, c.want == natslock.ErrUnavailable, errors.Is(err, natslock.ErrUnavailable))
					require.True(t, c.fates != nil || n == 0, "nothing is written")
					return
				}
				require.NoError(t, err)
				end := time.Since(begun) + lasts.Valid()
				require.LessOrEqual(t, end, c.valid)
				require.GreaterOrEqual(t, end, c.valid-1100*time.Millisecond)
				other, _ := process(t, s)
				next, err := other.Lock(t.Context(), "x")
				require.NoError(t, err)
				require.GreaterOrEqual(t, time.Since(begun), end, "inside the validity")
				require.NoError(t, next.Unlock(t.Context()))
			})
		})
	}
}

// An extension that the server stored after the previous validity is valid for no process. The server may have removed
// the record and brought it back after a crash, and others may have been inside in between.
func TestExtendStoredLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := left(t, s, kinds()[1])
		p, f := process(t, s)
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Hold })
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := h.Extend(ctx, p, 0)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		time.Sleep(6500 * time.Millisecond) // past the validity, but within the TTL
		f.OnSend(nil)
		require.Positive(t, f.ReleaseHeld())
		time.Sleep(100 * time.Millisecond)
		require.NotNil(t, holderOf(t, p, h))
		_, err = h.Extend(t.Context(), p, 0)
		require.ErrorIs(t, err, natslock.ErrLost)
		require.ErrorIs(t, h.Release(t.Context(), p), natslock.ErrLost)
		require.Nil(t, holderOf(t, p, h), "deleted all the same")
	})
}

// behind is the store of a process whose replica lags, so it shows nothing unless a revision is requested.
type behind struct{ kvstore.KV }

func (b behind) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if min == 0 {
		return kvstore.Record{}, kvstore.ErrNotFound
	}
	return b.KV.Get(ctx, key, min)
}

// Two processes of a script may extend simultaneously, and a replica may lag.
func TestExtendTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := left(t, s, kinds()[0])
		slow, f := process(t, s)
		other, err := natslock.New(t.Context(), s.Connect(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return behind{kv} }))
		require.NoError(t, err)
		defer exit(other)
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(500 * time.Millisecond) })
		time.Sleep(time.Second)
		said := make(chan script.Lasts, 1)
		go func() {
			lasts, err := h.Extend(t.Context(), slow, 0)
			if err != nil {
				t.Error(err)
			}
			said <- lasts
		}()
		time.Sleep(200 * time.Millisecond)
		_, err = h.Extend(t.Context(), other, 0)
		require.NoError(t, err)
		lasts := <-said
		require.LessOrEqual(t, lasts.Valid(), 9*time.Second-300*time.Millisecond)
		require.GreaterOrEqual(t, lasts.Valid(), 9*time.Second-400*time.Millisecond)
		require.Equal(t, 1, f.Counts().Delayed)
	})
}

// Another process has extended in the meantime, for less than this one requests.
func TestExtendTogetherForLess(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := left(t, s, kinds()[0])
		slow, f := process(t, s)
		other, _ := process(t, s)
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(500 * time.Millisecond) })
		time.Sleep(2 * time.Second)
		said := make(chan script.Lasts, 1)
		go func() {
			lasts, err := h.Extend(t.Context(), slow, 0)
			if err != nil {
				t.Error(err)
			}
			said <- lasts
		}()
		time.Sleep(200 * time.Millisecond)
		less, err := h.Extend(t.Context(), other, time.Second)
		require.NoError(t, err)
		require.Equal(t, 8*time.Second, less.TTL)
		require.Equal(t, ttl, (<-said).TTL)
		require.Equal(t, 2, f.Counts().Delayed)
	})
}

// A script's writer that waits behind a reader for several TTLs keeps its gate, and then has nearly its whole TTL
// left.
func TestWriterDrains(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		reads, _ := process(t, s)
		reader, err := rwlock.New(reads).RLock(t.Context(), "x")
		require.NoError(t, err)
		writes, _ := process(t, s)
		done := make(chan *natslock.Lock, 1)
		go func() {
			l, err := rwlock.New(writes).Lock(t.Context(), "x", natslock.TTL(ttl), natslock.NoRenew())
			if err != nil {
				t.Error(err)
			}
			done <- l
		}()
		time.Sleep(time.Second)
		i, err := admin.New(reads).Inspect(t.Context(), admin.KindRW, "x")
		require.NoError(t, err)
		token := i.Holder.Token
		time.Sleep(3 * ttl)
		require.NoError(t, reader.Unlock(t.Context()))
		l := <-done
		require.Equal(t, token, l.Token(), "it has stood in line")
		require.Greater(t, l.Remaining(), ttl/2)
		time.Sleep(ttl)
		require.ErrorIs(t, l.Err(), natslock.ErrLost, "it is renewed no more")
		_ = l.Unlock(t.Context())
	})
}

// Only the text of a handle is accepted as one.
func TestHandleText(t *testing.T) {
	const good = "natslock-script-1:lock.x:A:640:60"
	var h script.Handle
	require.NoError(t, h.UnmarshalText([]byte(good)))
	require.Equal(t, []any{admin.KindMutex, "x", admin.Exclusive, time.Minute}, []any{h.Kind(), h.Name(), h.Mode(), h.TTL})
	for _, bad := range []string{
		"", "x", strings.Replace(good, "script-1", "script-2", 1), good + ":1", strings.Replace(good, "lock.x", "wait.x.A", 1), strings.Replace(good, "lock.x", "lock.=", 1),
		strings.Replace(good, "lock.x", "read.x.*", 1), strings.Replace(good, "lock.x", "read.x.a b", 1), strings.Replace(good, "lock.x", "read.x.\u00e9", 1),
		strings.Replace(good, ":A:", "::", 1), strings.Replace(good, "640", "0", 1), strings.Replace(good, "640", "-1", 1),
		strings.Replace(good, ":60", ":0", 1), strings.Replace(good, ":60", ":31622401", 1), "natslock-handle-1:mutex:x:A:640:60",
	} {
		before := h
		require.ErrorIs(t, h.UnmarshalText([]byte(bad)), natslock.ErrInvalid, bad)
		require.Equal(t, before, h)
	}
	for key, want := range map[string]string{"rw.x": "rw exclusive -", "read.x.A": "rw shared -", "sem.x.7": "semaphore exclusive 7"} {
		h.Key = key
		slot := "-"
		if n, ok := h.Slot(); ok {
			slot = fmt.Sprint(n)
		}
		require.Equal(t, want, fmt.Sprint(h.Kind(), " ", h.Mode(), " ", slot))
		_, ok := record.ParseKey(key)
		require.True(t, ok)
	}
}
