package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

const (
	ttl   = 15 * time.Second
	valid = 14 * time.Second // of each write, from when it was sent
)

// lease is a keeper's record that notes what happens to it.
type lease struct {
	keeper.Record
	w *world

	// Guarded by w.mu.
	end     core.End
	why     string
	over    time.Duration // when it ended, or 0 if it has not
	refused []error
	risks   int
}

func (l *lease) NextDuty(due clock.Instant) clock.Instant { return due }
func (l *lease) Perform(clock.Instant)                    {}
func (l *lease) Confirmed(uint64)                         {}
func (l *lease) NoRoom(uint64, error) bool                { return false }
func (l *lease) Cooldown(clock.Instant) time.Duration     { return 0 }
func (l *lease) Refused(err error)                        { l.note(func() { l.refused = append(l.refused, err) }) }
func (l *lease) AtRisk(error)                             { l.note(func() { l.risks++ }) }
func (l *lease) NoteEnd(end core.End, why string)         { l.note(func() { l.end, l.why = end, why }) }
func (l *lease) Over()                                    { l.note(func() { l.over = time.Since(l.w.begun) }) }

func (l *lease) note(fn func()) { l.w.note(fn) }

// ended returns when the lease ended, or 0 if it has not, along with the kind of end and its evidence.
func (l *lease) ended() (at time.Duration, end core.End, why string) {
	l.note(func() { at, end, why = l.over, l.end, l.why })
	return at, end, why
}

// world is a keeper with an in-memory bucket and injected faults, plus another client of that bucket.
type world struct {
	*keeper.Keeper
	b, others *bucket.Bucket
	f         *faults.Store
	begun     time.Time

	mu       sync.Mutex
	doubts   int
	warnings []string
}

func (w *world) note(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

// warned returns the warnings so far.
func (w *world) warned() (all []string) {
	w.note(func() { all = w.warnings })
	return all
}

// doubted returns how often a record turned out to be gone.
func (w *world) doubted() (n int) {
	w.note(func() { n = w.doubts })
	return n
}

// inMemory runs fn with a keeper and closes the keeper when fn returns.
func inMemory(t *testing.T, wrap func(kvstore.KV) kvstore.KV, fn func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		m := kvstore.NewMemory(kvstore.DefaultBucket)
		w := &world{f: faults.New(m.Open(), 1), others: bucket.New(m.Open(), "", nil), begun: time.Now()}
		var kv kvstore.KV = w.f
		if wrap != nil {
			kv = wrap(kv)
		}
		w.b = bucket.New(kv, "", nil)
		w.Keeper = keeper.New(w.b, keeper.Config{Holding: func() {}, Doubted: func() { w.note(func() { w.doubts++ }) }, Warn: func(msg string, _ ...any) {
			w.note(func() { w.warnings = append(w.warnings, msg) })
		}})
		defer func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			w.Close(over)
			w.Finish(over)
			w.b.KV.Close()
			w.others.KV.Close()
		}()
		fn(t, w)
	})
}

// hold writes a lock's record and has the keeper renew it.
func (w *world) hold(t *testing.T, name string) *lease {
	t.Helper()
	l := &lease{w: w}
	g := keeper.Granted{Name: name, Key: "lock." + name, Body: w.b.Body(record.StatusHeld, nil), Terms: clock.NewTerms(ttl), Sent: w.b.Instant()}
	g.Body.ID, g.Body.Attempt, g.Body.TTL = "id-"+name, 1, int64(ttl/time.Second)
	value, err := g.Body.Encode()
	require.NoError(t, err)
	g.Revision, err = w.others.Write(t.Context(), kvstore.Write{Key: g.Key, Value: value, TTL: ttl})
	require.NoError(t, err)
	w.Make(&l.Record, g, l)
	w.Take(&l.Record)
	return l
}

