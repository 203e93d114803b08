package cohort_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// grants has goroutines of a client take the lock n times in total, and returns the tokens in the
// order of the grants. All goroutines wait before the first gets the lock. Otherwise one might
// finish before another has started.
func grants(t *testing.T, c *kit.Member, goroutines, n int, section time.Duration) (tokens []uint64) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	begun := 0
	next := func() bool {
		mu.Lock()
		defer mu.Unlock()
		begun++
		return begun <= n
	}
	first := kit.Must(t, c.Lock, "l")
	for range goroutines {
		wg.Go(func() {
			for next() {
				l, err := c.Lock(t.Context(), "l")
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				tokens = append(tokens, l.Token())
				mu.Unlock()
				time.Sleep(section)
				assert.NoError(t, l.Unlock(t.Context()))
			}
		})
	}
	synctest.Wait()
	kit.Unlock(t, first)
	wg.Wait()
	return tokens
}

// wantRising requires that the tokens rise and that no revision has more tokens than
// record.GrantsPerRevision.
func wantRising(t *testing.T, tokens []uint64) {
	t.Helper()
	revisions := map[uint64]int{}
	for i, token := range tokens {
		if i > 0 {
			require.Greater(t, token, tokens[i-1], "grant %d", i)
		}
		revisions[record.TokenRevision(token)]++
	}
	for revision, n := range revisions {
		require.LessOrEqual(t, n, record.GrantsPerRevision, "at revision %d", revision)
	}
}

// TestCohortTokens checks that local grants cost one message in 32 and that their tokens rise.
func TestCohortTokens(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, other.Lock, "l"))
		var all []uint64
		for _, section := range []time.Duration{0, 10 * time.Microsecond} {
			const n = 640
			out := c.NC.Stats().OutMsgs
			tokens := grants(t, c, 8, n, section)
			require.Len(t, tokens, n)
			sent := c.NC.Stats().OutMsgs - out
			// Beginning and ending a lease and listing its queue take about a dozen messages.
			require.LessOrEqual(t, sent, uint64(n/32+16), "messages for %d grants", n)
			l := kit.Must(t, other.Lock, "l")
			all = append(append(all, tokens...), l.Token())
			kit.Unlock(t, l)
		}
		wantRising(t, all)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortTokensRunOut checks that the next grant waits for a renewal when the tokens of a
// revision are used up.
func TestCohortTokensRunOut(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const late = 300 * time.Millisecond
		c, f := kit.JoinFaulty(t, s)
		holder, waits := siblings(t, c, 3)
		_ = kit.UnlockAll(t, holder, waits[:1]...)
		for _, w := range waits[1:] {
			kit.Unlock(t, w.Granted(t))
		}
		time.Sleep(2 * time.Second)

		f.OnSend(kit.At("lock renew", faults.DelayAnswer(late)))
		begun := time.Now()
		tokens := grants(t, c, 8, 300, 0)
		wantRising(t, tokens)
		// There are 64 grants, then 64 more when the first renewal is acknowledged, and so on.
		require.GreaterOrEqual(t, time.Since(begun), 3*late)
		require.Less(t, time.Since(begun), 10*late)
	})
}

// TestCohortTokensOfLostAnswers checks that tokens rise even if the acknowledgments of renewals
// are lost.
func TestCohortTokensOfLostAnswers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		var renewals atomic.Int32
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock renew" {
				if renewals.Add(1)%3 != 0 {
					return faults.LoseAnswer
				}
			}
			return faults.Pass
		})
		tokens := grants(t, c, 8, 640, 10*time.Microsecond)
		tokens = append(tokens, grants(t, other, 2, 10, time.Millisecond)...)
		tokens = append(tokens, grants(t, c, 2, 10, time.Millisecond)...)
		wantRising(t, tokens)
		require.Positive(t, f.Counts().AnswersLost)
	})
}

// TestCohortTokensAcrossRenewals checks that a renewal between two grants restarts the numbering
// but never lowers a token.
func TestCohortTokensAcrossRenewals(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		tokens := grants(t, c, 3, 60, 2*time.Second)
		wantRising(t, tokens)
		revisions := map[uint64]bool{}
		for _, token := range tokens {
			revisions[record.TokenRevision(token)] = true
		}
		require.Greater(t, len(revisions), 10, "it was renewed every few seconds")
		require.True(t, slices.IsSorted(tokens))
	})
}

// TestCohortShowsItsHolder checks that the record follows the goroutine that holds the lock, with
// at most one renewal per 100 ms.
func TestCohortShowsItsHolder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), kit.Join(t, s)
		holder := kit.Must(t, c.Lock, "l")
		time.Sleep(10 * time.Millisecond)
		names := []string{"a", "b", "c"}
		var waits []*kit.Waiting
		for _, name := range names {
			waits = append(waits, c.Settle(t, natslock.Meta(map[string]string{"name": name})))
		}
		l := holder
		for i, w := range waits {
			time.Sleep(time.Second)
			kit.Unlock(t, l)
			l = w.Granted(t)
			time.Sleep(101 * time.Millisecond)
			synctest.Wait()
			shown := kit.Inspect(t, other.Client, "l").Holder
			require.Equal(t, names[i], shown.Meta["name"])
			require.WithinDuration(t, w.At, shown.Since, time.Millisecond)
			require.Equal(t, l.Token(), shown.Token)
			require.Positive(t, shown.Waited)
		}
		kit.Unlock(t, l)

		// Now with many short critical sections.
		time.Sleep(2 * time.Second)
		taps := kit.NewTap(t, s.Connect(), "lock.l")
		holder, waits = siblings(t, c, 50)
		begun := time.Now()
		for _, w := range waits {
			kit.Unlock(t, holder)
			holder = w.Granted(t)
			time.Sleep(10 * time.Millisecond)
		}
		took := time.Since(begun)
		kit.Unlock(t, holder)
		renewals := 0
		for _, m := range taps.Take(t, c.NC) {
			if kit.Stage(kvstore.Write{Key: "lock.l", Value: m.Data, Delete: m.Header.Get("KV-Operation") != ""}) == "lock renew" {
				renewals++
			}
		}
		require.LessOrEqual(t, renewals, int(took/(100*time.Millisecond))+2)
		require.Positive(t, renewals)
	})
}

// TestCohortShowsItsHolderAfterARenewal checks that if a renewal was sent for the previous holder,
// another renewal follows to show the next one.
func TestCohortShowsItsHolderAfterARenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l, waits := siblings(t, c, 3)
		time.Sleep(time.Second)
		f.OnSend(kit.At("lock renew", faults.DelayAnswer(60*time.Millisecond)))
		for i, pause := range []time.Duration{200, 20, 300} { // the renewal for the second one is still under way when it leaves
			kit.Unlock(t, l)
			l = waits[i].Granted(t)
			time.Sleep(pause * time.Millisecond)
		}
		require.Equal(t, l.Token(), kit.Inspect(t, c.Client, "l").Holder.Token)
		kit.Unlock(t, l)
	})
}
