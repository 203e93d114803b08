package partition_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

// TestGrowAndShrink checks that a fleet that grows from one worker to eight and shrinks to three is
// balanced within a second of each change, and that no change moves more than the share of the
// worker that joined or left.
func TestGrowAndShrink(t *testing.T) {
	inBubble(t, 64, func(t *testing.T, c *crew) {
		for n := 1; n <= 8; n++ {
			c.join(fmt.Sprintf("w%d", n), nil)
			time.Sleep(time.Second)
			c.balanced()
			moves, gaps := c.ledger.take()
			if n == 1 {
				require.Equal(t, 64, moves)
				n := 0
				for l, err := range admin.New(c.all["w1"].client).List(t.Context(), ">") {
					require.NoError(t, err)
					n++
					require.Equal(t, strings.Contains(l.Name, ".member."), l.Holder.Purpose == "member", l.Name)
					require.Equal(t, l.Holder.Purpose != "member", l.Holder.Purpose == "partition", l.Name)
				}
				require.Equal(t, 65, n)
				continue
			}
			require.LessOrEqual(t, moves, (64+n-1)/n, "a join as number %d", n)
			for _, gap := range gaps {
				require.Less(t, gap, 10*time.Millisecond)
			}
		}
		for n := 8; n > 3; n-- {
			before := len(c.all[fmt.Sprintf("w%d", n)].Owned())
			require.ErrorIs(t, c.leave(fmt.Sprintf("w%d", n)).err, context.Canceled)
			time.Sleep(time.Second)
			c.balanced()
			moves, gaps := c.ledger.take()
			require.Equal(t, before, moves)
			for _, gap := range gaps {
				require.Less(t, gap, 10*time.Millisecond)
			}
		}
	})
}

// TestCrash checks that a crashed worker's partitions have owners again one second after the TTL,
// and that a successor with the same ID gets them back.
func TestCrash(t *testing.T) {
	inBubble(t, 64, func(t *testing.T, c *crew) {
		for n := range 4 {
			c.join(fmt.Sprintf("w%d", n), nil)
		}
		time.Sleep(2 * time.Second)
		c.balanced()
		c.ledger.take()
		had := c.all["w2"].Owned()
		c.kill("w2")
		time.Sleep(15*time.Second + time.Second)
		c.balanced()
		moves, _ := c.ledger.take()
		require.Equal(t, len(had), moves)

		c.join("w2", nil)
		time.Sleep(time.Second)
		c.balanced()
		require.Equal(t, had, c.all["w2"].Owned())
	})
}

// TestDrainTime checks that a worker with a slow function keeps its partition for the drain time
// and beyond, until the function returns.
func TestDrainTime(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, c *crew) {
		causes := make(chan error, 2)
		slow := func(ctx context.Context, p *partition.Partition) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			time.Sleep(time.Minute) // it ignores even its context
			return nil
		}
		c.join("slow", slow, partition.Drain(3*time.Second))
		time.Sleep(time.Second)
		begun := time.Now()
		c.join("next", nil)
		require.ErrorIs(t, <-causes, partition.ErrDrainTime)
		require.InDelta(t, 3.5, time.Since(begun).Seconds(), 0.1)
		time.Sleep(59 * time.Second)
		require.Equal(t, map[string]int{"slow": 2}, c.ledger.owned())
		time.Sleep(2 * time.Second)
		c.balanced()
		w := c.all["slow"]
		require.EqualValues(t, 1, w.Stats().Slow)
		said := w.find(partition.EventSlow)
		require.ErrorIs(t, said.Err, partition.ErrDrainTime)
		require.InDelta(t, 3.5, said.Time.Sub(begun).Seconds(), 0.1)
		require.Contains(t, w.log.String(), "did not return within the drain time")
	})
}

// TestSlowRelease checks that a function that returned in time does not count as slow, however long
// the server takes to confirm the release. Anything reported about the function ends when it
// returns.
func TestSlowRelease(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *crew) {
		var began, left time.Time
		w := c.join("w", func(ctx context.Context, p *partition.Partition) error {
			began = time.Now()
			<-p.Leaving()
			time.Sleep(900 * time.Millisecond)
			left = time.Now()
			return nil
		}, partition.Drain(time.Second), partition.TTL(time.Minute))
		time.Sleep(2 * time.Second)
		c.locks.Fail(fmt.Errorf("%w: no server", natslock.ErrUnavailable))
		c.leave("w")
		require.Greater(t, time.Since(left), time.Second, "the release hangs")
		require.Zero(t, w.find(partition.EventSlow))
		require.Zero(t, w.Stats().Slow)
		require.EqualValues(t, 1, w.Stats().Drained)
		require.NotContains(t, w.log.String(), "drain time")
		released := w.find(partition.EventReleased)
		require.NotErrorIs(t, released.Err, partition.ErrDrainTime)
		require.Equal(t, left.Sub(began), released.Held)
	})
}