// entry returns a lock's record from the bucket.
func (w *world) entry(t *testing.T, name string) record.Entry {
	t.Helper()
	e, err := w.others.Read(t.Context(), "lock."+name, 0)
	require.NoError(t, err)
	return e
}

func (l *lease) held() bool {
	state, _ := l.Status()
	return state == core.StateHeld
}

// A keeper keeps a client's records alive for as long as renewals are answered, even if the first reply to each is
// lost.
func TestKeepsAlive(t *testing.T) {
	for name, fate := range map[string]faults.Fate{"answered": faults.Pass, "every other answer lost": faults.LoseAnswer, "every other lost": faults.Drop, "slow": faults.Delay(2 * time.Second)} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, nil, func(t *testing.T, w *world) {
				l := w.hold(t, "x")
				w.f.OnSend(func(n int, _ kvstore.Write) faults.Fate {
					if n%2 == 1 {
						return fate
					}
					return faults.Pass
				})
				time.Sleep(time.Hour)
				require.True(t, l.held())
				_, revision := l.Confirmation()
				require.LessOrEqual(t, w.entry(t, "x").Revision-revision, uint64(1))
				require.Equal(t, "id-x", w.entry(t, "x").ID)
			})
		})
	}
}

// A lease's context ends with its validity no matter what the network does: it may fail, swallow everything, deliver
// replies late, or accept no bytes.
func TestEndsInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(w *world)
		why     string
	}{
		"down":   {func(w *world) { w.f.Fail(fmt.Errorf("%w: test", kvstore.ErrUnavailable)) }, "without a confirmation from the server: its renewal failed"},
		"silent": {func(w *world) { w.f.OnSend(kit.At("lock renew", faults.Drop)) }, "without a confirmation from the server"},
		"late":   {func(w *world) { w.f.OnSend(kit.At("lock renew", faults.DelayAnswer(valid))) }, "without a confirmation from the server"},
		"stuck":  {func(w *world) { w.f.OnSend(nil) }, "without a confirmation from the server"},
	} {
		t.Run(name, func(t *testing.T) {
			var wrap func(kvstore.KV) kvstore.KV
			if name == "stuck" {
				wrap = func(kv kvstore.KV) kvstore.KV { return &stuck{kv, make(chan struct{})} }
			}
			inMemory(t, wrap, func(t *testing.T, w *world) {
				l := w.hold(t, "x")
				tc.happens(w)
				time.Sleep(valid - 1)
				require.True(t, l.held())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				at, end, why := l.ended()
				require.Equal(t, valid, at)
				require.Equal(t, core.EndLost, end)
				require.Contains(t, why, tc.why)
				require.Zero(t, w.Held())
				w.f.Fail(nil)
				if s, ok := w.b.KV.(*stuck); ok {
					close(s.end)
				}
			})
		})
	}
}

// stuck is a store whose network accepts no renewals.
type stuck struct {
	kvstore.KV
	end chan struct{}
}

func (s *stuck) Send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	<-s.end
	return s.KV.Send(w, done)
}

// A renewal whose reply is late is worthless, because by then the server may have accepted another write. Its record is
// deleted so that nobody has to wait for its TTL.
func TestLateAnswer(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		l := w.hold(t, "x")
		w.f.OnSend(kit.At("lock renew", faults.DelayAnswer(valid-2*time.Second)))
		time.Sleep(valid)
		synctest.Wait()
		_, end, _ := l.ended()
		require.Equal(t, core.EndLost, end)
		require.True(t, w.entry(t, "x").Live(), "the renewal of 5 s: %+v", w.entry(t, "x"))
		time.Sleep(4 * time.Second) // the reply comes at 17 s
		require.False(t, l.held())
		require.False(t, w.entry(t, "x").Live(), "its TTL would end at 20 s")
	})
}

