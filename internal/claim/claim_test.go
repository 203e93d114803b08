package claim_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

const ttl = 10 * time.Second

// denying is a store whose server has denied a subject.
type denying struct {
	kvstore.KV
	err error
}

func (d *denying) Denied(string) error { return d.err }

// client bids for a lock in an in-memory bucket with injected faults.
type client struct {
	b      *bucket.Bucket
	k      *keeper.Keeper
	f      *faults.Store
	kv     *denying
	heard  []error // the results of its requests
	others *bucket.Bucket
}

func (c *client) RequestAnswered(err error) { c.heard = append(c.heard, err) }

// bounded returns a context for an offer that should end long before the context does.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// bid returns a bid by the client for the mutex x.
func (c *client) bid(change ...func(*claim.Bid)) *claim.Bid {
	b := &claim.Bid{B: c.b, K: c.k, Caller: c, Draft: claim.Draft{
		Name: "x", Keys: record.KeysOf(record.Mutex, "x"), Body: c.b.Body(record.StatusHeld, nil), TTL: ttl, Begun: c.b.Instant(),
	}}
	for _, ch := range change {
		ch(b)
	}
	return b
}

// entry returns the bucket's record under key.
func (c *client) entry(t *testing.T, key string) record.Entry {
	t.Helper()
	e, err := c.others.Read(t.Context(), key, 0)
	require.NoError(t, err)
	return e
}

// foreign has another client write a record under key and returns the record's revision.
func (c *client) foreign(t *testing.T, key string, expect uint64) uint64 {
	t.Helper()
	body := c.others.Body(record.StatusHeld, nil)
	body.ID, body.Attempt, body.TTL = "other", 1, int64(ttl/time.Second)
	value, err := body.Encode()
	require.NoError(t, err)
	revision, err := c.others.Write(t.Context(), kvstore.Write{Key: key, Value: value, TTL: ttl, Expect: expect})
	require.NoError(t, err)
	return revision
}

// inMemory runs fn with a client and closes the client when fn returns.
func inMemory(t *testing.T, fn func(t *testing.T, c *client)) {
	synctest.Test(t, func(t *testing.T) {
		m := kvstore.NewMemory(kvstore.DefaultBucket)
		c := &client{f: faults.New(m.Open(), 1), others: bucket.New(m.Open(), "", nil)}
		c.kv = &denying{KV: c.f}
		c.b = bucket.New(c.kv, "", nil)
		c.k = keeper.New(c.b, keeper.Config{Holding: func() {}, Doubted: func() {}, Warn: func(string, ...any) {}})
		defer func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			c.k.Close(over)
			c.k.Finish(over)
			c.b.KV.Close()
			c.others.KV.Close()
		}()
		fn(t, c)
	})
}

// A claim is a single conditional write that the server acknowledges in time. The grant's validity counts from when the
// write was sent.
func TestGranted(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		c.f.OnSend(kit.At("lock take", faults.DelayAnswer(40*time.Millisecond)))
		b, sent := c.bid(), c.b.Instant()
		r := b.Offer(bounded(t), 0)
		require.Equal(t, core.Granted, r.Outcome)
		g := b.Grant(r)
		e := c.entry(t, "lock.x")
		require.Equal(t, e.Revision, g.Revision)
		require.Equal(t, e.ID, g.Body.ID)
		require.Equal(t, sent, g.Sent)
		require.Equal(t, clock.NewTerms(ttl), g.Terms)
		require.Equal(t, 1, c.f.Counts().Sends)
	})
}

// A refused claim reports the record that stood in its way. A blind claim skips the read and reports only that record's
// revision.
func TestRefused(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		revision := c.foreign(t, "lock.x", 0)
		b := c.bid()
		r := b.Offer(bounded(t), 0)
		require.Equal(t, core.Busy, r.Outcome)
		require.Equal(t, "other", r.Entry.ID)
		require.False(t, b.Mine(r.Entry))
		require.Equal(t, []error{nil}, c.heard, "an answer")
		b.Blind = true
		c.f.FailReads(func(faults.ReadOp, string) error { panic("a read") })
		r = b.Offer(bounded(t), 0)
		require.Equal(t, core.Refused, r.Outcome)
		require.Equal(t, revision, r.Entry.Revision)
		require.Equal(t, revision, c.entry(t, "lock.x").Revision)
	})
}

