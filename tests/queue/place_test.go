package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestGivingUpMakesNobodyFirst checks that a waiter that gives up tells its successor only that it
// has left. The successor is not first, because other waiters are still ahead of it.
func TestGivingUpMakesNobodyFirst(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Crowd(t, s, 3)
		holder := kit.QuietHolder(t, s)
		first, gone, last := c[0].Await(t, "l"), c[1].Await(t, "l"), c[2].Await(t, "l")
		time.Sleep(time.Second)
		tapped := kit.NewTap(t, s.Connect(), "lock.l")
		gone.Cancel(nil)
		gone.Failed(t)
		time.Sleep(10 * time.Second)
		require.Empty(t, tapped.Take(t, c[0].NC, c[2].NC), "somebody has tried to take the lock")
		kit.Unlock(t, holder)
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, last.Granted(t))
	})
}

// TestOutOfTurnMakesNobodyFirst checks the same for a waiter that is granted the lock out of turn.
func TestOutOfTurnMakesNobodyFirst(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		paused := kit.Join(t, s)
		jumper, f := kit.JoinFaulty(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		last, blind := kit.JoinFaulty(t, s)
		holder := kit.Must(t, jumper.Lock, "l")
		paused.Await(t, "l")
		places := kit.NewRaw(t, s.Connect()).Live("wait.l.*")
		require.Len(t, places, 1)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Key == places[0] && w.Expect != kvstore.NoRevision { // keeps the jumper from deleting the place that it passes
				return faults.Drop
			}
			return faults.Pass
		})
		w := jumper.Await(t, "l", natslock.NoRenew(), natslock.TTL(time.Hour))
		behind := last.Await(t, "l")
		blind.FailReads(func(op faults.ReadOp, what string) error {
			if op == faults.ReadGet && what == "lock.l" || op == faults.ReadList && what != "wait.l.*" {
				return kvstore.ErrUnavailable // the last waiter never sees the lock free
			}
			return nil
		})
		time.Sleep(3 * time.Second)
		paused.Link.Blackhole(true)
		kit.Unlock(t, holder)
		l := w.Granted(t)
		synctest.Wait()
		tapped := kit.NewTap(t, s.Connect(), "lock.l")
		time.Sleep(2 * time.Second) // the paused waiter's place still exists
		require.Len(t, kit.Inspect(t, jumper.Client, "l").Queue, 2)
		require.Empty(t, tapped.Take(t, last.NC), "somebody has tried to take the lock")
		require.Positive(t, blind.Counts().ReadsFailed)
		blind.FailReads(nil)
		kit.Unlock(t, l)
		behind.Granted(t)
	})
}

// TestPlaceDeleted checks that a waiter that does not find its own place in the queue does not
// consider itself first.
func TestPlaceDeleted(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Crowd(t, s, 3)
		r := kit.NewRaw(t, s.Connect())
		holder := kit.QuietHolder(t, s)
		first, gone := c[0].Await(t, "l"), c[1].Await(t, "l")
		before := r.Live("wait.l.*")
		last := c[2].Await(t, "l")
		time.Sleep(time.Second)
		tapped := kit.NewTap(t, s.Connect(), "lock.l")
		for _, key := range r.Live("wait.l.*") {
			if !strings.Contains(strings.Join(before, " "), key) {
				r.Remove(key)
			}
		}
		require.Len(t, r.Live("wait.l.*"), 2)
		gone.Cancel(nil) // makes the last waiter read the queue
		gone.Failed(t)
		synctest.Wait()
		require.Len(t, r.Live("wait.l.*"), 2, "it queues again")
		require.Empty(t, tapped.Take(t, c[0].NC, c[2].NC), "somebody has tried to take the lock")
		kit.Unlock(t, holder)
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, last.Granted(t))
	})
}

// TestPlaceIsShort checks that the TTL of a place is between 5 and 15 s, whatever the TTL of the
// lock.
func TestPlaceIsShort(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		kit.QuietHolder(t, s)
		for ttl, want := range map[time.Duration]string{time.Hour: "15s", 5 * time.Second: "5s", time.Second: "5s"} {
			w := c.Await(t, "l", natslock.TTL(ttl))
			for range 2 { // the first write, then the renewals
				keys := r.Live("wait.l.*")
				require.Len(t, keys, 1)
				require.Equal(t, want, r.Get(keys[0]).Header.Get("Nats-TTL"))
				time.Sleep(20 * time.Second)
			}
			w.Cancel(nil)
			w.Failed(t)
			synctest.Wait()
		}
	})
}

