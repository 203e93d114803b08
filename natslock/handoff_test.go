package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

const handTTL = 6 * time.Second

// lastRenewal and adopts report the purpose of a write.
func lastRenewal(w kvstore.Write) bool {
	body, err := record.Decode(w.Value)
	return err == nil && !w.Delete && body.Status == record.StatusHeld && body.Renewal > 0 && body.Fixed
}

func adopts(w kvstore.Write) bool {
	body, err := record.Decode(w.Value)
	return err == nil && !w.Delete && body.Status == record.StatusHeld && body.Attempt > 0 && body.Token != 0
}

// TestHandoff checks that a lock moves to another client together with its token, that waiters keep
// waiting, including goroutines of the owner's client, and that nobody can adopt the lock twice.
func TestHandoff(t *testing.T) {
	for name, held := range map[string]func(c *natslock.Client) kit.Taking{"lock": kit.Mutex, "try": kit.TryMutex, "writer": kit.Writer} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				owner, stranger, adopter := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
				l, err := held(owner.Client)(t.Context(), "l", natslock.TTL(handTTL), natslock.Meta(map[string]string{"k": "v"}))
				require.NoError(t, err)
				var waiters []chan *natslock.Lock
				for _, c := range []*kit.Member{owner, owner, stranger} {
					ch := make(chan *natslock.Lock, 1)
					mark := c.Events.Len()
					go func() {
						wait := kit.Mutex
						if name == "writer" {
							wait = kit.Writer
						}
						l, _ := wait(c.Client)(context.WithoutCancel(t.Context()), "l")
						ch <- l
					}()
					c.Events.WaitFrom(t, mark, admin.EventQueued, "l")
					waiters = append(waiters, ch)
				}
				h := kit.HandOff(t, l)
				require.Equal(t, l.Token(), h.Token)
				require.Equal(t, handTTL, h.TTL)
				require.ErrorIs(t, l.Err(), natslock.ErrReleased)
				require.ErrorIs(t, l.Err(), natslock.ErrHandedOff)
				require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrHandedOff)
				require.NoError(t, l.Unlock(t.Context()))
				_, err = l.Handoff(t.Context())
				require.ErrorIs(t, err, natslock.ErrHandedOff)
				kind := admin.KindMutex
				if name == "writer" {
					kind = admin.KindRW
				}
				info, err := admin.New(stranger.Client).Inspect(t.Context(), kind, "l")
				require.NoError(t, err)
				require.True(t, info.Holder.Fixed)
				require.Equal(t, h.ID, info.Holder.ID)

				time.Sleep(handTTL - time.Second)
				next, err := adopter.Adopt(t.Context(), h)
				require.NoError(t, err)
				require.Equal(t, h.Token, next.Token())
				require.NotEqual(t, h.ID, next.ID())
				for _, c := range []*kit.Member{owner, stranger, adopter} { // the handle is delivered again
					_, err = c.Adopt(t.Context(), h)
					require.Equal(t, "Locked NotHandedOver", matched(err), err)
				}
				time.Sleep(10 * handTTL)
				kit.WantHeld(t, next)
				for _, ch := range waiters {
					require.Empty(t, ch)
				}
				require.NoError(t, next.Extend(t.Context(), 0))
				kit.Unlock(t, next)
				_, err = adopter.Adopt(t.Context(), h)
				require.ErrorIs(t, err, natslock.ErrNotHandedOver)
				token := h.Token
				for range waiters {
					var l *natslock.Lock
					select {
					case l = <-waiters[0]:
					case l = <-waiters[1]:
					case l = <-waiters[2]:
					}
					require.Greater(t, l.Token(), token)
					token = l.Token()
					kit.Unlock(t, l)
				}
			})
		})
	}
}

// handFates are the faults that hit one write of either side. The caller succeeds nevertheless.
var handFates = map[string]faults.Fate{
	"lost": faults.LoseAnswer, "dropped": faults.Drop, "late": faults.Delay(1500 * time.Millisecond),
	"late answer": faults.DelayAnswer(1500 * time.Millisecond), "in flight": faults.Refuse(kvstore.ErrInFlight),
}

