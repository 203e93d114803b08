package main

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/natslock/locks/natslock"
)

// Held is the cost for a client to hold many locks, beside bare publishes of the same kind.
type Held struct {
	Locks      int     `json:"locks"`
	TTL        string  `json:"ttl"`
	Goroutines int     `json:"goroutines"` // more than without the client
	Bytes      float64 `json:"bytes"`      // of heap and stacks, for each lock
	Renewals   float64 `json:"renewals"`   // per second
	CPU        float64 `json:"cpu"`        // cores of the client's process
	PerRenewal float64 `json:"renewal"`    // seconds of CPU
	PerPublish float64 `json:"publish"`    // the same, for a bare asynchronous publish in bulk
	PerPaced   float64 `json:"paced"`      // the same, in bursts as renewals are, until its notification has arrived
	Lost       int     `json:"lost"`
}

// memory is the bytes in use when all garbage is gone.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// holdMany holds n locks while each is renewed twice. Very many locks have longer leases,
// as a user would choose them.
func holdMany(ctx context.Context, s *Servers, n int) (_ *Held, err error) {
	ttl := leaseTTL
	if n > 20_000 {
		ttl = 4 * leaseTTL
	}
	d := ttl * 2 / 3
	// The bar that shows how far it is costs as much as a hundred renewals a second.
	idle, wait := ownUsage(), 2*time.Second
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	idle = (ownUsage() - idle) / wait.Seconds()
	bytes, routines := memory(), runtime.NumGoroutine()
	c, err := openNatslock(ctx, s, natslock.WithTTL(ttl))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	unlocks := make([]func(context.Context) error, n)
	begun := time.Now()
	if err := spread(n, func(i int) (err error) {
		unlocks[i], err = c.Lock(ctx, "held."+strconv.Itoa(i))
		return err
	}); err != nil {
		return nil, err
	}
	took := time.Since(begun) // the renewals are spread over as long a time from now on
	// The client watches the locks after a second, and that is part of their cost.
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h := &Held{Locks: n, TTL: ttl.String()}
	h.Bytes = (float64(memory()) - float64(bytes)) / float64(n)
	h.Goroutines = runtime.NumGoroutine() - routines
	renewed := c.Stats().Renewed
	before := ownUsage()
	begun = time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	elapsed := time.Since(begun).Seconds()
	used := ownUsage() - before - idle*elapsed
	stats := c.Stats()
	count := float64(stats.Renewed - renewed)
	h.Lost = int(stats.Lost)
	h.Renewals = count / elapsed
	h.CPU = used / elapsed
	h.PerRenewal = used / max(count, 1)
	if err := spread(n, func(i int) error { return unlocks[i](ctx) }); err != nil {
		return nil, err
	}

	bare, err := openBare(ctx, s)
	if err != nil {
		return nil, err
	}
	defer bare.Close()
	name := "renewed-" + strconv.Itoa(n)
	n = min(n, 10_000) // the cost of a publish does not depend on it
	k, err := bare.keep(ctx, name, n)
	if err != nil {
		return nil, err
	}
	defer k.stop()
	publishes := func(times, due int, tick time.Duration) (float64, error) {
		before := ownUsage()
		err := k.renew(ctx, times, due, tick)
		return (ownUsage() - before) / float64(n*times), err
	}
	if h.PerPublish, err = publishes(40_000/n, n, 0); err != nil {
		return nil, err
	}
	if err := k.listen(); err != nil {
		return nil, err
	}
	const tick = 100 * time.Millisecond // the library's: what is due within one goes together
	due := int(float64(h.Locks) * float64(tick) / float64(max(took, tick)))
	if h.PerPaced, err = publishes(max(2, 10_000/n), due, tick); err != nil {
		return nil, err
	}
	return h, nil
}

// spread calls fn for 0 to n-1 from a few goroutines.
func spread(n int, fn func(i int) error) error {
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := g; i < n && errs[g] == nil; i += goroutines {
				errs[g] = fn(i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