// A claim that finds a tombstone reports Free, and the caller expects the tombstone's revision next.
func TestFree(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		revision := c.foreign(t, "lock.x", 0)
		require.NoError(t, c.others.Delete(t.Context(), "lock.x", revision, "other"))
		b := c.bid(func(b *claim.Bid) { b.Until = c.b.Instant().Add(-1); b.Draft.Queued = true })
		r := b.Offer(bounded(t), 0)
		require.Equal(t, core.Free, r.Outcome)
		require.Equal(t, core.Granted, b.Offer(bounded(t), r.Entry.Revision).Outcome)
	})
}

// Any reply may be lost, so a claim repeats its attempt under the same ID. If an attempt's record turns up in the
// bucket, the claim is granted as of when that attempt was sent.
func TestFoundInTheBucket(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		c.f.OnSend(kit.Between("lock take", 1, 1, faults.LoseAnswer))
		b, sent := c.bid(), c.b.Instant()
		r := b.Offer(bounded(t), 0)
		require.Equal(t, core.Granted, r.Outcome)
		g := b.Grant(r)
		e := c.entry(t, "lock.x")
		require.Equal(t, e.Revision, g.Revision)
		require.EqualValues(t, 1, e.Attempt)
		require.Equal(t, sent, g.Sent, "of the attempt that was stored")
		require.Greater(t, c.b.Instant().Sub(sent), bucket.AnswerTimeout)
	})
}

// When an attempt never reached the server, the same claim sends another one.
func TestSentAgain(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"lost":     faults.Drop,
		"not sent": faults.NotSent(fmt.Errorf("%w: test", kvstore.ErrUnavailable)),
		"refused":  faults.Refuse(kvstore.ErrInFlight),
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *client) {
				c.f.OnSend(kit.Between("lock take", 1, 2, fate))
				b := c.bid()
				r := b.Offer(bounded(t), 0)
				require.Equal(t, core.Granted, r.Outcome)
				require.Equal(t, b.Own(), c.entry(t, "lock.x").ID)
				require.Error(t, c.heard[0])
				require.Equal(t, 3, c.f.Counts().Sends)
			})
		})
	}
}

// An acknowledgment that arrives after the attempt's own validity has ended grants nothing: the record is deleted and
// a new claim begins.
func TestAcknowledgedLate(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		b := c.bid(func(b *claim.Bid) { b.Draft.TTL = time.Second }) // it is valid for 900 ms
		var first string
		c.f.OnSend(func(n int, _ kvstore.Write) faults.Fate {
			if n > 1 {
				return faults.Pass
			}
			first = b.Own()
			return faults.DelayAnswer(950 * time.Millisecond)
		})
		b.Offer(bounded(t), 0) // the new claim may meet the record before it is deleted
		require.NotEqual(t, first, b.Own())
		synctest.Wait()
		e := c.entry(t, "lock.x")
		require.False(t, e.From(first) && e.Live(), "the record that was acknowledged late")
	})
}

// A claim that is given up invalidates what its unanswered attempt expects, so a server that applies the attempt later
// must refuse it.
func TestGivenUp(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		c.f.OnSend(kit.At("lock take", faults.Hold))
		b := c.bid()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		require.Equal(t, core.Ended, b.Offer(ctx, 0).Outcome)
		for _, gone := range b.Close() {
			<-gone
		}
		synctest.Wait()
		require.Empty(t, b.Own())
		require.Equal(t, 1, c.f.ReleaseHeld())
		synctest.Wait()
		require.False(t, c.entry(t, "lock.x").Live(), "the orphan of a claim that is over")
	})
}