// Only proof ends a record early: a read that shows another claim, a tombstone, a break or nothing.
func TestProof(t *testing.T) {
	write := func(t *testing.T, w *world, status record.Status, id string, deletes bool) {
		e := w.entry(t, "x")
		body := e.Body
		body.ID, body.Status, body.Reason = id, status, "it hung"
		value, err := body.Encode()
		require.NoError(t, err)
		kw := kvstore.Write{Key: e.Key, Value: value, Expect: e.Revision, Delete: deletes}
		if !deletes {
			kw.TTL = ttl
		}
		_, err = w.others.Write(t.Context(), kw)
		require.NoError(t, err)
	}
	for name, tc := range map[string]struct {
		happens func(t *testing.T, w *world)
		end     core.End
		why     string
	}{
		"another claim": {func(t *testing.T, w *world) { write(t, w, record.StatusHeld, "other", false) }, core.EndLost, "its record was replaced at revision"},
		"deleted":       {func(t *testing.T, w *world) { write(t, w, record.StatusGone, "id-x", true) }, core.EndLost, "its record was deleted"},
		"broken":        {func(t *testing.T, w *world) { write(t, w, record.StatusBroken, "id-x", false) }, core.EndBroken, "it hung"},
		"gone": {func(t *testing.T, w *world) {
			write(t, w, record.StatusGone, "id-x", true)
			time.Sleep(2 * time.Second) // the tombstone is gone by now
		}, core.EndLost, "its record was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, nil, func(t *testing.T, w *world) {
				l := w.hold(t, "x")
				tc.happens(t, w)
				require.True(t, l.held())
				time.Sleep(ttl/3 + ms - time.Since(w.begun)) // so that the renewal is refused
				synctest.Wait()
				_, end, why := l.ended()
				require.Equal(t, tc.end, end)
				require.Contains(t, why, tc.why)
				require.Equal(t, 1, w.doubted(), "the bucket may have gone with the record")
			})
		})
	}
}

const ms = time.Millisecond

// A deposed leader may refuse a renewal. The refusal merely leads to a read, which shows the record.
func TestRefusalIsNoProof(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		l := w.hold(t, "x")
		w.f.OnSend(kit.Between("lock renew", 1, 1, faults.Refuse(&kvstore.ConflictError{Key: "lock.x", Expected: l.Last, Last: l.Last - 1})))
		time.Sleep(time.Minute)
		require.True(t, l.held())
		require.Positive(t, w.f.Counts().Refused)
		require.Zero(t, w.doubted())
	})
}

// A record that nobody can judge, because every read fails, is kept until its validity ends.
func TestRefusalThatNobodyCanRead(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		l := w.hold(t, "x")
		w.f.OnSend(kit.At("lock renew", faults.Refuse(&kvstore.ConflictError{Key: "lock.x", Expected: l.Last, Last: l.Last + 7})))
		w.f.FailReads(func(faults.ReadOp, string) error { return kvstore.ErrUnavailable })
		time.Sleep(valid)
		synctest.Wait()
		at, end, _ := l.ended()
		require.Equal(t, valid, at)
		require.Equal(t, core.EndLost, end)
	})
}

// When a server refuses to renew a record, its owner is told once and the client counts as at risk. An outage is not a
// refusal: the client is at risk only after two thirds of the validity have passed.
func TestAtRisk(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		l := w.hold(t, "x")
		w.f.OnSend(kit.At("lock renew", faults.Refuse(fmt.Errorf("%w: test", kvstore.ErrPermission))))
		time.Sleep(valid / 2)
		l.note(func() {
			require.Len(t, l.refused, 1)
			require.ErrorIs(t, l.refused[0], kvstore.ErrPermission)
		})
		err := w.AtRisk()
		require.ErrorIs(t, err, bucket.ErrUnavailable)
		require.ErrorContains(t, err, `lock "x"`)
	})
	inMemory(t, nil, func(t *testing.T, w *world) {
		l := w.hold(t, "x")
		w.f.OnSend(kit.At("lock renew", faults.Drop))
		time.Sleep(valid * 2 / 3)
		require.NoError(t, w.AtRisk())
		require.InDelta(t, valid*2/3-ttl/3, w.RenewalLag(), float64(150*ms), "since the first third of the TTL")
		time.Sleep(ms)
		require.ErrorContains(t, w.AtRisk(), `the renewal of lock "x" is overdue`)
		w.WarnAll(errors.New("closed"))
		l.note(func() {
			require.Empty(t, l.refused)
			require.Equal(t, 1, l.risks)
		})
	})
}