func TestHandoffAnswers(t *testing.T) {
	for side, of := range map[string]func(kvstore.Write) bool{"handoff": lastRenewal, "adopt": adopts} {
		for name, fate := range handFates {
			t.Run(side+"/"+name, func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					owner, f := kit.JoinFaulty(t, s)
					adopter, g := kit.JoinFaulty(t, s)
					l := kit.Must(t, owner.Lock, "l", natslock.TTL(handTTL))
					var n atomic.Int32
					var early atomic.Bool // the handover was sent before the context had ended
					for _, f := range []*faults.Store{f, g} {
						f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
							if lastRenewal(w) && l.Context().Err() == nil {
								early.Store(true)
							}
							if of(w) {
								return first(int(n.Add(1)), fate)
							}
							return faults.Pass
						})
					}
					h := kit.HandOff(t, l)
					require.False(t, early.Load())
					next, err := adopter.Adopt(t.Context(), h)
					require.NoError(t, err)
					require.Equal(t, h.Token, next.Token())
					require.Contains(t, []int32{1, 2}, n.Load(), "it is not written over itself")
					time.Sleep(time.Minute)
					kit.WantHeld(t, next)
					kit.Unlock(t, next)
				})
			})
		}
	}
}

// TestHandoffAgainstRenewal checks that a renewal in flight during Handoff neither takes the lock
// back nor prevents the handover.
func TestHandoffAgainstRenewal(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"before": faults.LoseAnswer, "after": faults.Delay(200 * time.Millisecond), "never": faults.Drop,
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				owner, f := kit.JoinFaulty(t, s)
				l := kit.Must(t, owner.Lock, "l", natslock.TTL(handTTL))
				sent := make(chan struct{})
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if body, err := record.Decode(w.Value); err == nil && body.Renewal == 1 && !body.Fixed {
						close(sent)
						return fate
					}
					return faults.Pass
				})
				kit.Receive(t, sent, "a renewal")
				h := kit.HandOff(t, l)
				time.Sleep(time.Second)
				next, err := kit.Join(t, s).Adopt(t.Context(), h)
				require.NoError(t, err)
				kit.Unlock(t, next)
			})
		})
	}
}

// TestHandoffRace checks that only one of many concurrent adopters succeeds, and is never inside
// together with the owner.
func TestHandoffRace(t *testing.T) {
	s := testutil.RunServer(t)
	members := kit.Crowd(t, s, 6)
	var inside, most atomic.Int32
	work := func(l *natslock.Lock) {
		most.Store(max(most.Load(), inside.Add(1)))
		time.Sleep(time.Millisecond)
		inside.Add(-1)
		require.NoError(t, l.Err())
	}
	l := kit.Must(t, members[0].Lock, "l")
	token := l.Token()
	for range 30 {
		work(l)
		h := kit.HandOff(t, l)
		var all sync.WaitGroup
		var adopted atomic.Pointer[natslock.Lock]
		for _, m := range members {
			all.Go(func() {
				next, err := m.Adopt(t.Context(), h)
				if err == nil {
					require.True(t, adopted.CompareAndSwap(nil, next))
				} else {
					require.Equal(t, "Locked NotHandedOver", matched(err))
				}
			})
		}
		all.Wait()
		l = adopted.Load()
		require.NotNil(t, l)
		require.Equal(t, token, l.Token())
	}
	require.EqualValues(t, 1, most.Load())
	kit.Unlock(t, l)
}

// TestAdoptRefused checks that only the record that was handed over can be adopted.
func TestAdoptRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		want  string
		after func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle
	}{
		"kept": {"Locked NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			return natslock.Handle{Name: "l", ID: l.ID(), Token: l.Token(), TTL: handTTL}
		}},
		"taken": {"Locked NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			kit.Must(t, owner.Lock, "l")
			return h
		}},
		"broken": {"Broken Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			require.NoError(t, admin.New(owner.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: h.ID, Reason: "test"}))
			return h
		}},
		"broken holder": {"Broken Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			require.NoError(t, admin.New(owner.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: l.ID(), Reason: "test"}))
			return natslock.Handle{Name: "l", ID: l.ID(), Token: l.Token(), TTL: handTTL}
		}},
		"expired": {"Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			time.Sleep(handTTL + 300*time.Millisecond)
			return h
		}},
		"in its margin": {"Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			time.Sleep(handTTL - 500*time.Millisecond)
			return h
		}},
		"overdue": {"Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			kit.RestartWithoutTTLs(t, s)
			time.Sleep(handTTL + time.Second)
			return h
		}},
		"released": {"Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			next, err := owner.Adopt(t.Context(), h)
			require.NoError(t, err)
			kit.Unlock(t, next)
			return h
		}},
		"deleted": {"Lost NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			kit.NewRaw(t, s.Connect()).Remove("lock.l")
			return h
		}},
		"another token": {"Locked NotHandedOver", func(t *testing.T, s *testutil.Server, owner *kit.Member, l *natslock.Lock) natslock.Handle {
			h := kit.HandOff(t, l)
			h.Token++
			return h
		}},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				owner := kit.Join(t, s)
				l := kit.Must(t, owner.Lock, "l", natslock.TTL(handTTL))
				h := tc.after(t, s, owner, l)
				adopter := kit.Join(t, s)
				p := kit.NewTap(t, s.Connect(), ">")
				_, err := adopter.Adopt(t.Context(), h)
				require.Equal(t, tc.want, matched(err), err)
				require.ErrorContains(t, err, `adopt lock "l"`)
				require.Empty(t, p.Take(t, adopter.NC), "nothing was written")
			})
		})
	}
}

