package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// Figures that are measured only for natslock, and not by any test in the proof tier.
const (
	brokenP50 = "broken_p50" // from the call to Break until the holder's context ends
	brokenP99 = "broken_p99"
)

func joinP50(readers int) string { return "join_" + strconv.Itoa(readers) + "_p50" }
func joinP99(readers int) string { return "join_" + strconv.Itoa(readers) + "_p99" }

// readers lists the numbers of readers that join simultaneously.
var readers = []int{2, 8, 32}

// join makes n readers join simultaneously, over and over. Each reader has its own client,
// because readers of the same client share a lease.
func join(ctx context.Context, o *opened, name string, n int, d time.Duration) (Figures, error) {
	locks := make([]*rwlock.RWLock, n)
	for i := range locks {
		nc, c, err := openNatslock(ctx, o.servers)
		if err != nil {
			return nil, err
		}
		defer closeNatslock(nc, c)
		locks[i] = rwlock.New(c)
	}
	var took []time.Duration
	for end := time.Now().Add(d); len(took) < 10*n || time.Now().Before(end); {
		each, errs := make([]time.Duration, n), make([]error, n)
		held := make([]*natslock.Lock, n)
		var all sync.WaitGroup
		for i, l := range locks {
			all.Go(func() {
				begun := time.Now()
				held[i], errs[i] = l.RLock(ctx, name)
				each[i] = time.Since(begun)
			})
		}
		all.Wait()
		took = append(took, each...)
		for i, l := range held {
			if errs[i] == nil {
				errs[i] = l.Unlock(ctx)
			}
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
	}
	slices.Sort(took)
	return Figures{joinP50(n): quantile(took, 0.5), joinP99(n): quantile(took, 0.99)}, nil
}

// breaks breaks watched locks, and waits for their holders' contexts to end.
func breaks(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error) {
	nc, c, err := openNatslock(ctx, o.servers, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
	if err != nil {
		return nil, err
	}
	defer closeNatslock(nc, c)
	other, operator, err := openNatslock(ctx, o.servers)
	if err != nil {
		return nil, err
	}
	defer closeNatslock(other, operator)
	var took []time.Duration
	for end := time.Now().Add(d); len(took) < 20 || time.Now().Before(end); {
		l, err := c.Lock(ctx, name+"-"+strconv.Itoa(len(took)))
		if err != nil {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond) // the watch starts after the grant, and repeated hints slow the client down
		begun := time.Now()
		if err := admin.New(operator).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: l.Name(), ID: l.ID(), Reason: "measured"}); err != nil {
			return nil, err
		}
		select {
		case <-l.Context().Done():
		case <-time.After(patience):
			return nil, errors.New("a holder was never notified")
		}
		took = append(took, time.Since(begun))
		_ = l.Unlock(ctx) // its error says that the lock was broken
	}
	slices.Sort(took)
	return Figures{brokenP50: quantile(took, 0.5), brokenP99: quantile(took, 0.99)}, nil
}