// After a reconnect, every renewal is due immediately.
func TestRenewAll(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		for i := range 50 {
			w.hold(t, fmt.Sprint(i))
		}
		time.Sleep(ms)
		require.Zero(t, w.f.Counts().Sends)
		w.RenewAll()
		time.Sleep(ms)
		require.Equal(t, 50, w.f.Counts().Sends)
	})
}

// When the bucket has replaced another one, exactly those records are lost that a read does not show.
func TestLoseAbsent(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		there, absent, unknown := w.hold(t, "there"), w.hold(t, "absent"), w.hold(t, "unknown")
		w.LoseAbsent(func(key string, revision uint64) (record.Entry, error) {
			switch key {
			case "lock.absent":
				return record.Entry{}, nil
			case "lock.unknown":
				return record.Entry{}, kvstore.ErrUnavailable
			}
			return w.b.Read(t.Context(), key, revision)
		}, "another bucket")
		require.True(t, there.held())
		for _, l := range []*lease{absent, unknown} {
			_, end, why := l.ended()
			require.Equal(t, core.EndLost, end)
			require.Equal(t, "another bucket", why)
		}
		require.Equal(t, 1, w.Held())
	})
}

// While the renewals of the locks it holds are late, a client acquires no new ones.
func TestRenewalsComeFirst(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		for i := range 2000 {
			w.hold(t, fmt.Sprint(i))
		}
		w.f.OnSend(kit.At("lock renew", faults.DelayAnswer(3*time.Second)))
		require.NoError(t, w.b.Admits())
		for w.b.Admits() == nil && time.Since(w.begun) < valid {
			time.Sleep(10 * ms)
		}
		err := w.b.Admits()
		require.ErrorIs(t, err, bucket.ErrUnavailable)
		require.ErrorContains(t, err, "no new locks while renewals of held locks are")
		require.Contains(t, w.warned()[0], "renewals are late")
		w.f.OnSend(nil)
		time.Sleep(time.Minute)
		require.NoError(t, w.b.Admits())
		require.Contains(t, w.warned()[len(w.warned())-1], "on time again")
	})
}

// Close waits until the locks are released or its context ends. It then ends the remaining ones, leaves their records
// to expire and returns their names. A lock granted after that ends immediately, because nobody would renew it.
func TestClose(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		x, y := w.hold(t, "x"), w.hold(t, "y")
		time.AfterFunc(time.Minute, func() { x.Leave(record.StatusGone) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.Equal(t, []string{"y"}, w.Close(ctx))
		at, _, _ := x.ended()
		require.Equal(t, time.Minute, at)
		at, end, _ := y.ended()
		require.Equal(t, time.Hour, at)
		require.Equal(t, core.EndClosed, end)
		require.False(t, w.entry(t, "x").Live())
		require.True(t, w.entry(t, "y").Live())
		_, end, _ = w.hold(t, "z").ended()
		require.Equal(t, core.EndClosed, end)
	})
	inMemory(t, nil, func(t *testing.T, w *world) {
		x := w.hold(t, "x")
		time.AfterFunc(time.Minute, func() { x.Leave(record.StatusGone) })
		require.Empty(t, w.Close(t.Context()))
		require.Equal(t, time.Minute, time.Since(w.begun), "when no lock is held any more")
	})
}

