package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

var full = flag.Bool("full", false, "have TestCost run for a minute beside 10,000 locks and 1,000 events a second")

const (
	// costPerEvent allows a tenth of a core at 1,000 events a second.
	costPerEvent = 100 * time.Microsecond
	// costSmall bounds a short run in which every event wakes the process up and scrapes are
	// frequent.
	costSmall = 3 * costPerEvent
	// mostMemory bounds the resident memory with 10,000 locks.
	mostMemory = 100 << 20
)

// load describes the held locks and the rate of events. Half of the events renew these locks, and
// half are grants and releases of other locks.
type load struct {
	locks, rate int // rate is in events per second
	lasts       time.Duration
	scrape      time.Duration // time between two scrapes
}

// TestCost measures the CPU time of an exporter in its own process, so other work on the machine
// does not matter, and divides it by the number of events that the bucket really had.
func TestCost(t *testing.T) {
	t.Parallel()
	l, bound := load{locks: 1000, rate: 800, lasts: 4 * time.Second, scrape: time.Second}, costSmall
	if *full {
		l, bound = load{locks: 10_000, rate: 1000, lasts: time.Minute, scrape: 15 * time.Second}, costPerEvent
	}
	measure(t, l, bound, mostMemory, nil, "--no-page")
}

// measure runs an exporter under load. If looks is not nil, it starts browsers that follow the
// exporter's page.
func measure(t *testing.T, l load, bound time.Duration, mostMemory uint64, looks func(*process), args ...string) {
	t.Helper()
	s := testutil.RunServer(t)
	renewed := 3 * time.Second * time.Duration(2*l.locks) / time.Duration(l.rate) // the TTL: a lease is renewed after a third of it
	holder, _ := client(t, s, natslock.WithTTL(max(renewed, 3*time.Second)), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
	holdMany(t, holder, l.locks)

	started := time.Now()
	p := follow(t, s, args...)
	p.shows(fmt.Sprintf(`natslock_bucket_held{lock="held"} %d`, l.locks))
	cpu, memory := p.usage()
	t.Logf("reading %d locks took %v of a processor, and the process has %d MiB", l.locks, cpu, memory>>20)
	if looks != nil {
		looks(p)
		cpu, memory = p.usage()
		t.Logf("with those who look: %v and %d MiB", cpu, memory>>20)
	}

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
	require.Less(t, most, mostMemory)
}

// TestPageCost is TestCost with browsers: three follow the table, one follows a lock, and one reads
// nothing.
func TestPageCost(t *testing.T) {
	tier.Proof(t)
	l := load{locks: 10_000, rate: 1000, lasts: machine.Part(time.Minute), scrape: 5 * time.Second}
	var reading sync.WaitGroup
	var received, updates atomic.Int64
	var open []io.Closer
	measure(t, l, costPerEvent, mostMemoryOfPage, func(p *process) {
		for _, query := range []string{"", "", "", "?kind=mutex&name=cycle.1"} {
			answer, err := http.Get(p.page() + "live" + query)
			require.NoError(t, err)
			open = append(open, answer.Body)
			body := bufio.NewReaderSize(answer.Body, 1<<20)
			first, err := body.ReadBytes('\n')
			require.NoError(t, err)
			t.Logf("the first update has %d KiB", len(first)>>10)
			reading.Go(func() {
				for {
					text, err := body.ReadSlice('\n')
					received.Add(int64(len(text)))
					updates.Add(1)
					if err != nil && err != bufio.ErrBufferFull {
						return
					}
				}
			})
		}
		at, err := url.Parse(p.page())
		require.NoError(t, err)
		stuck, err := net.Dial("tcp", at.Host)
		require.NoError(t, err)
		open = append(open, stuck)
		_, err = io.WriteString(stuck, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, err)
	})
	for _, c := range open {
		_ = c.Close()
	}
	reading.Wait()
	http.DefaultClient.CloseIdleConnections()
	t.Logf("the browsers have received %d KiB in %d updates", received.Load()>>10, updates.Load()/2)
}

// mostMemoryOfPage bounds the resident memory while browsers follow the page.
const mostMemoryOfPage = 160 << 20

var (
	cpuLine    = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`)
	memoryLine = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)
)

// usage scrapes the CPU time and the resident memory of the process.
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
