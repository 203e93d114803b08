//go:build unix

package main_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// locker returns a client inside the test with the given owner name, which the screens show.
func locker(t *testing.T, s *testutil.Server, owner string, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	c, err := natslock.New(t.Context(), s.Connect(), append(opts, natslock.WithOwner(owner))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	return c
}

// crowd sets up locks of several kinds: a contended mutex, an uncontended one, and a reader-writer
// lock with two readers.
func crowd(t *testing.T, s *testutil.Server) {
	t.Helper()
	billing, shipping := locker(t, s, "billing-service-1"), locker(t, s, "shipping-service-2")
	keep := func(l *natslock.Lock, err error) {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Unlock(context.Background()) })
	}
	keep(billing.Lock(t.Context(), "orders.42", natslock.Meta(map[string]string{"ticket": "OPS-1"})))
	keep(billing.Lock(t.Context(), "deploy", natslock.TTL(time.Hour)))
	keep(rwlock.New(billing).RLock(t.Context(), "index"))
	keep(rwlock.New(shipping).RLock(t.Context(), "index"))
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	waiting.Go(func() { _, _ = shipping.Lock(ctx, "orders.42") })
	t.Cleanup(func() { cancel(); waiting.Wait() })
	awaitQueue(t, s, "orders.42", 1)
}

func TestTopScreens(t *testing.T) {
	t.Parallel()
	s := serve(t)
	crowd(t, s)
	v := display(t, s, nil, "top")
	looksLike(t, "top-list", v.shows("locks 3  held 3  waiting 1", "connected", "q quit"))

	v.press("?")
	looksLike(t, "top-help", v.shows("next in at once"))
	v.press(keyEsc)
	v.shows("by queue")
	v.press("jjj" + keyUp + "jb")
	v.shows("Which one?", "reader 2")
	v.resize(120, 24)
	looksLike(t, "top-choose", v.until("a wide screen", func(text string) bool {
		return strings.Count(text, "held  ")+strings.Count(text, "token 2") > 1 && !strings.Contains(text, "…")
	}))
	v.press(keyEsc)
	v.shows("by queue")
	v.press("g" + keyEnter)
	looksLike(t, "top-lock", v.shows("orders.42: held", "queue of 1"))
	v.press("b")
	looksLike(t, "top-confirm", v.shows("Break it?"))
	v.press("n")
	v.shows("nothing was broken")
	v.press("q")
	require.Zero(t, v.ends())
	require.Contains(t, v.output(), "\x1b[?1049l", "the screen from before is back")
	require.Regexp(t, `\x1b\[[0-9;]*3[0-9]m`, v.output(), "colors")
}

func TestTopWithoutColors(t *testing.T) {
	t.Parallel()
	s := serve(t)
	crowd(t, s)
	v := display(t, s, []string{"NO_COLOR=1"}, "top")
	looksLike(t, "top-list", v.shows("locks 3  held 3  waiting 1", "connected", "q quit"))
	v.press("b")
	v.shows("Break it?")
	require.NotRegexp(t, `\x1b\[([0-9;]*;)?(3|4|9|10)[0-9](;[0-9;]*)?m`, v.output())
	v.press("\x03") // Ctrl+C
	require.Zero(t, v.ends())
}

