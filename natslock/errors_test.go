package natslock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// sentinels lists all errors that the entry points distinguish, under the names used in the tables
// below.
var sentinels = map[string]error{
	"Locked": natslock.ErrLocked, "Timeout": natslock.ErrTimeout, "Lost": natslock.ErrLost, "Broken": natslock.ErrBroken,
	"Released": natslock.ErrReleased, "Closed": natslock.ErrClosed, "Invalid": natslock.ErrInvalid,
	"HandedOff": natslock.ErrHandedOff, "NotHandedOver": natslock.ErrNotHandedOver,
	"Unavailable": natslock.ErrUnavailable,
	"Permission":  natslock.ErrPermission, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
}

// matched returns the names of the sentinels that err matches.
func matched(err error) string {
	var names []string
	for name, target := range sentinels {
		if errors.Is(err, target) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if err == nil {
		return "nil"
	}
	return strings.Join(names, " ")
}

// subject is what an entry point is called on: a client that holds the lock "held" and has just
// released the lock "left".
type subject struct {
	*kit.Member
	held *natslock.Lock
}

func (s subject) take(ctx context.Context, acquire kit.Taking, name string) error {
	l, err := acquire(ctx, name, natslock.MaxWait(20*time.Second))
	if err == nil {
		err = errors.Join(errors.New("granted"), l.Unlock(ctx))
	}
	return err
}

func (s subject) takeAll(l *natslock.LockSet, err error) error {
	if err == nil {
		err = errors.Join(errors.New("granted"), l.Unlock(context.Background()))
	}
	return err
}

// entryPoints lists the calls that can fail. Calls in the same group fail alike.
var entryPoints = []struct {
	name, group string
	call        func(ctx context.Context, s subject) error
}{
	{"Lock", "wait", func(ctx context.Context, s subject) error { return s.take(ctx, s.Lock, "free") }},
	{"rw Lock", "wait", func(ctx context.Context, s subject) error { return s.take(ctx, rwlock.New(s.Client).Lock, "rw") }},
	{"RLock", "wait", func(ctx context.Context, s subject) error { return s.take(ctx, rwlock.New(s.Client).RLock, "rw") }},
	{"TryLock", "once", func(ctx context.Context, s subject) error { return s.take(ctx, s.TryLock, "free") }},
	{"TryLock that reads", "once", func(ctx context.Context, s subject) error { return s.take(ctx, s.TryLock, "left") }},
	{"rw TryLock", "once", func(ctx context.Context, s subject) error { return s.take(ctx, rwlock.New(s.Client).TryLock, "rw") }},
	{"TryRLock", "once", func(ctx context.Context, s subject) error { return s.take(ctx, rwlock.New(s.Client).TryRLock, "rw") }},
	{"LockAll", "wait", func(ctx context.Context, s subject) error {
		return s.takeAll(s.LockAll(ctx, []string{"free", "left", "other"}, natslock.MaxWait(20*time.Second)))
	}},
	{"TryLockAll", "once", func(ctx context.Context, s subject) error {
		return s.takeAll(s.TryLockAll(ctx, []string{"free", "left", "other"}))
	}},
	{"Once", "once", func(ctx context.Context, s subject) error {
		return s.Once(ctx, "job", time.Hour, func(context.Context, *natslock.Lock) error { return errors.New("granted") })
	}},
	{"Extend", "extend", func(ctx context.Context, s subject) error { return s.held.Extend(ctx, 0) }},
	{"Unlock", "unlock", func(ctx context.Context, s subject) error { return s.held.Unlock(ctx) }},
	{"Handoff", "handoff", func(ctx context.Context, s subject) error {
		_, err := s.held.Handoff(ctx)
		return err
	}},
	{"Adopt", "adopt", func(ctx context.Context, s subject) error {
		_, err := s.Adopt(ctx, natslock.Handle{Name: "held", ID: s.held.ID(), Token: s.held.Token(), TTL: 10 * time.Second})
		return err
	}},
	{"Break", "ask", func(ctx context.Context, s subject) error {
		return admin.New(s.Member.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "held", ID: s.held.ID(), Reason: "test"})
	}},
	{"Inspect", "ask", func(ctx context.Context, s subject) error {
		_, err := admin.New(s.Member.Client).Inspect(ctx, admin.KindMutex, "held")
		return err
	}},
	{"List", "ask", func(ctx context.Context, s subject) error {
		for _, err := range admin.New(s.Member.Client).List(ctx, ">") {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"Watch", "watch", func(ctx context.Context, s subject) error {
		for _, err := range admin.New(s.Member.Client).Watch(ctx, ">") {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"Close", "close", func(ctx context.Context, s subject) error { return s.Close(ctx) }},
	{"New", "new", func(ctx context.Context, s subject) error {
		c, err := natslock.New(ctx, s.NC)
		if err == nil {
			kit.CloseNow(c)
		}
		return err
	}},
}

// TestErrorKinds checks exactly which sentinels the error of each entry point matches for each kind
// of failure. A context that has ended is matched in addition to the domain's error; one that has
// not ended is not matched.
func TestErrorKinds(t *testing.T) {
	ending := func(d time.Duration) func(*testing.T) context.Context {
		return func(t *testing.T) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
	}
	ended := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	endless := func(t *testing.T) context.Context { return t.Context() }
	nothing := func(*testing.T, *testutil.Server, *kit.Member) {}
	silent := func(_ *testing.T, _ *testutil.Server, m *kit.Member) { m.Link.Blackhole(true) }
	cut := func(t *testing.T, _ *testutil.Server, m *kit.Member) {
		m.Link.Cut()
		kit.Eventually(t, "the client has noticed", func() bool { return !m.NC.IsConnected() })
	}
	for _, f := range []struct {
		name string
		ctx  func(*testing.T) context.Context
		fail func(*testing.T, *testutil.Server, *kit.Member)
		want map[string]string // by group; groups that are missing are not called
	}{
		{"ended context", ended, nothing, map[string]string{
			"handoff": "canceled", "adopt": "Timeout canceled", "wait": "Timeout canceled", "once": "Timeout canceled", "extend": "canceled", "unlock": "nil", "ask": "canceled",
			"watch": "nil", "close": "canceled", "new": "canceled",
		}},
		{"no answer until the deadline", ending(700 * time.Millisecond), silent, map[string]string{
			"handoff": "Unavailable deadline", "adopt": "Timeout Unavailable deadline", "wait": "Timeout Unavailable deadline", "once": "Timeout Unavailable deadline", "extend": "Unavailable deadline", "unlock": "Unavailable deadline",
			"ask": "Unavailable deadline", "watch": "nil", "close": "deadline", "new": "Unavailable deadline",
		}},
		{"cut off until the deadline", ending(700 * time.Millisecond), cut, map[string]string{
			"handoff": "Unavailable deadline", "adopt": "Unavailable", "wait": "Timeout Unavailable deadline", "once": "Unavailable", "extend": "Unavailable deadline", "unlock": "Unavailable deadline",
			"ask": "Unavailable", "watch": "nil", "close": "deadline",
		}},
		{"no answer", endless, silent, map[string]string{
			"handoff": "Unavailable", "adopt": "Unavailable", "wait": "Timeout Unavailable", "once": "Unavailable", "extend": "Lost", "unlock": "Unavailable", "ask": "Unavailable", "new": "Unavailable",
		}},
		{"cut off", endless, cut, map[string]string{
			"handoff": "Unavailable", "adopt": "Unavailable", "wait": "Timeout Unavailable", "once": "Unavailable", "extend": "Lost", "unlock": "Unavailable", "ask": "Unavailable", "new": "Unavailable",
		}},
		{"closed client", endless, func(_ *testing.T, _ *testutil.Server, m *kit.Member) { kit.CloseNow(m.Client) }, map[string]string{
			"handoff": "Closed", "adopt": "Closed", "wait": "Closed", "once": "Closed", "extend": "Closed", "unlock": "Closed", "ask": "Closed", "watch": "Closed",
		}},
		{"closed connection", endless, func(_ *testing.T, _ *testutil.Server, m *kit.Member) { m.NC.Close() }, map[string]string{
			"handoff": "Unavailable", "adopt": "Unavailable", "wait": "Unavailable", "once": "Unavailable", "extend": "Unavailable", "unlock": "Unavailable", "ask": "Unavailable", "watch": "Unavailable", "new": "Unavailable",
		}},
		{"bucket deleted", endless, func(t *testing.T, s *testutil.Server, _ *kit.Member) { kit.DeleteBucket(t, s.Connect()) }, map[string]string{
			"handoff": "Unavailable", "adopt": "Unavailable", "wait": "Unavailable", "once": "Unavailable", "extend": "Lost", "unlock": "Unavailable", "ask": "Unavailable", "watch": "Unavailable",
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				for _, e := range entryPoints {
					want, called := f.want[e.group]
					if !called {
						continue
					}
					m := kit.Join(t, s)
					held := kit.Must(t, m.Lock, "held", natslock.TTL(10*time.Second))
					kit.Unlock(t, kit.Must(t, m.Lock, "left"))
					f.fail(t, s, m)
					err := e.call(f.ctx(t), subject{m, held})
					require.Equalf(t, want, matched(err), "%s: %v", e.name, err)
					if err != nil && e.group != "watch" && e.group != "close" && e.group != "new" && e.name != "List" {
						require.Regexp(t, `lock "(free|held|left|rw|job)"`, err.Error(), e.name)
					}
					m.Link.Heal()
					kit.CloseNow(m.Client)
					time.Sleep(time.Minute) // until the client's records have expired
				}
			})
		})
	}
}

// TestErrorKindsOfBadInput checks that the client refuses an impossible argument before it sends
// anything.
func TestErrorKindsOfBadInput(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		rw := rwlock.New(c.Client)
		held := kit.Must(t, c.Lock, "held")
		ctx := t.Context()
		out := c.NC.Stats().OutMsgs
		for name, acquire := range map[string]kit.Taking{"Lock": c.Lock, "TryLock": c.TryLock, "rw Lock": rw.Lock, "rw TryLock": rw.TryLock, "RLock": rw.RLock, "TryRLock": rw.TryRLock} {
			_, err := acquire(ctx, "")
			require.Equal(t, "Invalid", matched(err), name)
			_, err = acquire(ctx, "x", natslock.TTL(-1))
			require.Equal(t, "Invalid", matched(err), name)
			_, err = acquire(ctx, "x", natslock.TTL(time.Second), natslock.Until(time.Now().Add(time.Hour)))
			require.Equal(t, "Invalid", matched(err), name)
		}
		_, err := admin.New(c.Client).Inspect(ctx, admin.KindMutex, "")
		require.Equal(t, "Invalid", matched(err))
		for _, err := range admin.New(c.Client).List(ctx, "") {
			require.Equal(t, "Invalid", matched(err))
		}
		for _, err := range admin.New(c.Client).Watch(ctx, "") {
			require.Equal(t, "Invalid", matched(err))
		}
		require.Equal(t, "Invalid", matched(admin.New(c.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "", ID: "A", Reason: "test"})))
		require.Equal(t, "Invalid", matched(admin.New(c.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: "A", Reason: strings.Repeat("x", 2000)})))
		require.Equal(t, "Invalid", matched(held.Extend(ctx, -1)))
		require.Equal(t, out, c.NC.Stats().OutMsgs, "nothing was sent")
		_, err = natslock.New(ctx, nil)
		require.Equal(t, "Invalid", matched(err))
		_, err = natslock.New(ctx, c.NC, natslock.WithTTL(-1))
		require.Equal(t, "Invalid", matched(err))
	})
}