// TestFailsBeforeASlowRelease checks that a function that failed within 10 s counts as failing
// repeatedly, however long the release before the next attempt takes.
func TestFailsBeforeASlowRelease(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *crew) {
		var gaps []time.Duration
		var failed time.Time
		w := c.join("w", func(context.Context, *partition.Partition) error {
			if !failed.IsZero() {
				gaps = append(gaps, time.Since(failed))
			}
			time.Sleep(9 * time.Second)
			c.locks.Fail(fmt.Errorf("%w: no server", natslock.ErrUnavailable))
			time.AfterFunc(4*time.Second, func() { c.locks.Fail(nil) })
			failed = time.Now()
			return errors.New("no disk")
		}, partition.TTL(time.Minute))
		time.Sleep(5 * time.Minute)
		c.leave("w")
		require.Greater(t, gaps[len(gaps)-1], 9*time.Second, "the pauses grow: %v", gaps)
		require.Contains(t, w.log.String(), "no disk")
	})
}

// TestFailingFunction checks that a failing function is called again after growing pauses, each
// time with a new token.
func TestFailingFunction(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *crew) {
		var counted atomic.Int64
		w := c.join("w", func(context.Context, *partition.Partition) error {
			counted.Add(1)
			return errors.New("no disk")
		})
		time.Sleep(time.Minute)
		calls := int(counted.Load())
		require.Greater(t, calls, 8)
		require.Less(t, calls, 25)
		require.EqualValues(t, calls, w.Stats().Failed)
		c.leave("w")
		failed := 0
		for _, ev := range w.events {
			if ev.Type == partition.EventFailed {
				require.ErrorContains(t, ev.Err, "no disk")
				failed++
			}
		}
		require.Equal(t, calls, failed)
	})
}

// TestReturningFunction checks for a log entry when a function returns early without an error.
func TestReturningFunction(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *crew) {
		w := c.join("w", func(context.Context, *partition.Partition) error { return nil })
		time.Sleep(time.Second)
		require.Contains(t, w.log.String(), "returned before it was asked to")
		require.NoError(t, w.find(partition.EventFailed).Err)
	})
}

// TestOutage checks that a worker that leaves while it cannot reach the server reports what it
// could not release and when that becomes free. A worker that stays reports once that it cannot
// reach its group, and once that it can again.
func TestOutage(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, c *crew) {
		stays := c.join("stays", nil, partition.TTL(time.Minute))
		leaves := c.join("leaves", nil, partition.TTL(time.Minute))
		time.Sleep(2 * time.Second)
		c.balanced()
		c.locks.Fail(fmt.Errorf("%w: no server", natslock.ErrUnavailable))
		begun := time.Now()
		c.leave("leaves")
		require.LessOrEqual(t, time.Since(begun), 12*time.Second)
		require.ErrorIs(t, leaves.find(partition.EventReleased).Err, natslock.ErrUnavailable)
		require.ErrorIs(t, leaves.find(partition.EventLeft).Err, natslock.ErrUnavailable)
		require.Contains(t, leaves.log.String(), "partition not released; it becomes free when its TTL ends")
		time.Sleep(time.Minute)
		c.locks.Fail(nil)
		time.Sleep(time.Minute)
		c.balanced()
		require.Equal(t, 1, strings.Count(stays.log.String(), "cannot reach the group; retrying"), stays.log.String())
		require.Equal(t, 1, strings.Count(stays.log.String(), "reached the group again"))
	})
}

// TestFunctionsThatDoNotReturn checks that a function fails if it ends its goroutine, as a failed
// assertion does, or unlocks its partition itself.
func TestFunctionsThatDoNotReturn(t *testing.T) {
	for what, work := range map[string]func(context.Context, *partition.Partition) error{
		"exits":   func(context.Context, *partition.Partition) error { runtime.Goexit(); return nil },
		"unlocks": func(ctx context.Context, p *partition.Partition) error { return p.Lock().Unlock(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 1, func(t *testing.T, c *crew) {
				w := c.join("w", work)
				time.Sleep(time.Minute)
				require.InDelta(t, 12, w.Stats().Granted, 10, "after pauses that grow")
			})
		})
	}
}

// TestClosedClient checks that Run ends immediately when its client is closed. It returns
// ErrClosed, or the context's error if the context ended first.
func TestClosedClient(t *testing.T) {
	inBubble(t, 4, func(t *testing.T, c *crew) {
		c.join("other", nil)
		for _, canceled := range []bool{false, true} {
			w := c.join("w", nil)
			time.Sleep(2 * time.Second)
			if canceled {
				w.leave(nil)
			}
			begun := time.Now()
			require.NoError(t, w.client.Close(context.Background()))
			<-w.done
			delete(c.all, "w")
			require.Less(t, time.Since(begun), time.Second)
			if canceled {
				require.ErrorIs(t, w.err, context.Canceled)
			} else {
				require.ErrorIs(t, w.err, natslock.ErrClosed)
			}
		}
	})
}