// TestAdoptTwoAtOnce lets two adopters read the same record. The first one's write arrives later
// and is refused, so its record never takes effect.
func TestAdoptTwoAtOnce(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"late": faults.Delay(500 * time.Millisecond), "no answer": faults.Delay(1500 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				one, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				h := kit.HandOff(t, kit.Must(t, kit.Join(t, s).Lock, "l", natslock.TTL(handTTL)))
				sent := make(chan struct{})
				n := 0
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if !adopts(w) {
						return faults.Pass
					}
					if n++; n == 1 {
						close(sent)
					}
					return first(n, fate)
				})
				refused := make(chan error, 1)
				go func() {
					_, err := one.Adopt(t.Context(), h)
					refused <- err
				}()
				kit.Receive(t, sent, "the first adoption")
				next, err := other.Adopt(t.Context(), h, natslock.TTL(time.Hour), natslock.NoRenew())
				require.NoError(t, err)
				err = kit.Receive(t, refused, "its refusal")
				require.Equal(t, "Locked NotHandedOver", matched(err), err)
				time.Sleep(time.Minute)
				kit.WantHeld(t, next)
				kit.Unlock(t, next)
			})
		})
	}
}

// TestHandoffLateAnswers checks that replies to the giver's renewals that arrive after the adoption
// change nothing, and that the giver writes nothing more.
func TestHandoffLateAnswers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		giver, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, giver.Lock, "l", natslock.TTL(handTTL))
		sent := make(chan struct{})
		n := 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if n++; n == 1 {
				close(sent)
			}
			if n <= 2 { // a renewal and the final one
				return faults.DelayAnswer(3 * time.Second)
			}
			return faults.Pass
		})
		kit.Receive(t, sent, "a renewal")
		h := kit.HandOff(t, l)
		next, err := kit.Join(t, s).Adopt(t.Context(), h)
		require.NoError(t, err)
		p := kit.NewTap(t, s.Connect(), "$KV.>")
		time.Sleep(4 * time.Second)
		for _, m := range p.Take(t, giver.NC) {
			body, err := record.Decode(m.Data)
			require.NoError(t, err)
			require.Equal(t, next.ID(), body.ID, "the giver writes nothing")
		}
		kit.WantHeld(t, next)
		kit.Unlock(t, next)
	})
}

// TestHandoffTooLate checks that a last renewal that is confirmed after the validity has ended
// hands nothing over, because a reader behind an overdue gate may be inside by then.
func TestHandoffTooLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		giver, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, giver.Lock, "l", natslock.TTL(2*time.Second), natslock.NoRenew())
		granted := time.Now()
		n := 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch n++; n {
			case 1:
				return faults.Delay(1900 * time.Millisecond)
			case 2:
				return faults.Drop
			}
			return faults.Pass // it is refused, and a read shows the first one
		})
		h, err := l.Handoff(t.Context())
		require.Equal(t, "Unavailable", matched(err), err)
		require.Zero(t, h)
		require.True(t, kit.Inspect(t, kit.Join(t, s).Client, "l").Holder.Fixed, "its record ends by the TTL")
		w := kit.Join(t, s).Begin(t, "l")
		kit.Unlock(t, w.Granted(t))
		require.GreaterOrEqual(t, w.At.Sub(granted), 3900*time.Millisecond)
	})
}