// TestErrorKindsOfPermission covers a user who may only read the bucket, and one who may do nothing
// at all.
func TestErrorKindsOfPermission(t *testing.T) {
	s := testutil.RunServer(t, testutil.WithConfigText(`authorization { users: [
		{ user: admin, password: p }
		{ user: reader, password: p, permissions: { publish: { deny: ["$KV.natslock.>"] } } }
		{ user: mute, password: p, permissions: { subscribe: { deny: ["_INBOX.>"] } } }
	] }`))
	owner := kit.NewClient(t, s.Connect(kit.As("admin")...))
	held := kit.Must(t, owner.Lock, "held")
	nc := s.Connect(kit.As("reader")...)
	c := kit.NewClient(t, nc)
	rw := rwlock.New(c)
	for name, acquire := range map[string]kit.Taking{"Lock": c.Lock, "TryLock": c.TryLock, "rw Lock": rw.Lock, "rw TryLock": rw.TryLock, "RLock": rw.RLock, "TryRLock": rw.TryRLock} {
		_, err := acquire(t.Context(), "free "+name)
		require.Equalf(t, "Permission", matched(err), "%s: %v", name, err)
		require.ErrorContains(t, err, `lock "free `+name+`"`)
	}
	require.Equal(t, "Permission", matched(admin.New(c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "held", ID: held.ID(), Reason: "test"})))
	_, err := natslock.New(t.Context(), s.Connect(kit.As("mute")...))
	require.Equal(t, "Permission", matched(err))
	kit.Unlock(t, held)
}