// TestBrokenPartition checks that breaking a partition's lock ends the function, and that the
// worker then reacquires the partition.
func TestBrokenPartition(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, c *crew) {
		w := c.join("w", nil)
		time.Sleep(time.Second)
		require.True(t, c.locks.Break(name+".part.1", "stuck"))
		time.Sleep(time.Second)
		c.balanced()
		require.EqualValues(t, 1, w.Stats().Lost)
		c.leave("w")
		lost := false
		for _, ev := range w.events {
			if ev.Type == partition.EventLost {
				lost = true
				require.ErrorIs(t, ev.Err, natslock.ErrBroken)
			}
		}
		require.True(t, lost)
	})
}

// TestOtherCount checks that a worker whose number of partitions differs from the first worker's is
// refused and does no harm.
func TestOtherCount(t *testing.T) {
	inBubble(t, 8, func(t *testing.T, c *crew) {
		c.join("first", nil)
		time.Sleep(time.Second)
		c.count = 16
		w := c.join("other", nil)
		<-w.done
		require.ErrorIs(t, w.err, partition.ErrCount)
		require.ErrorIs(t, w.err, natslock.ErrInvalid)
		require.ErrorContains(t, w.err, "first")
		delete(c.all, "other")
		c.count = 8
		time.Sleep(time.Second)
		c.balanced()
	})
}

// TestMorePartitions checks that a group gets more partitions once all workers have left and
// rejoined, or once the leases of crashed workers have ended. The tokens of the existing partitions
// keep increasing.
func TestMorePartitions(t *testing.T) {
	inBubble(t, 8, func(t *testing.T, c *crew) {
		fleet := []string{"w0", "w1", "w2"}
		for _, id := range fleet {
			c.join(id, nil)
		}
		time.Sleep(2 * time.Second)
		for _, id := range fleet {
			c.leave(id)
		}
		c.count = 16
		for _, id := range fleet {
			c.join(id, nil)
		}
		time.Sleep(2 * time.Second)
		c.balanced()

		for _, id := range fleet {
			c.kill(id)
		}
		c.count = 32
		early := c.join("early", nil)
		<-early.done
		require.ErrorIs(t, early.err, partition.ErrCount)
		delete(c.all, "early")
		time.Sleep(15 * time.Second)
		for _, id := range fleet {
			c.join(id, nil)
		}
		time.Sleep(2 * time.Second)
		c.balanced()
		require.Len(t, c.ledger.tokens, 32)
	})
}

// TestTakenID checks that a worker whose ID is taken reports who has it, and takes over once that
// worker has left.
func TestTakenID(t *testing.T) {
	inBubble(t, 8, func(t *testing.T, c *crew) {
		first := c.join("w", nil)
		time.Sleep(time.Second)
		second := c.join("w", nil)
		time.Sleep(time.Minute)
		require.Empty(t, second.Owned())
		first.leave(nil)
		<-first.done
		time.Sleep(time.Second)
		c.balanced()
		c.leave("w")
		require.Contains(t, second.log.String(), "another worker has the ID")
		require.Equal(t, partition.EventUnavailable, second.events[0].Type)
		require.ErrorIs(t, second.events[0].Err, natslock.ErrTimeout)
		require.ErrorContains(t, second.events[0].Err, `another worker has the ID "w"`)
		require.ErrorContains(t, second.events[0].Err, "held by")
		require.Equal(t, partition.EventUnavailable, second.events[1].Type)
		require.Equal(t, time.Second, second.events[0].Time.Sub(second.begun))
		require.Equal(t, 30*time.Second, second.events[1].Time.Sub(second.events[0].Time))
		require.Equal(t, partition.EventJoined, second.events[2].Type)
	})
}

// TestWeights checks that workers own partitions in proportion to their weights.
func TestWeights(t *testing.T) {
	inBubble(t, 60, func(t *testing.T, c *crew) {
		c.join("one", nil)
		c.join("two", nil, partition.Weight(2))
		c.join("three", nil, partition.Weight(3))
		time.Sleep(3 * time.Second)
		require.Equal(t, map[string]int{"one": 10, "two": 20, "three": 30}, c.ledger.owned())
	})
}

// TestOnlyOneLeaves checks that the only worker leaves immediately.
func TestOnlyOneLeaves(t *testing.T) {
	inBubble(t, 8, func(t *testing.T, c *crew) {
		c.join("w", nil)
		time.Sleep(3 * time.Second)
		begun := time.Now()
		c.leave("w")
		require.Less(t, time.Since(begun), 10*time.Millisecond)
	})
}

// TestAllLeave checks that workers that all leave together wait no longer than it takes them to
// notice.
func TestAllLeave(t *testing.T) {
	inBubble(t, 8, func(t *testing.T, c *crew) {
		for n := range 3 {
			c.join(fmt.Sprintf("w%d", n), nil)
		}
		time.Sleep(3 * time.Second)
		begun := time.Now()
		for _, w := range c.all {
			w.leave(nil)
		}
		for _, id := range c.ids() {
			c.leave(id)
		}
		require.Less(t, time.Since(begun), 2*time.Second)
	})
}
