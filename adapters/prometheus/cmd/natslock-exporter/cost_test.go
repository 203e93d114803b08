package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

var full = flag.Bool("full", false, "have TestCost run for a minute beside 10,000 locks and 1,000 events a second")

const (
	// costPerEvent is a tenth of a core at 1,000 events a second.
	costPerEvent = 100 * time.Microsecond
	// costSmall bounds a short run with few events at a time, where each event wakes the
	// process up and the scrapes are frequent.
	costSmall = 3 * costPerEvent
	// mostMemory bounds the resident memory beside 10,000 locks.
	mostMemory = 100 << 20
)

// load is locks that are held, and events: half are renewals of these locks, and half are
// the grants and releases of other locks.
type load struct {
	locks, rate int // rate is events a second
	lasts       time.Duration
	scrape      time.Duration // between two scrapes
}

// TestCost measures the processor time of an exporter in a process of its own. It compares
// processor times, so other work on the machine does not matter. The events are those that
// the bucket really had.
func TestCost(t *testing.T) {
	t.Parallel()
	l, bound := load{locks: 1000, rate: 800, lasts: 4 * time.Second, scrape: time.Second}, costSmall
	if *full {
		l, bound = load{locks: 10_000, rate: 1000, lasts: time.Minute, scrape: 15 * time.Second}, costPerEvent
	}
	s := testutil.RunServer(t)
	renewed := 3 * time.Second * time.Duration(2*l.locks) / time.Duration(l.rate) // the TTL: renewals come each third
	holder, _ := client(t, s, natslock.WithTTL(max(renewed, 3*time.Second)), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
	var held sync.Map
	var taking sync.WaitGroup
	for i := range 50 {
		taking.Go(func() {
			for n := i; n < l.locks; n += 50 {
				lock, err := holder.Lock(context.WithoutCancel(t.Context()), fmt.Sprintf("held.%d.%d", n%100, n))
				if err != nil {
					t.Errorf("lock %d: %v", n, err)
				}
				held.Store(n, lock)
			}
		})
	}
	taking.Wait()
	defer held.Clear()

	started := time.Now()
	p := follow(t, s)
	p.shows(fmt.Sprintf(`natslock_bucket_held{lock="held"} %d`, l.locks))
	cpu, memory := p.usage()
	t.Logf("reading %d locks took %v of a processor, and the process has %d MiB", l.locks, cpu, memory>>20)

	worker, _ := client(t, s)
	before, begun := holder.Stats().Renewed, time.Now()
	cycles := 0
	pace := time.NewTicker(time.Second * 4 / time.Duration(l.rate)) // a quarter of the events are grants
	defer pace.Stop()
	scrape := time.NewTicker(l.scrape)
	defer scrape.Stop()
	most := memory
	for time.Since(begun) < l.lasts {
		select {
		case <-pace.C:
			err := worker.Do(t.Context(), fmt.Sprint("cycle.", cycles%64), func(context.Context, *natslock.Lock) error { return nil })
			require.NoError(t, err)
			cycles++
		case <-scrape.C:
			_, now := p.usage()
			most = max(most, now)
		}
	}
	p.shows(fmt.Sprintf(`natslock_bucket_grants_total{lock="cycle"} %d`, cycles), fmt.Sprintf(`natslock_bucket_held{lock="held"} %d`, l.locks),
		`natslock_bucket_held{lock="cycle"} 0`)
	took := time.Since(begun)
	events := 2*cycles + int(holder.Stats().Renewed-before)
	require.Equal(t, 0, p.stop())
	used := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime() - cpu
	each := used / time.Duration(events)
	t.Logf("%d events in %v (%.0f/s) took %v of a processor: %v each, %.1f%% of a core; at most %d MiB; the process lived %v",
		events, took.Round(time.Millisecond), float64(events)/took.Seconds(), used, each, 100*used.Seconds()/took.Seconds(), most>>20, time.Since(started).Round(time.Millisecond))
	if raced {
		t.Log("no bounds: the race detector is on")
		return
	}
	require.Less(t, each, bound)
	require.Less(t, most, uint64(mostMemory))
}

var (
	cpuLine    = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`)
	memoryLine = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)
)

// usage scrapes the processor time and the resident memory of the process.
func (p *process) usage() (cpu time.Duration, memory uint64) {
	p.t.Helper()
	_, text := p.get("/metrics")
	number := func(line *regexp.Regexp) float64 {
		found := line.FindStringSubmatch(text)
		require.NotNil(p.t, found, text)
		v, err := strconv.ParseFloat(found[1], 64)
		require.NoError(p.t, err)
		return v
	}
	return time.Duration(number(cpuLine) * float64(time.Second)), uint64(number(memoryLine))
}