// TestAdoptTooLate checks that an adoption does not take effect if it is stored after the record
// that it replaces has ended. Behind a gate, a reader may have joined next to that record without
// changing it.
func TestAdoptTooLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l, err := rwlock.New(kit.Join(t, s).Client).Lock(t.Context(), "l", natslock.TTL(2*time.Second))
		require.NoError(t, err)
		h := kit.HandOff(t, l)
		kit.RestartWithoutTTLs(t, s)
		adopter, f := kit.JoinFaulty(t, s)
		handed, n := time.Now(), 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch {
			case !adopts(w) || time.Since(handed) > 3*time.Second:
				return faults.Pass
			case n > 0:
				return faults.Drop
			}
			n++
			return faults.Delay(3500 * time.Millisecond)
		})
		refused := make(chan error, 1)
		go func() {
			_, err := adopter.Adopt(t.Context(), h, natslock.TTL(time.Hour))
			refused <- err
		}()
		read, err := rwlock.New(kit.Join(t, s).Client).RLock(t.Context(), "l")
		require.NoError(t, err)
		err = kit.Receive(t, refused, "the refusal")
		require.Equal(t, "Lost NotHandedOver", matched(err), err)
		kit.WantHeld(t, read)
		kit.Unlock(t, read)
	})
}

// TestAdoptNeverClaims checks that an adopter claims nothing if the record is gone when its write
// arrives, not even a lock that is free.
func TestAdoptNeverClaims(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		adopter, f := kit.JoinFaulty(t, s)
		for _, dropped := range []int{0, 1} { // the tombstone is still there, or has expired
			h := kit.HandOff(t, kit.Must(t, kit.Join(t, s).Lock, "l", natslock.TTL(handTTL)))
			n := 0
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				switch {
				case !adopts(w):
					return faults.Pass
				case n < dropped:
					n++
					return faults.Drop
				}
				return faults.Delay(900 * time.Millisecond)
			})
			time.AfterFunc(500*time.Millisecond, func() { kit.NewRaw(t, s.Connect()).Put("lock.l", nil, time.Second, "KV-Operation", "DEL") })
			_, err := adopter.Adopt(t.Context(), h)
			require.Equal(t, "Lost NotHandedOver", matched(err), err)
			require.Empty(t, kit.NewRaw(t, s.Connect()).Live("lock.>"))
		}
	})
}

// TestAdoptGivenUp checks that an adopter that gets no reply leaves the lock to the next one, and
// deletes its own record if the write is stored later after all.
func TestAdoptGivenUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := kit.HandOff(t, kit.Must(t, kit.Join(t, s).Lock, "l"))
		adopter, f := kit.JoinFaulty(t, s)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if adopts(w) {
				return faults.Drop
			}
			return faults.Pass
		})
		_, err := adopter.Adopt(t.Context(), h)
		require.Equal(t, "Unavailable", matched(err), err)
		time.Sleep(time.Second) // until the adopter's background work is done
		next, err := kit.Join(t, s).Adopt(t.Context(), h)
		require.NoError(t, err, "the first one has not taken it away")
		kit.Unlock(t, next)

		h = kit.HandOff(t, kit.Must(t, kit.Join(t, s).Lock, "m"))
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if adopts(w) {
				return faults.Delay(7 * time.Second)
			}
			return faults.Pass
		})
		begun := time.Now()
		_, err = adopter.Adopt(t.Context(), h)
		require.Equal(t, "Unavailable", matched(err), err)
		kit.Unlock(t, kit.Must(t, kit.Join(t, s).Lock, "m"))
		require.Less(t, time.Since(begun), 9*time.Second)
	})
}

// TestHandoffUnconfirmed checks that an unconfirmed Handoff returns no handle and leaves the record
// to its TTL, whether or not the server has stored the last renewal.
func TestHandoffUnconfirmed(t *testing.T) {
	for name, c := range map[string]struct {
		ends bool
		fate faults.Fate
	}{
		"release timeout": {false, faults.Drop}, "context": {true, faults.Drop}, "stored": {false, faults.LoseAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			ends := c.ends
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				owner, f := kit.JoinFaulty(t, s)
				l := kit.Must(t, owner.Lock, "l", natslock.TTL(10*time.Second))
				granted := time.Now()
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate { return c.fate })
				ctx, want := t.Context(), "Unavailable"
				if ends {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
					defer cancel()
					want = "Unavailable deadline"
				}
				h, err := l.Handoff(ctx)
				require.Equal(t, want, matched(err), err)
				require.Zero(t, h)
				require.ErrorIs(t, l.Err(), natslock.ErrHandedOff)
				require.Equal(t, want, matched(l.Unlock(t.Context())))
				f.OnSend(nil)
				other := kit.Join(t, s)
				require.Equal(t, name == "stored", kit.Inspect(t, other.Client, "l").Holder.Fixed)
				w := other.Begin(t, "l")
				kit.Unlock(t, w.Granted(t))
				require.GreaterOrEqual(t, w.At.Sub(granted), 10*time.Second)
			})
		})
	}
}

