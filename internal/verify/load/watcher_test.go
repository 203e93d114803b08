//go:build unix

package load

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func init() { roles["watcher"] = beWatcher }

// seen is what a watcher has seen so far.
type seen struct {
	Events, Grants, Renewals int
	Marks                    int
	Since                    time.Time     // of the last mark
	Known                    int           // locks shown by a grant, or by a list after a mark
	Late                     time.Duration // the longest delay between a write and its event since the last report
	Err                      string
}

// beWatcher watches all locks and lists them after each mark. For each line on its standard input
// it reports what it has seen.
func beWatcher(url string) error {
	nc, err := nats.Connect(url, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // the default handler would print what is dropped
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx := context.Background()
	c, err := natslock.New(ctx, nc, natslock.WithCreate(false))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var s seen
	known := map[string]bool{}
	list := make(chan struct{}, 1)
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		s.Err = err.Error()
	}
	go func() {
		for range list {
			for info, err := range admin.New(c).List(ctx, ">") {
				if err != nil {
					fail(err)
					break
				}
				mu.Lock()
				known[info.Name] = true
				mu.Unlock()
			}
		}
	}()
	go func() {
		for ev, err := range admin.New(c).Watch(ctx, ">") {
			if err != nil {
				fail(err)
				return
			}
			mu.Lock()
			s.Events++
			switch ev.Type {
			case admin.EventWatching:
				s.Marks++
				s.Since = ev.Since
				select {
				case list <- struct{}{}:
				default:
				}
			case admin.EventGranted:
				s.Grants++
				known[ev.Name] = true
			case admin.EventRenewed:
				s.Renewals++
			}
			if ev.Type != admin.EventWatching {
				s.Late = max(s.Late, time.Since(ev.Time))
			}
			mu.Unlock()
		}
	}()
	say := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		mu.Lock()
		s.Known = len(known)
		err := say.Encode(s)
		s.Late = 0
		mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// watcher is a process that watches all locks.
type watcher struct {
	t   *testing.T
	in  io.Writer
	out *json.Decoder
	pid int
}

func startWatcher(t *testing.T, s *testutil.Server) *watcher {
	t.Helper()
	cmd, in, out := process(t, "watcher", s.URL())
	w := &watcher{t, in, json.NewDecoder(out), cmd.Process.Pid}
	w.until("it watches", func(s seen) bool { return s.Marks > 0 })
	return w
}

func (w *watcher) report() (s seen) {
	w.t.Helper()
	_, err := io.WriteString(w.in, "report\n")
	require.NoError(w.t, err)
	require.NoError(w.t, w.out.Decode(&s))
	require.Empty(w.t, s.Err)
	return s
}

// until polls the watcher until it has seen enough.
func (w *watcher) until(what string, enough func(s seen) bool) seen {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		s := w.report()
		if enough(s) {
			return s
		}
		require.True(w.t, time.Now().Before(end), "%s: %+v", what, s)
	}
}

func (w *watcher) signal(sig syscall.Signal) {
	w.t.Helper()
	require.NoError(w.t, syscall.Kill(w.pid, sig))
}

// TestStoppedWatcher stops a watching process for at least 2 s while 20,000 locks are taken. In
// the end the process knows all of them, even if nats.go has dropped notifications, in which case
// a mark says since when.
func TestStoppedWatcher(t *testing.T) {
	tier.Proof(t)
	const locks, stop = 20_000, 2 * time.Second
	s := testutil.RunServer(t)
	c := kit.NewClient(t, s.Connect(), natslock.WithTTL(time.Minute))
	w := startWatcher(t, s)
	w.signal(syscall.SIGSTOP)
	stopped := time.Now()
	take(t, c, locks, "", time.Time{})
	time.Sleep(stop - time.Since(stopped))
	w.signal(syscall.SIGCONT)
	end := w.until("it knows all locks", func(s seen) bool { return s.Known == locks })
	t.Logf("after %v: %+v", time.Since(stopped), end)
	if end.Grants < locks {
		require.Greater(t, end.Marks, 1)
		require.WithinRange(t, end.Since, stopped.Add(-time.Second), time.Now())
	}
}

// TestWatcherKeepsUp has a process watch 20,000 locks that are renewed every second.
func TestWatcherKeepsUp(t *testing.T) {
	tier.Proof(t)
	const locks, ttl, during = 20_000, 3 * time.Second, 10 * time.Second
	s := testutil.RunServer(t)
	c := kit.NewClient(t, s.Connect(), natslock.WithTTL(ttl))
	w := startWatcher(t, s)
	take(t, c, locks, "", time.Time{})
	time.Sleep(ttl)
	delay := machine.Lateness(t)
	before, renewed := w.report(), c.Stats().Renewed
	begun := time.Now()
	var late time.Duration
	for time.Since(begun) < during {
		time.Sleep(500 * time.Millisecond)
		late = max(late, w.report().Late)
	}
	total := int(c.Stats().Renewed - renewed)
	after := w.report()
	t.Logf("%d renewals, the watcher has seen %d in %v, at most %v late, with %d marks", total, after.Renewals-before.Renewals, time.Since(begun), late, after.Marks)
	if stood := delay(); stood > 200*time.Millisecond {
		t.Logf("the machine has stood for %v: nothing to judge", stood)
		return
	}
	w.until("it sees all renewals", func(s seen) bool { return s.Renewals-before.Renewals >= total })
	require.Equal(t, 1, w.report().Marks)
}