// A record stored after its claim is over is deleted at exactly its own revision, either when the reply arrives or,
// without a reply, when the record appears.
func TestOrphan(t *testing.T) {
	for name, fate := range map[string]faults.Fate{"answered": faults.Delay(2 * time.Second), "unanswered": faults.Delay(2 * time.Second).Silent()} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *client) {
				c.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if w.Delete && w.Expect == 0 {
						return faults.Drop // so that what the attempt expects still holds
					}
					return kit.Between("lock take", 1, 1, fate)(0, w)
				})
				b := c.bid()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				require.Equal(t, core.Ended, b.Offer(ctx, 0).Outcome)
				b.Close()
				time.Sleep(2*time.Second - time.Second/2 - time.Millisecond)
				require.True(t, c.entry(t, "lock.x").Zero())
				time.Sleep(time.Second)
				require.True(t, c.entry(t, "lock.x").Deleted, "stored at 2 s, and deleted")
			})
		})
	}
}

// Anyone can forge a notification, so only a read shows that a finished claim's record has appeared.
func TestOrphanForged(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		c.f.OnSend(func(_ int, w kvstore.Write) faults.Fate { return faults.Drop })
		b := c.bid()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		b.Offer(ctx, 0)
		id := b.Own()
		b.Close()
		synctest.Wait()
		revision := c.foreign(t, "lock.x", 0)
		body := c.b.Body(record.StatusHeld, nil)
		body.ID, body.Attempt = id, 1
		value, err := body.Encode()
		require.NoError(t, err)
		c.f.OnSend(nil)
		require.Equal(t, 1, c.f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{Key: "lock.x", Revision: revision, Value: value}}))
		time.Sleep(2 * time.Second)
		require.True(t, c.entry(t, "lock.x").Live(), "another client's")
	})
}

// A reader's claim expects the gate to be unchanged, so the server refuses a claim that arrives after a new gate.
func TestJoinBehindAGate(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		reader := func(b *claim.Bid) {
			b.Draft.Keys = record.KeysOf(record.RW, "x")
			b.Draft.Guard, b.Draft.Body.Mode = b.Draft.Keys.Gate, uint8(record.Shared)
		}
		first := c.bid(reader)
		r := first.Offer(bounded(t), 0)
		require.Equal(t, core.Granted, r.Outcome)
		require.True(t, first.Grant(r).Once)
		c.foreign(t, "rw.x", 0)
		second := c.bid(reader)
		r = second.Offer(bounded(t), 0)
		require.Equal(t, core.Busy, r.Outcome)
		require.Equal(t, "rw.x", r.Entry.Key)
		require.True(t, c.entry(t, record.KeysOf(record.RW, "x").Reader(second.Own())).Zero())
	})
}

// A full bucket accepts no claim. A waiter that has a place gives it up to make room, and everyone else keeps trying
// until there is room.
func TestFullBucket(t *testing.T) {
	full := faults.Refuse(fmt.Errorf("%w: test", kvstore.ErrFull))
	inMemory(t, func(t *testing.T, c *client) {
		c.f.OnSend(kit.At("lock take", full))
		b := c.bid(func(b *claim.Bid) { b.Placed = true })
		r := b.Offer(bounded(t), 0)
		require.Equal(t, core.NoRoom, r.Outcome)
		require.ErrorIs(t, r.Err, kvstore.ErrFull)
	})
	inMemory(t, func(t *testing.T, c *client) {
		c.f.OnSend(kit.Between("lock take", 1, 8, full))
		require.Equal(t, core.Granted, c.bid().Offer(bounded(t), 0).Outcome)
	})
}

// A client whose renewals are late starts no new claim but continues one that may already have a record.
func TestPostponed(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		c.b.Postpone(fmt.Errorf("%w: renewals first", bucket.ErrUnavailable))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Equal(t, core.Ended, c.bid().Offer(ctx, 0).Outcome)
		require.Zero(t, c.f.Counts().Sends)
		require.ErrorContains(t, c.heard[0], "renewals first")
		require.Equal(t, core.Granted, c.bid(func(b *claim.Bid) { b.Draft.Queued = true }).Offer(bounded(t), 0).Outcome)
	})
}