// namesOn returns the listed names in order.
func namesOn(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^[> ](?:mutex|rw|sem)\s+(\S+)`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

func TestTopKeys(t *testing.T) {
	t.Parallel()
	s := serve(t)
	crowd(t, s)
	v := display(t, s, nil, "top")
	order := func(want ...string) {
		t.Helper()
		v.until(strings.Join(want, ", "), func(text string) bool { return fmt.Sprint(namesOn(text)) == fmt.Sprint(want) })
	}
	order("orders.42", "deploy", "index")
	v.press("s")
	v.shows("by wait")
	order("orders.42", "deploy", "index")
	v.press("ssssss") // held, expires, grants, readers, holder, name
	v.shows("by name")
	order("deploy", "index", "orders.42")
	v.press("r")
	v.shows("by name, reversed")
	order("orders.42", "index", "deploy")
	v.press("rssssss")
	v.shows("by readers")
	order("index", "orders.42", "deploy")
	v.press("/orDers")
	order("orders.42")
	v.press(keyEnter)
	v.shows("with orDers: 1")
	v.press(keyEsc)
	order("index", "orders.42", "deploy")
	v.press("/shipping") // owned by a reader
	order("index")
	v.press("x")
	order()
	v.shows("none of the locks")
	v.press(keyEsc)
	order("index", "orders.42", "deploy")
	v.press(keyDown + keyEnter)
	v.shows("orders.42: held", "OPS-1")
	v.press(keyEsc)
	v.shows("by readers")
	v.press("g" + keyEnter)
	v.shows("index: held by 2 readers")
	v.press("q")
	require.Zero(t, v.ends())
}

// TestTopBreak checks that top breaks a lock only after a y, and breaks only the holder shown.
func TestTopBreak(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x")
	token := locks(t, s, "info", "x")[0].Holder.Token
	v := display(t, s, nil, "top", "--reason", "seen on top")
	v.shows("locks 1  held 1")
	v.press("b")
	v.shows("Break it?", uintString(token), "[y/N]")
	v.press("q") // anything but y means no
	v.shows("nothing was broken")
	require.True(t, v.alive())
	require.Nil(t, locks(t, s, "info", "x")[0].Holder.Broken)
	require.True(t, running(p.cmd.Process.Pid))

	v.press("b")
	v.shows("Break it?")
	v.press("y")
	require.Equal(t, 75, p.wait())
	require.Contains(t, p.err.String(), "seen on top")
	v.shows("x broken: free when the holder has stopped", "no locks")
	v.press("b")
	v.hides("Break it?")

	// top breaks the holder that it shows, not a later one.
	p, pid := hold(t, s, "x")
	v.shows("locks 1  held 1")
	v.press("b")
	v.shows("Break it?")
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	p.wait()
	second, _ := hold(t, s, "x")
	v.press("y")
	v.shows("nothing was broken: the holder with token")
	require.Nil(t, locks(t, s, "info", "x")[0].Holder.Broken)
	require.True(t, running(second.cmd.Process.Pid))
}

// TestTopBreakNow breaks a suspended holder, first safely and then immediately, which lets the next
// one in.
func TestTopBreakNow(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p, _ := hold(t, s, "x", "--ttl", "60s", "--owner", hostName(t)) // short enough for its column
	pause(t, p)
	next := start(t, s, "run", "x", "--", "echo", "inside")
	awaitQueue(t, s, "x", 1)
	v := display(t, s, nil, "top")
	v.shows("waiting 1")
	v.press("b")
	v.shows("Break it?")
	v.press("y")
	v.shows("x broken: free when the holder has stopped")
	l := await(t, s, "x", "broken", func(l lock) bool { return l.Holder.Broken != nil })
	require.Len(t, l.Queue, 1)
	v.shows("(broken) ")
	v.press("b")
	v.shows("already broken: ")
	v.press("B")
	v.shows("Break it NOW?")
	v.press("y")
	require.Zero(t, next.wait())
	require.Equal(t, "inside\n", next.out.String())
	v.shows("x broken: free now", "no locks")
}

// TestTopBreakReader checks that top asks which of several readers to break.
func TestTopBreakReader(t *testing.T) {
	t.Parallel()
	s := serve(t)
	first, _ := hold(t, s, "x", "--read")
	second, _ := hold(t, s, "x", "--read")
	v := display(t, s, nil, "top")
	v.until("two readers", func(text string) bool { return regexp.MustCompile(`rw +x +shared 2 `).MatchString(text) })
	v.press("b")
	v.shows("Which one?", "reader 2")
	v.press(keyDown + keyEnter)
	v.shows("Break it? No writer gets in")
	v.press("y")
	require.Equal(t, 75, second.wait())
	v.until("one reader", func(text string) bool { return regexp.MustCompile(`rw +x +shared 1 `).MatchString(text) })
	require.True(t, running(first.cmd.Process.Pid))
}

func TestTopResize(t *testing.T) {
	t.Parallel()
	s := serve(t)
	crowd(t, s)
	v := display(t, s, nil, "top")
	v.shows("locks 3", "…", "q quit")
	token := uintString(locks(t, s, "info", "deploy")[0].Holder.Token)
	require.NotContains(t, v.text(), token)
	v.resize(140, 40)
	text := v.shows(token, "billing-service-1 on ")
	require.Len(t, strings.Split(strings.TrimRight(text, "\n"), "\n"), 40, "the keys are in the last line")
	v.resize(40, 8)
	v.until("a small screen", func(text string) bool {
		lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
		return len(lines) == 8 && len(namesOn(text)) == 2 && strings.Contains(lines[7], "enter open")
	})
	v.press("G")
	v.until("the last one", func(text string) bool { return strings.Contains(text, ">rw") })
	v.resize(5, 2)
	v.resize(80, 24)
	v.shows("locks 3  held 3  waiting 1", "q quit")
	v.press("q")
	require.Zero(t, v.ends())
}

// TestTopOutage checks that top reports an outage, and shows the current locks when the server is
// back.
func TestTopOutage(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	v := display(t, s, nil, "top")
	v.shows("connected", "no locks")
	require.NoError(t, jetStream(t, s).DeleteStream(t.Context(), "KV_natslock"))
	v.shows("no bucket")
	withBucket(t, s)
	hold(t, s, "a", "--ttl", "60s")
	v.shows("connected", "locks 1")
	s.Stop()
	v.shows("disconnected for", "locks 1")
	v.press("b")
	v.shows("Break it?")
	v.press("n")
	s.Restart()
	v.hides("disconnected")
	hold(t, s, "b")
	text := v.shows("locks 2  held 2")
	require.ElementsMatch(t, []string{"a", "b"}, namesOn(text))
	s.Stop()
	v.shows("disconnected for")
	require.NoError(t, v.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, v.ends(), "it can be ended without a server")
}

// TestTopWithoutBucket checks that top exits before it draws its screen if there is no bucket.
func TestTopWithoutBucket(t *testing.T) {
	t.Parallel()
	v := display(t, testutil.RunServer(t), nil, "top")
	require.Equal(t, 78, v.ends())
	require.Contains(t, v.output(), "there is no bucket natslock")
}

func TestTopRates(t *testing.T) {
	t.Parallel()
	s := serve(t)
	v := display(t, s, nil, "top")
	v.shows("locks 0", "grants 0.0/s  hand-overs 0.0/s", "connected")
	// The rates cover the last 4 s, so the clients keep taking and releasing the lock.
	contend := func(clients int) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range clients {
			c, err := natslock.New(t.Context(), s.Connect())
			require.NoError(t, err)
			wg.Go(func() {
				for ctx.Err() == nil {
					assert.NoError(t, c.Do(context.WithoutCancel(ctx), "y", func(context.Context, *natslock.Lock) error {
						time.Sleep(50 * time.Millisecond)
						return nil
					}))
				}
				assert.NoError(t, c.Close(context.Background()))
			})
		}
		return func() { cancel(); wg.Wait() }
	}
	stop := contend(1)
	v.until("grants", func(text string) bool {
		return regexp.MustCompile(`grants \d*(\.[1-9]|[1-9]\.\d)/s  hand-overs 0\.0/s`).MatchString(text)
	})
	stop()
	hold(t, s, "x")
	start(t, s, "run", "x", "--", "sh", "-c", "exec sleep 60")
	awaitQueue(t, s, "x", 1)
	v.until("a wait", func(text string) bool {
		return regexp.MustCompile(`waiting 1 .* longest wait [\d.]+m?s`).MatchString(text)
	})
	stop = contend(2)
	v.until("hand-overs", func(text string) bool {
		return regexp.MustCompile(`hand-overs \d*(\.[1-9]|[1-9]\.\d)/s`).MatchString(text)
	})
	stop()
}

// TestTopRenewals checks that a renewal updates the remaining lease on the screen.
func TestTopRenewals(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	hold(t, s, "x", "--ttl", "3s")
	v := display(t, s, nil, "top")
	// The lock has been held for less than 10 s, so top has not yet reread everything and must have
	// seen the renewal as an event.
	v.until("a lease that goes on", func(text string) bool {
		return regexp.MustCompile(`mutex x .* [4-9]\.\ds +[1-3]\.\ds `).MatchString(text)
	})
}

// TestTopHostileName checks that another client's lock names and metadata cannot control the
// terminal.
func TestTopHostileName(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "a\x1b[31mb", "--meta", "k=\x1b]0;title\a")
	v := display(t, s, []string{"NO_COLOR=1"}, "top")
	v.shows("locks 1", `"a\x1b[31mb"`)
	v.press(keyEnter)
	v.shows(`\x1b]0;title`)
	v.press("b")
	v.shows("Break it?")
	require.NotContains(t, v.output(), "\x1b[31m")
	require.NotContains(t, v.output(), "\x1b]0;title")
}

func TestTopRefuses(t *testing.T) {
	t.Parallel()
	s := serve(t)
	code, out, errs := run(t, s, "top")
	require.Equal(t, 64, code)
	require.Empty(t, out)
	require.Contains(t, errs, "needs a terminal")
	v := display(t, s, []string{"TERM=dumb"}, "top")
	require.Equal(t, 64, v.ends())
	v = display(t, s, []string{"NATS_URL=nats://127.0.0.1:1"}, "top")
	require.Equal(t, 69, v.ends())
	require.Contains(t, v.text(), "no server at nats://127.0.0.1:1")
	v = display(t, s, nil, "top", "")
	require.Equal(t, 64, v.ends())
	require.Contains(t, v.text(), "lockctl:", "said where it can be read")
}

// TestTopTenThousand checks that top stays responsive with 10,000 locks.
func TestTopTenThousand(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := locker(t, s, "billing-service-1", natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
	const n = 10_000
	held := make([]*natslock.Lock, n)
	begun := time.Now()
	var taking sync.WaitGroup
	for part := range 32 {
		taking.Go(func() {
			for i := part; i < n; i += 32 {
				l, err := c.TryLock(context.Background(), fmt.Sprintf("part.%05d", i), natslock.TTL(time.Hour), natslock.Detached())
				if err == nil {
					held[i] = l
				}
			}
		})
	}
	taking.Wait()
	took := time.Since(begun)
	begun = time.Now()
	v := display(t, s, nil, "top")
	v.shows("locks 10000  held 10000", "part.00000")
	listed := time.Since(begun)
	begun = time.Now()
	v.press("G")
	v.shows("part.09999")
	moved := time.Since(begun)
	begun = time.Now()
	v.press("/part.0777")
	v.until("ten of them", func(text string) bool { return len(namesOn(text)) == 10 })
	filtered := time.Since(begun)
	begun = time.Now()
	require.NoError(t, held[7770].Unlock(context.Background()))
	v.until("it is free", func(text string) bool { return strings.Contains(lineOf(text, "part.07770"), " free ") })
	t.Logf("taken in %v, listed in %v, a key in %v, a filter in %v, an event in %v", took, listed, moved, filtered, time.Since(begun))
	v.until("nine of them", func(text string) bool { return len(namesOn(text)) == 9 })
	v.press(keyEnter + "q")
	require.Zero(t, v.ends())
}