// TestHandoffGone checks that Handoff fails if the record is gone before the confirmation arrives,
// although the server may have stored it. Handoff also fails for a lock that an operator has
// broken, whose record stays until its TTL has passed.
func TestHandoffGone(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		owner, f := kit.JoinFaulty(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		for _, broken := range []bool{false, true} {
			l := kit.Must(t, owner.Lock, "l")
			n := 0
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if lastRenewal(w) && !broken {
					n++
					return first(n, faults.LoseAnswer)
				}
				return faults.Pass
			})
			want := "Lost"
			if broken {
				want = "Broken Lost"
				require.NoError(t, admin.New(kit.Join(t, s).Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: l.ID(), Reason: "test"}))
			} else {
				time.AfterFunc(500*time.Millisecond, func() { kit.NewRaw(t, s.Connect()).Remove("lock.l") })
			}
			_, err := l.Handoff(t.Context())
			require.Equal(t, want, matched(err), err)
			require.Equal(t, want, matched(l.Unlock(t.Context())))
			kit.Unlock(t, kit.Must(t, kit.Join(t, s).Lock, "l"))
		}
	})
}

// TestHandoffOfTheDead crashes the owner after Handoff. The lock waits for an adopter for one TTL.
func TestHandoffOfTheDead(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, adopted := range []bool{true, false} {
			owner, other := kit.Join(t, s), kit.Join(t, s)
			h := kit.HandOff(t, kit.Must(t, owner.Lock, "l", natslock.TTL(handTTL)))
			handed := time.Now()
			owner.Link.Blackhole(true)
			w := other.Begin(t, "l")
			if adopted {
				time.Sleep(handTTL / 2)
				adopter := kit.Join(t, s)
				l, err := adopter.Adopt(t.Context(), h)
				require.NoError(t, err)
				handed = time.Now()
				adopter.Link.Blackhole(true) // the adopter dies as well
				require.NotZero(t, l.Token())
			}
			kit.Unlock(t, w.Granted(t))
			require.GreaterOrEqual(t, w.At.Sub(handed), handTTL)
		}
	})
}

func TestHandoffRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		read, err := rwlock.New(c.Client).RLock(t.Context(), "r")
		require.NoError(t, err)
		plain := kit.Must(t, c.Lock, "plain")
		for name, tc := range map[string]struct {
			l    *natslock.Lock
			ctx  context.Context
			want string
		}{
			"until":    {kit.Must(t, c.Lock, "until", natslock.Until(time.Now().Add(time.Hour))), t.Context(), "Invalid"},
			"min hold": {kit.Must(t, c.Lock, "min", natslock.MinHold(time.Second)), t.Context(), "Invalid"},
			"read":     {read, t.Context(), "Invalid"},
			"ended":    {plain, ended, "canceled"},
			"zero":     {new(natslock.Lock), t.Context(), "Invalid"},
		} {
			_, err := tc.l.Handoff(tc.ctx)
			require.Equal(t, tc.want, matched(err), name)
			if name != "zero" {
				kit.WantHeld(t, tc.l)
				kit.Unlock(t, tc.l)
				_, err = tc.l.Handoff(t.Context())
				require.ErrorIs(t, err, natslock.ErrReleased)
			}
		}
		h := kit.HandOff(t, kit.Must(t, c.Lock, "l"))
		for name, opt := range map[string]natslock.LockOption{
			"until": natslock.Until(time.Now().Add(time.Hour)), "linger": natslock.Linger(1), "min hold": natslock.MinHold(1), "nil": nil,
		} {
			_, err = c.Adopt(t.Context(), h, opt)
			require.Equal(t, "Invalid", matched(err), name)
		}
		_, err = c.Adopt(t.Context(), natslock.Handle{})
		require.Equal(t, "Invalid", matched(err))
		_, err = c.Adopt(t.Context(), h, natslock.TTL((12*time.Hour)*3))
		require.Equal(t, "Invalid", matched(err))
		_, err = c.Adopt(ended, h)
		require.Equal(t, "Timeout canceled", matched(err))
		l, err := c.Adopt(t.Context(), h, natslock.TTL(time.Hour), natslock.NoRenew(), natslock.Meta(map[string]string{"by": "me"}))
		require.NoError(t, err)
		require.Greater(t, l.Remaining(), 50*time.Minute)
		require.Equal(t, "me", kit.Inspect(t, c.Client, "l").Holder.Meta["by"])
		kit.Unlock(t, l)
	})
}