// A bid ends when another attempt cannot help: the server forbids the subject, the requested time is over, the client
// is closed, or the bucket is unfit.
func TestHopeless(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(c *client, b *claim.Bid)
		outcome core.Outcome
		err     error
	}{
		"forbidden": {func(c *client, b *claim.Bid) {
			c.kv.err = fmt.Errorf("%w: test", bucket.ErrPermission)
			c.f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		}, core.Failed, bucket.ErrPermission},
		"its time is over": {func(c *client, b *claim.Bid) { b.Draft.Until = time.Now().Add(-time.Second) }, core.Failed, clock.ErrInvalidTTL},
		"closed":           {func(c *client, b *claim.Bid) { c.b.Quit() }, core.Ended, bucket.ErrClosed},
		"unfit":            {func(c *client, b *claim.Bid) { c.b.Refuse(kvstore.ErrBucketConfig) }, core.Ended, kvstore.ErrBucketConfig},
		"unfit meanwhile": {func(c *client, b *claim.Bid) {
			c.f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
			time.AfterFunc(time.Second/2, func() { c.b.Refuse(kvstore.ErrBucketConfig) })
		}, core.Ended, kvstore.ErrBucketConfig},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, c *client) {
				b := c.bid()
				tc.happens(c, b)
				r := b.Offer(bounded(t), 0)
				require.Equal(t, tc.outcome, r.Outcome)
				require.ErrorIs(t, r.Err, tc.err)
				require.LessOrEqual(t, c.f.Counts().Sends, 1)
			})
		})
	}
}

// A resource that checks fencing tokens must see them rise, so a grant below an already acknowledged revision is
// refused and its record deleted.
func TestTokensBackwards(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		c.b.Acknowledged(1 << 60)
		r := c.bid().Offer(bounded(t), 0)
		require.Equal(t, core.Failed, r.Outcome)
		require.ErrorContains(t, r.Err, "fencing tokens went backwards")
		require.ErrorContains(t, c.b.Backwards(), "went backwards")
		synctest.Wait()
		require.True(t, c.entry(t, "lock.x").Deleted)
	})
}

// A bid that moves on to another slot closes its claim of the first one, because a late reply must not become a second
// grant.
func TestAnotherSlot(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		keys := record.KeysOf(record.Semaphore, "x")
		c.f.OnSend(kit.Between("sem take", 1, 1, faults.Delay(time.Second)))
		b := c.bid(func(b *claim.Bid) { b.Draft.Keys = keys })
		b.Aim(keys.Slot(0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		require.Equal(t, core.Ended, b.Offer(ctx, 0).Outcome)
		first := b.Own()
		b.Aim(keys.Slot(0))
		require.Equal(t, first, b.Own(), "the same slot")
		b.Aim(keys.Slot(1))
		require.Empty(t, b.Own())
		r := b.Offer(bounded(t), 0)
		require.Equal(t, core.Granted, r.Outcome)
		require.Equal(t, keys.Slot(1), b.Grant(r).Key)
		time.Sleep(2 * time.Second)
		require.False(t, c.entry(t, keys.Slot(0)).Live())
	})
}

// A claim may overtake queued goroutines only for a short while after the queue was seen empty.
func TestPassesForAWhile(t *testing.T) {
	inMemory(t, func(t *testing.T, c *client) {
		revision := c.foreign(t, "lock.x", 0)
		require.NoError(t, c.others.Delete(t.Context(), "lock.x", revision, "other"))
		c.f.OnSend(kit.At("lock take", faults.Drop))
		b := c.bid(func(b *claim.Bid) { b.Until = c.b.Instant().Add(record.Bypass) })
		begun := c.b.Instant()
		r := b.Offer(bounded(t), revision+1)
		require.Equal(t, core.Free, r.Outcome)
		require.True(t, r.Entry.Zero(), "queue first")
		require.Equal(t, 1, c.f.Counts().Sends)
		require.Less(t, c.b.Instant().Sub(begun), 2*bucket.AnswerTimeout)
	})
}