// TestErrorsAreOneLine checks that an error's text is a single line even if it wraps an error that
// has several.
func TestErrorsAreOneLine(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), kit.Join(t, s)
		stop := func(name string) {
			h := kit.Inspect(t, other.Client, name).Holder
			require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: h.ID, Reason: "test"}))
		}
		fault := errors.New("fault")
		work := c.Do(t.Context(), "a", func(ctx context.Context, l *natslock.Lock) error {
			stop("a")
			<-ctx.Done()
			return fault
		})
		require.ErrorIs(t, work, fault)
		require.ErrorIs(t, work, natslock.ErrBroken)
		require.ErrorContains(t, work, "fault; lock \"a\" (token ")

		all, err := c.LockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		stop("a")
		stop("b")
		<-all.Context().Done()
		synctest.Wait()
		several := all.Unlock(t.Context())
		require.ErrorContains(t, several, `"a"`)
		require.ErrorContains(t, several, `"b"`)

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(fault)
		_, waiting := c.Lock(ctx, "c")
		require.ErrorIs(t, waiting, fault)
		require.ErrorIs(t, waiting, context.Canceled)
		kit.Must(t, c.Lock, "held")
		closing := c.Close(ctx)
		require.ErrorIs(t, closing, context.Canceled)
		require.EqualError(t, closing, `closed with locks still held: "held": context canceled: fault`)
		for _, err := range []error{work, several, waiting, closing} {
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "operator: lock lost")
		}
	})
}