// TestAdoptBeyondADay checks that a lock with a longer lease than any renewed one can have is
// adopted unchanged, with the TTL from the handle.
func TestAdoptBeyondADay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		h := kit.HandOff(t, kit.Must(t, c.Lock, "l", natslock.NoRenew(), natslock.TTL(48*time.Hour)))
		require.Equal(t, 48*time.Hour, h.TTL)
		l, err := kit.Join(t, s).Adopt(t.Context(), h)
		require.NoError(t, err)
		time.Sleep(47 * time.Hour)
		require.Less(t, l.Remaining(), time.Hour, "it is not renewed")
		kit.WantHeld(t, l)
		require.NoError(t, l.Extend(t.Context(), 48*time.Hour))
		kit.Unlock(t, l)
	})
}

// TestAdoptBehindAMirror covers a client of a mirror, which a single server does not know about. A
// mirror that lags replies that there is no record.
func TestAdoptBehindAMirror(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		other := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &kit.Lagging{KV: kv, Answers: 1} }))
		h := kit.HandOff(t, kit.Must(t, c.Lock, "l"))
		l, err := other.Adopt(t.Context(), h)
		require.NoError(t, err)
		require.Equal(t, h.Token, l.Token())
		kit.Unlock(t, l)
	})
}

// TestHandleText checks that a handle's text decodes to the same handle whatever the name, and that
// any other text is refused.
func TestHandleText(t *testing.T) {
	var h natslock.Handle
	require.NoError(t, h.UnmarshalText([]byte("natslock-handle-1:rw:a:X:1:60")))
	h.Name, h.Token = "a:b \n.ü", 1<<52
	text, err := h.MarshalText()
	require.NoError(t, err)
	require.Regexp(t, `^[!-~]+$`, string(text))
	var read natslock.Handle
	require.NoError(t, read.UnmarshalText(text))
	require.Equal(t, h, read)
	for _, bad := range []string{"", "x", string(text) + ":", string(text[1:]), "natslock-handle-1:mutex:a:X:1:0", "natslock-handle-1:mutex:a:X:0:1",
		"natslock-handle-1:mutex:a::1:1", "natslock-handle-1:mutex::X:1:1", "natslock-handle-1:sem:a:X:1:1", "natslock-handle-1:mutex:a b:X:1:1",
		"natslock-handle-2:mutex:a:X:1:1", "natslock-handle-1:mutex:a:X:-1:1", fmt.Sprintf("natslock-handle-1:mutex:a:X:1:%d", int64(1)<<40)} {
		require.ErrorIs(t, read.UnmarshalText([]byte(bad)), natslock.ErrInvalid, bad)
		require.Equal(t, h, read)
	}
	_, err = natslock.Handle{}.MarshalText()
	require.True(t, errors.Is(err, natslock.ErrInvalid))
}

// TestHandoffWatched checks that the watch reports an adoption as a release followed by a grant,
// and the end of a lock that nobody adopted as a release.
func TestHandoffWatched(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		w := kit.Follow(t, kit.Join(t, s), "l")
		for _, adopted := range []bool{true, false} {
			h := kit.HandOff(t, kit.Must(t, c.Lock, "l"))
			w.Next(admin.EventGranted)
			if adopted {
				l, err := c.Adopt(t.Context(), h)
				require.NoError(t, err)
				require.Equal(t, h.ID, w.Next(admin.EventReleased).ID)
				require.Equal(t, h.Token, w.Next(admin.EventGranted).Token)
				kit.Unlock(t, l)
			}
			w.Next(admin.EventReleased)
			time.Sleep(time.Minute)
			w.Nothing()
		}
	})
}