// The write that ends a record is repeated until the server has confirmed it.
func TestRemovalIsRepeated(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"answer lost": faults.LoseAnswer, "lost": faults.Drop, "in flight": faults.Refuse(kvstore.ErrInFlight), "not sent": faults.NotSent(kvstore.ErrUnavailable),
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, nil, func(t *testing.T, w *world) {
				w.f.OnSend(kit.Between("lock delete", 1, 3, fate))
				l := w.hold(t, "x")
				<-l.Leave(record.StatusGone)
				require.True(t, w.entry(t, "x").Deleted || w.entry(t, "x").Zero())
				require.GreaterOrEqual(t, w.f.Counts().Sends, 4)
			})
		})
	}
}

// A deletion expects exactly one revision. Another claim's record stays, while a record that was renewed in the
// meantime is deleted.
func TestRemovalIsExact(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		l := w.hold(t, "x")
		e := w.entry(t, "x")
		<-w.Discard("lock.x", "another", e.Revision-1)
		require.True(t, w.entry(t, "x").Live())
		w.f.OnSend(kit.At("lock renew", faults.DelayAnswer(valid)))
		time.Sleep(ttl/3 + ms)
		require.NotEqual(t, e.Revision, w.entry(t, "x").Revision, "renewed, and not known")
		<-l.Leave(record.StatusGone)
		require.True(t, w.entry(t, "x").Deleted)
	})
}

// A deletion continues in the background after its caller has stopped waiting.
func TestDeletionGoesOn(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context, l *lease) (keeper.Deletion, time.Duration){
		"time": func(ctx context.Context, l *lease) (keeper.Deletion, time.Duration) {
			return l.DeleteWithin(ctx, 2*time.Second), 2 * time.Second
		},
		"context": func(ctx context.Context, l *lease) (keeper.Deletion, time.Duration) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return l.DeleteWithin(ctx, 2*time.Second), time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, nil, func(t *testing.T, w *world) {
				l := w.hold(t, "x")
				w.f.OnSend(kit.At("lock delete", faults.Drop))
				require.True(t, w.Work.Begin())
				w.Lock()
				l.EndBy(core.EndReleased)
				w.Unlock()
				d, took := wait(t.Context(), l)
				require.ErrorIs(t, d.Err, bucket.ErrUnavailable)
				require.Equal(t, took, time.Since(w.begun))
				w.f.OnSend(nil)
				time.Sleep(5 * time.Second)
				require.False(t, w.entry(t, "x").Live())
			})
		})
	}
}

// The keeper waits for a reply that nobody wants any more until five minutes have passed or the client closes, and
// drops it only once.
func TestOrphansAreAwaited(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		dropped := map[string]time.Duration{}
		await := func(name string) *keeper.Orphan {
			o := &keeper.Orphan{}
			w.Await(o, func() { w.note(func() { dropped[name] = time.Since(w.begun) }) })
			return o
		}
		await("in time")
		settled := await("settled")
		w.Settle(settled)
		w.Await(settled, func() { dropped["settled"] = 1 })
		time.Sleep(6 * time.Minute)
		await("closed")
		over, cancel := context.WithCancel(t.Context())
		cancel()
		w.Close(over)
		w.Finish(over)
		require.Equal(t, map[string]time.Duration{"in time": 5 * time.Minute, "closed": 6 * time.Minute}, dropped)
	})
}

// A write that is queued because the server replies slowly is withdrawn when its caller stops waiting.
func TestWithdrawn(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, w *world) {
		w.f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.DelayAnswer(time.Minute) })
		const n = 3000
		for i := range n {
			w.Post(kvstore.Write{Key: fmt.Sprint("lock.", i), Expect: 0, Delete: true})
		}
		synctest.Wait()
		sent := w.f.Counts().Sends
		require.Less(t, sent, n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := w.Remove(ctx, "lock.last", &core.Removal{ID: "id", Exact: true})
		require.Error(t, err)
		require.Less(t, time.Since(w.begun), 10*time.Second)
	})
}