// TestPlaceOutlastsPause checks that a waiter with a short TTL keeps its place when its machine or
// network pauses for longer than that TTL.
func TestPlaceOutlastsPause(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithTTL(time.Second)), kit.Join(t, s)
		holder := kit.QuietHolder(t, s)
		first := c.Await(t, "l")
		second := other.Await(t, "l")
		for range 3 {
			time.Sleep(4 * time.Second)
			c.Link.Blackhole(true)
			time.Sleep(2 * time.Second)
			c.Link.Blackhole(false)
		}
		synctest.Wait()
		kit.Unlock(t, holder)
		l := first.Granted(t)
		require.False(t, second.Over(), "it was overtaken")
		kit.Unlock(t, l)
		kit.Unlock(t, second.Granted(t))
	})
}

// TestPlaceWhoseRenewalIsUnnotified checks that a waiter keeps its place, and so gets the lock
// ahead of those behind it, if the acknowledgment of a renewal is lost. The next renewal is
// refused and discovers the one that was applied.
func TestPlaceWhoseRenewalIsUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		places, renewals := 0, 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch kit.Stage(w) {
			case "wait take":
				places++
			case "wait renew":
				if renewals++; renewals%2 == 1 {
					return faults.LoseAnswer
				}
			}
			return faults.Pass
		})
		holder := kit.QuietHolder(t, s)
		first := c.Await(t, "l")
		second := other.Await(t, "l")
		time.Sleep(time.Minute) // four times the TTL of a place
		synctest.Wait()
		require.Greater(t, f.Counts().AnswersLost, 3)
		require.Equal(t, 1, places, "it has queued again")
		kit.Unlock(t, holder)
		l := first.Granted(t)
		require.False(t, second.Over(), "it was overtaken")
		kit.Unlock(t, l)
		kit.Unlock(t, second.Granted(t))
	})
}

// TestPlaceLeftUnanswered checks that a client repeats the deletion of its place if it gets no
// reply. Otherwise the place would stay at the head of the queue for its whole TTL, and every
// hand-over would have to wait until somebody takes the idle lock out of turn.
func TestPlaceLeftUnanswered(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		r := kit.NewRaw(t, s.Connect())
		holder := kit.QuietHolder(t, s)
		w := c.Await(t, "l")
		var lost atomic.Int32
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "wait delete" && lost.CompareAndSwap(0, 1) {
				return faults.Drop
			}
			return faults.Pass
		})
		w.Cancel(nil)
		w.Failed(t)
		time.Sleep(1500 * time.Millisecond)
		require.EqualValues(t, 1, lost.Load())
		require.Empty(t, r.Live("wait.l.*"))
		kit.Unlock(t, holder)
	})
}

// TestStaleQueueList checks that a waiter keeps its ticket even if replicas lag, because it insists
// on a list that contains its own place.
func TestStaleQueueList(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var f *faults.Store
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			f = faults.New(&kit.Lagging{KV: kv, Answers: 10}, 1)
			return f
		}))
		places := 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "wait take" {
				places++
			}
			return faults.Pass
		})
		holder := kit.QuietHolder(t, s)
		w := c.Await(t, "l")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, places)
		kit.Unlock(t, holder)
		require.NoError(t, w.Granted(t).Unlock(context.Background()))
	})
}

// TestPlaceUsedAgain checks that a waiter that follows a place does not go on to follow a new place
// under the same key. The client that left the old place may reuse its key, but then queues behind
// the waiter.
func TestPlaceUsedAgain(t *testing.T) {
	for name, lost := range map[string]func(kvstore.Event) bool{
		"all is notified":                 func(kvstore.Event) bool { return false },
		"its tombstone is overtaken":      func(ev kvstore.Event) bool { return ev.Kind == kvstore.Deleted },
		"nothing of it is notified":       func(kvstore.Event) bool { return true },
		"its next record is not notified": func(ev kvstore.Event) bool { return ev.Kind == kvstore.Put },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				b := kit.Join(t, s)
				c, f := kit.JoinFaulty(t, s)
				r := kit.NewRaw(t, s.Connect())
				holder := kit.QuietHolder(t, s)
				first := b.Await(t, "l")
				place := r.Live("wait.l.*")
				second := c.Await(t, "l")
				f.DropEvents(func(ev kvstore.Event) bool { return ev.Record.Key == place[0] && lost(ev) })
				kit.Unlock(t, holder)
				l := first.Granted(t)
				synctest.Wait() // by now the second client knows that the first place was left
				begun := time.Now()
				kit.Unlock(t, l)
				third := b.Await(t, "l")
				l = second.Granted(t)
				require.Less(t, time.Since(begun), time.Second, "nobody takes it out of turn before")
				require.False(t, third.Over())
				synctest.Wait() // so that the second place has been left
				require.Equal(t, place, r.Live("wait.l.*"))
				kit.Unlock(t, l)
				kit.Unlock(t, third.Granted(t))
			})
		})
	}
}

