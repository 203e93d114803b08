package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
)

// full makes the tests of the proof tier run with the numbers in docs/evidence/performance.md.
var full = flag.Bool("full", false, "the tests of the proof tier with their full numbers: some minutes")

// either returns usual by default and whole with -full.
func either[T any](usual, whole T) T {
	if *full {
		return whole
	}
	return usual
}

// roleVar is the environment variable that gives this test binary a role other than running
// tests.
const roleVar = "NATSLOCK_LOAD_ROLE"

var roles = map[string]func(url string) error{"busy": beBusy}

func TestMain(m *testing.M) {
	kit.Quiet()
	role, url, _ := strings.Cut(os.Getenv(roleVar), " ")
	if run := roles[role]; run != nil {
		if err := run(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	kit.LeakCheck(m)
}

// process starts the test binary in a role. The process ends when its standard input is closed,
// which happens at the end of the test or of this process.
func process(t *testing.T, role, url string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role+" "+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err = cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, in, out
}

// beBusy keeps a core busy.
func beBusy(string) error {
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	for !over.Load() {
	}
	return nil
}

// busy keeps the machine busy until the end of the test, with two processes competing for each
// core.
func busy(t *testing.T) {
	t.Helper()
	for range 2 * runtime.NumCPU() {
		process(t, "busy", "")
	}
}

// takers is the number of goroutines that acquire locks simultaneously.
const takers = 32

// take tries to acquire n locks whose names begin with prefix, each of them once, and stops at
// until unless that is zero. It returns the locks that it got, in order of their names, and the
// number of refusals.
func take(t *testing.T, c *natslock.Client, n int, prefix string, until time.Time) (held []*natslock.Lock, refused int) {
	t.Helper()
	all := make([]*natslock.Lock, n)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for g := range takers {
		wg.Go(func() {
			for i := g; i < n && (until.IsZero() || time.Now().Before(until)); i += takers {
				l, err := c.TryLock(context.Background(), prefix+fmt.Sprint(i), natslock.Detached())
				switch {
				case err == nil:
					all[i] = l
				case until.IsZero() || !errors.Is(err, natslock.ErrUnavailable):
					t.Error(err)
					return
				default:
					failed.Add(1)
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	held = slices.DeleteFunc(all, func(l *natslock.Lock) bool { return l == nil })
	kit.Keep(t, &held)
	return held, int(failed.Load())
}

// meter follows a count over time.
type meter struct {
	mu      sync.Mutex
	samples []sample
}

type sample struct {
	at time.Time
	n  int
}

// follow reads count every 100 ms until the end of the test.
func follow(t *testing.T, count func() int) *meter {
	m := &meter{}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			m.mu.Lock()
			m.samples = append(m.samples, sample{time.Now(), count()})
			m.mu.Unlock()
			select {
			case <-tick.C:
			case <-end:
				tick.Stop()
				return
			}
		}
	})
	t.Cleanup(func() { close(end); wg.Wait() })
	return m
}

// since returns the samples from begin on.
func (m *meter) since(begin time.Time) []sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.samples, begin, func(s sample, at time.Time) int { return s.at.Compare(at) })
	return slices.Clone(m.samples[i:])
}

// windows returns the least and the most by which the count has grown in any period of the
// given length, from begin on.
func (m *meter) windows(begin time.Time, long time.Duration) (least, most int) {
	all := m.since(begin)
	least = -1
	for i, j := 0, 0; j < len(all); j++ {
		for all[j].at.Sub(all[i].at) >= long {
			n := all[j].n - all[i].n
			if most = max(most, n); least < 0 || n < least {
				least = n
			}
			i++
		}
	}
	return max(least, 0), most
}

// doomed returns the number of locks that no order of renewals could have kept. The count shows
// how many renewals were answered from begin on, and ends are the times at which the locks'
// validities would have ended as of begin. A reply in the last second is too late.
func (m *meter) doomed(begin time.Time, ends []time.Time) (n int) {
	all := m.since(begin)
	slices.SortFunc(ends, time.Time.Compare)
	for i, j := 0, 0; i < len(ends); i++ {
		for j < len(all)-1 && all[j+1].at.Before(ends[i].Add(-time.Second)) {
			j++
		}
		n = max(n, i+1-(all[j].n-all[0].n))
	}
	return n
}

// answers counts the writes answered on a connection, each of which brings a reply and the
// notification of the stored record.
func answers(nc *nats.Conn) func() int {
	return func() int { return int(nc.Stats().InMsgs / 2) }
}

// why counts the causes of losses, leaving out the numbers and names in them.
func why(held []*natslock.Lock) string {
	counts := map[string]int{}
	for _, l := range held {
		if err := l.Err(); err != nil {
			_, text, _ := strings.Cut(err.Error(), "): ")
			counts[text]++
		}
	}
	return fmt.Sprint(counts)
}

// quantile returns the q-quantile of took.
func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	took = slices.Sorted(slices.Values(took))
	return took[min(int(float64(len(took))*q), len(took)-1)]
}

// other acquires and releases locks through another client, over and over until the end of the
// test.
type other struct {
	mu   sync.Mutex
	took []time.Duration
}

func beside(t *testing.T, nc *nats.Conn) *other {
	t.Helper()
	c, o := kit.NewClient(t, nc), &other{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			begun := time.Now()
			l, err := c.Lock(ctx, fmt.Sprint("other.", i%100))
			if err != nil {
				return
			}
			took := time.Since(begun)
			_ = l.Unlock(context.Background())
			o.mu.Lock()
			o.took = append(o.took, took)
			o.mu.Unlock()
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return o
}

// times returns the median and the 99th percentile of how long grants took since the last call.
func (o *other) times() (p50, p99 time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p50, p99 = quantile(o.took, 0.5), quantile(o.took, 0.99)
	o.took = nil
	return p50, p99
}