// TestTimeoutOfOwnLock checks that the error says so if a client waits for a lock that it holds
// itself. A call that gave up before it started to wait reports no duration.
func TestTimeoutOfOwnLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, c.Lock, "x")
		for _, m := range []*kit.Member{c, other} {
			_, err := m.Lock(t.Context(), "x", natslock.MaxWait(time.Second))
			timeout, ok := errors.AsType[*natslock.TimeoutError](err)
			require.True(t, ok)
			require.Equal(t, l.Token(), timeout.Holder.Token)
			require.Equal(t, m == c, timeout.Own)
			text := fmt.Sprintf("held by this client itself (token %d)", l.Token())
			require.Equal(t, m == c, strings.Contains(err.Error(), text), err.Error())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.TryLock(ctx, "y")
		require.EqualError(t, err, `lock "y": gave up immediately: context canceled`)
	})
}

func TestInspectLockedError(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		l := kit.Must(t, a.Lock, "l", natslock.Meta(map[string]string{"k": "v"}))
		b.Await(t, "l")
		kit.Join(t, s).Await(t, "l")
		_, err := a.TryLock(t.Context(), "l")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.True(t, locked.Own)
		require.Equal(t, 2, locked.Queued)
		require.ErrorContains(t, err, "this client itself")
		require.ErrorContains(t, err, "2 waiting")

		_, err = b.TryLock(t.Context(), "l")
		require.ErrorAs(t, err, &locked)
		require.False(t, locked.Own)
		require.Equal(t, "l", locked.Name)
		require.Equal(t, l.Token(), locked.Holder.Token)
		require.Equal(t, "alice", locked.Holder.Owner)
		require.Equal(t, map[string]string{"k": "v"}, locked.Holder.Meta)
		require.ErrorContains(t, err, "alice")
		require.ErrorContains(t, err, fmt.Sprint(l.Token()))
	})
}

// TestLockedErrorCountsGoroutines checks that a refusal counts the waiting goroutines that the
// records show, including those of the holder's own client.
func TestLockedErrorCountsGoroutines(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s), kit.Join(t, s)
		kit.Must(t, a.Lock, "l", natslock.TTL(6*time.Second))
		for range 3 {
			a.Begin(t, "l", natslock.TTL(6*time.Second))
			b.Begin(t, "l")
		}
		time.Sleep(8 * time.Second) // every record has been renewed
		_, err := kit.Join(t, s).TryLock(t.Context(), "l")
		locked, ok := errors.AsType[*natslock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 6, locked.Queued, "%v", err)
		require.ErrorContains(t, err, "6 waiting")
	})
}