// TestPlaceUsedAgainFaults checks that whatever happens to the write that reuses a place, its
// waiter either gets the lock in queue order or gives up and leaves nothing behind.
func TestPlaceUsedAgainFaults(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"lost on the way":              faults.Drop,
		"its answer is lost":           faults.LoseAnswer,
		"late":                         faults.Delay(500 * time.Millisecond),
		"after its tombstone has gone": faults.Delay(1500 * time.Millisecond),
		"its answer is late":           faults.DelayAnswer(1500 * time.Millisecond),
	} {
		for _, givesUp := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gives up %v", name, givesUp), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					b := kit.Join(t, s)
					c, f := kit.JoinFaulty(t, s)
					r := kit.NewRaw(t, s.Connect())
					holder := kit.QuietHolder(t, s)
					w := c.Await(t, "l")
					place := r.Live("wait.l.*")
					w.Cancel(nil)
					w.Failed(t)
					synctest.Wait()

					again := 0
					f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
						if w.Key != place[0] || w.Delete {
							return faults.Pass
						}
						if again++; again > 1 {
							return faults.Pass
						}
						return fate
					})
					if givesUp {
						w = c.Begin(t, "l")
						time.Sleep(100 * time.Millisecond)
						w.Cancel(nil)
						w.Failed(t)
						next := b.Await(t, "l")
						time.Sleep(3 * time.Second)
						require.Len(t, r.Live("wait.l.*"), 1, "the other's")
						kit.Unlock(t, holder)
						kit.Unlock(t, next.Granted(t))
					} else {
						w = c.Await(t, "l")
						next := b.Await(t, "l")
						kit.Unlock(t, holder)
						l := w.Granted(t)
						require.False(t, next.Over())
						kit.Unlock(t, l)
						kit.Unlock(t, next.Granted(t))
					}
					require.Positive(t, again, "the place was taken again")
					time.Sleep(3 * time.Second)
					require.Empty(t, r.Live("wait.l.*"))
					require.Empty(t, r.Live("lock.*"))
				})
			})
		}
	}
}

// forgetful is a store whose lists may show earlier contents of a key.
type forgetful struct{ kvstore.KV }

func (forgetful) Current() bool { return false }

// TestPlaceIsNewWhereListsLag checks that no place is reused if lists may show earlier contents of
// a key.
func TestPlaceIsNewWhereListsLag(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return forgetful{kv} }))
		r := kit.NewRaw(t, s.Connect())
		holder := kit.QuietHolder(t, s)
		places := map[string]bool{}
		for range 3 {
			w := c.Await(t, "l")
			for _, key := range r.Live("wait.l.*") {
				places[key] = true
			}
			w.Cancel(nil)
			w.Failed(t)
			synctest.Wait()
		}
		require.Len(t, places, 3)
		kit.Unlock(t, holder)
	})
}

// TestPlaceNotUsedAgain checks that the key of an abandoned place is reused only while its
// tombstone lives, and never after another client has written to it.
func TestPlaceNotUsedAgain(t *testing.T) {
	for name, after := range map[string]func(r *kit.Raw, key string){
		"when its tombstone has gone": func(*kit.Raw, string) { time.Sleep(1500 * time.Millisecond) },
		"when somebody else writes":   func(r *kit.Raw, key string) { r.Put(key, []byte("rubbish"), time.Minute) },
		"when somebody deletes it":    func(r *kit.Raw, key string) { r.Remove(key) },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				r := kit.NewRaw(t, s.Connect())
				holder := kit.QuietHolder(t, s)
				w := c.Await(t, "l")
				place := r.Live("wait.l.*")
				w.Cancel(nil)
				w.Failed(t)
				synctest.Wait()
				after(r, place[0])
				w = c.Await(t, "l")
				waiting := kit.Inspect(t, c.Client, "l").Queue
				require.Len(t, waiting, 1)
				keys := r.Live("wait.l.*")
				keys = slices.DeleteFunc(keys, func(k string) bool { return k == place[0] })
				require.Len(t, keys, 1, "a new one")
				kit.Unlock(t, holder)
				kit.Unlock(t, w.Granted(t))
			})
		})
	}
}