// TestLockedErrorByHand checks that a fake Locker can build a LockedError with only the fields that
// it needs.
func TestLockedErrorByHand(t *testing.T) {
	for _, err := range []*natslock.LockedError{{}, {Name: "x", Own: true}, {Name: "x", Own: true, Queued: 1}, {Name: "x", Queued: 1}} {
		require.NotEmpty(t, err.Error())
		require.ErrorIs(t, err, natslock.ErrLocked)
	}
}

// TestInspectLockedErrorQueued checks that TryLock does not take a free lock while someone is
// queued for it.
func TestInspectLockedErrorQueued(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, a.Lock, "l")
		b.Await(t, "l")
		time.Sleep(3 * time.Second)
		b.Link.Blackhole(true) // this waiter is not notified of the release
		kit.Unlock(t, l)
		_, err := c.TryLock(t.Context(), "l")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Nil(t, locked.Holder)
		require.Equal(t, 1, locked.Queued)
		require.ErrorContains(t, err, "queue")
	})
}

// TestForeignText checks that other clients' owners and reasons are quoted in every error and log
// line, so that they can neither start a line of their own nor control a terminal.
func TestForeignText(t *testing.T) {
	const evil = "ada\n2026-01-01 all is well \x1b[2J\u009b\xff\u202e"
	quoted := strconv.Quote(evil)
	harmless := func(t *testing.T, text, want string) {
		t.Helper()
		require.Contains(t, text, want)
		require.True(t, utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", text)
	}
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log bytes.Buffer
		warned := natslock.WithLogger(slog.New(slog.NewJSONHandler(&log, nil)))
		holder := kit.Join(t, s, natslock.WithOwner(evil), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}), warned)
		operator := kit.Join(t, s, natslock.WithOwner(evil))
		other := kit.Join(t, s)

		l := kit.Must(t, holder.Lock, "l", natslock.TTL(time.Hour))
		_, err := rwlock.New(holder.Client).Lock(t.Context(), "rw", natslock.TTL(time.Hour))
		require.NoError(t, err)
		_, err = semaphore.New(holder.Client, 1).Acquire(t.Context(), "s", natslock.TTL(time.Hour))
		require.NoError(t, err)
		for _, acquire := range []func() error{
			func() error { _, err := other.TryLock(t.Context(), "l"); return err },
			func() error {
				return other.TryDo(t.Context(), "l", func(context.Context, *natslock.Lock) error { return nil })
			},
			func() error { _, err := other.Lock(t.Context(), "l", natslock.MaxWait(time.Second)); return err },
			func() error {
				_, err := other.LockAll(t.Context(), []string{"k", "l"}, natslock.MaxWait(time.Second))
				return err
			},
			func() error { _, err := rwlock.New(other.Client).TryRLock(t.Context(), "rw"); return err },
			func() error { _, err := semaphore.New(other.Client, 1).TryAcquire(t.Context(), "s"); return err },
		} {
			harmless(t, acquire().Error(), quoted[:len(quoted)-1]+" on ")
		}

		kit.Break(t, operator.Client, l, evil)
		<-l.Context().Done()
		reason := "by " + quoted + ": " + quoted
		harmless(t, context.Cause(l.Context()).Error(), reason)
		harmless(t, l.Err().Error(), reason)
		harmless(t, l.Extend(t.Context(), time.Minute).Error(), reason)
		harmless(t, l.Unlock(t.Context()).Error(), reason)
		synctest.Wait()
		for line := range strings.Lines(log.String()) {
			require.NotContains(t, line, `ada\n`)
		}
		require.Contains(t, log.String(), strings.Trim(strconv.Quote(quoted), `"`))

		handed := kit.Must(t, holder.Lock, "handed", natslock.TTL(time.Hour))
		handle, err := handed.Handoff(t.Context())
		require.NoError(t, err)
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "handed", ID: handed.ID(), Reason: evil}))
		_, err = other.Adopt(t.Context(), handle)
		harmless(t, err.Error(), reason)
		_, err = other.TryLock(t.Context(), "handed")
		harmless(t, err.Error(), "broken by "+quoted)
	})
}

// TestTryDoFunctionReturnsLocked checks that the function's own error may match ErrLocked as well,
// and that it then names the lock that the function was refused.
func TestTryDoFunctionReturnsLocked(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Must(t, c.Lock, "other")
		ran := false
		err := c.TryDo(t.Context(), "l", func(ctx context.Context, _ *natslock.Lock) error {
			ran = true
			_, err := c.TryLock(ctx, "other")
			return err
		})
		require.True(t, ran)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "other", locked.Name)
	})
}
