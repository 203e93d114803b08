//go:build unix

package main_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// cycle has clients take turns with a lock until stop is called.
func cycle(t *testing.T, s *testutil.Server, name string, clients int, inside time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var cycling sync.WaitGroup
	for i := range clients {
		c := locker(t, s, fmt.Sprintf("worker-%d", i))
		cycling.Go(func() {
			for ctx.Err() == nil {
				assert.NoError(t, c.Do(context.WithoutCancel(ctx), name, func(context.Context, *natslock.Lock) error {
					time.Sleep(inside)
					return nil
				}))
			}
		})
	}
	end := sync.OnceFunc(func() { cancel(); cycling.Wait() })
	t.Cleanup(end)
	return end
}

// lineOf returns the line of the list that shows the lock.
func lineOf(text, name string) string {
	return regexp.MustCompile(`(?m)^[> ](?:mutex|rw|sem)\s+` + regexp.QuoteMeta(name) + `\s.*`).FindString(text)
}

// keepHeld acquires locks that stay held, each in a different millisecond.
func keepHeld(t *testing.T, c *natslock.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := c.TryLock(t.Context(), name, natslock.TTL(time.Hour))
		require.NoError(t, err)
		for taken := time.Now().UnixMilli(); time.Now().UnixMilli() == taken; {
			runtime.Gosched()
		}
	}
}

// TestTopFindsHotLock checks that one hot lock among 500 stays readable on the screen without a key
// pressed, even while it constantly changes hands.
func TestTopFindsHotLock(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := locker(t, s, "billing-service-1")
	for i := range 499 {
		keepHeld(t, c, fmt.Sprintf("orders.%04d", i))
	}
	stop := cycle(t, s, "zz.hot", 6, 5*time.Millisecond)
	v := display(t, s, nil, "top")
	v.shows("locks 500  held ", "zz.hot")
	stays := func(text string) bool {
		names := namesOn(text)
		return len(names) > 15 && slices.Contains(names[:3], "zz.hot")
	}
	for range 50 { // frames
		before := v.output()
		text := v.until("the hot lock", stays)
		m := regexp.MustCompile(` (\d+) +\S+ +\S+$`).FindStringSubmatch(lineOf(text, "zz.hot"))
		require.NotNil(t, m, text)
		queue, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.LessOrEqual(t, queue, 6, "there are six clients")
		v.until("another frame", func(string) bool { return len(v.output()) > len(before) })
	}
	v.until("a queue and a rate", func(text string) bool {
		return regexp.MustCompile(`[1-5] +[\d.]+m?s +[\d.]+/s$`).MatchString(lineOf(text, "zz.hot"))
	})
	stop()
}

// TestTopShortHolds checks that top shows even a lock that is released right after it is acquired.
func TestTopShortHolds(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := locker(t, s, "billing-service-1")
	v := display(t, s, nil, "top")
	v.shows("connected", "no locks")
	var took []time.Duration
	for i := range 20 {
		l, err := c.Lock(t.Context(), fmt.Sprintf("short.%d", i))
		require.NoError(t, err)
		begun := time.Now()
		require.NoError(t, l.Unlock(t.Context()))
		v.shows(fmt.Sprintf("short.%d ", i))
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	t.Logf("on the screen after %v in the middle, at most %v", took[len(took)/2], took[len(took)-1])
	v.shows("no locks")
}

// TestTopFrames checks that top draws at most 30 frames a second, however many events arrive.
func TestTopFrames(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	v := display(t, s, nil, "top")
	v.shows("connected", "no locks")
	stop := cycle(t, s, "hot", 2, 0)
	v.shows(" hot ")
	begun, before := time.Now(), v.written()
	events := watch(t, s, "hot")
	count := func() int { return strings.Count(events.out.String(), "\n") }
	kit.Eventually(t, "many events", func() bool { return count() > 1000 })
	frames, over := v.written()-before, time.Since(begun)
	t.Logf("%d events, %d writes in %v", count(), frames, over)
	require.Less(t, float64(frames), 45*over.Seconds(), "some frames come in two parts")
	stop()
}

// TestTopSelectionWithoutColors checks that the selection is visible without colors.
func TestTopSelectionWithoutColors(t *testing.T) {
	t.Parallel()
	s := serve(t)
	keepHeld(t, locker(t, s, "billing-service-1"), "a", "b")
	v := display(t, s, []string{"NO_COLOR=1"}, "top", "--sort", "name")
	v.shows(">mutex a ", " mutex b ")
	v.press("j")
	v.shows(" mutex a ", ">mutex b ")
}

// TestTopLongNames checks that a narrow screen shows enough of two names to distinguish them even
// if they differ only at the end, and that a wide screen shows them in full.
func TestTopLongNames(t *testing.T) {
	t.Parallel()
	s := serve(t)
	name := "production.europe-west1.customers.invoices.monthly."
	keepHeld(t, locker(t, s, "billing-service-with-a-very-long-name-1"), name+"0001", name+"0002")
	v := display(t, s, nil, "top")
	v.shows("locks 2")
	text := v.shows(".0001 ", ".0002 ", "mutex prod", "q quit")
	require.Regexp(t, `mutex \S+….*….*:\d+ `, text, "the holder has its end too")
	v.resize(140, 24)
	v.shows(name+"0001 ", name+"0002 ")
}

// TestTopASCII checks that a terminal in the C locale receives only ASCII, regardless of the names.
func TestTopASCII(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{{"LC_ALL=C"}, {"LC_ALL=", "LC_CTYPE=POSIX", "LANG=de_DE.UTF-8"}, {"LC_ALL=", "LC_CTYPE=", "LANG="}} {
		t.Run(strings.Join(env, " "), func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			keepHeld(t, locker(t, s, "Zoë's billing-service"), "größe.der.bestellungen.im.letzten.monat.1", "ß.2")
			v := display(t, s, env, "top", "--sort", "name")
			v.shows("locks 2", `"\u00df.2"`, `monat.1" `, "~", "q quit")
			v.press("?")
			v.shows("next in at once")
			v.press(keyEsc)
			v.shows("by name")
			v.press(keyEnter)
			v.shows(`monat.1": held`, "events since")
			v.press("bn")
			v.shows("nothing was broken")
			v.press(keyEsc)
			v.shows("by name")
			v.press("/ß.2")
			v.until("one lock", func(text string) bool { return len(namesOn(text)) == 1 })
			v.resize(20, 10)
			v.shows("~")
			v.press("\x03")
			require.Zero(t, v.ends())
			require.False(t, strings.ContainsFunc(v.output(), func(r rune) bool { return r > unicode.MaxASCII }))
		})
	}
}

// TestTopStaysAtTop checks that until a key is pressed, the first line stays selected and the view
// stays at the top, even if a new lock sorts first. A selection that the user has moved follows its
// lock.
func TestTopStaysAtTop(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := locker(t, s, "billing-service-1")
	keepHeld(t, c, "m")
	v := display(t, s, nil, "top", "--sort", "name")
	v.shows(">mutex m ", "connected")
	for i := range 40 {
		keepHeld(t, c, fmt.Sprintf("b.%02d", i))
	}
	text := v.shows("locks 41", ">mutex b.00 ")
	require.Equal(t, "b.00", namesOn(text)[0])
	v.press("j")
	v.shows(">mutex b.01 ")
	keepHeld(t, c, "a")
	v.shows("locks 42", " mutex a ", ">mutex b.01 ")
	v.press("g")
	v.shows(">mutex a ")
	keepHeld(t, c, "A")
	v.shows("locks 43", ">mutex A ")
}

// TestTopSort checks that --sort sets the initial order.
func TestTopSort(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c, other := locker(t, s, "billing-service-1"), locker(t, s, "billing-service-0")
	keepHeld(t, c, "b.old")
	keepHeld(t, other, "a.new")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for _, name := range []string{"c.long", "d.two"} {
		keepHeld(t, c, name)
		waiters := map[string]int{"c.long": 1, "d.two": 2}[name]
		for range waiters {
			waiter := locker(t, s, "waiter")
			waiting.Go(func() { _, _ = waiter.Lock(ctx, name) })
		}
		awaitQueue(t, s, name, waiters)
	}
	t.Cleanup(func() { cancel(); waiting.Wait() })
	for order, want := range map[string]string{
		"":       "[d.two c.long a.new b.old]",
		"queue":  "[d.two c.long a.new b.old]",
		"wait":   "[c.long d.two a.new b.old]",
		"held":   "[b.old a.new c.long d.two]",
		"name":   "[a.new b.old c.long d.two]",
		"holder": "[a.new d.two c.long b.old]",
	} {
		args := []string{"top"}
		if order != "" {
			args = append(args, "--sort", order)
		}
		v := display(t, s, nil, args...)
		v.until(want+" by "+order, func(text string) bool { return fmt.Sprint(namesOn(text)) == want })
		v.shows("by " + order)
		v.press("q")
		require.Zero(t, v.ends())
	}
	stop := cycle(t, s, "e.busy", 1, time.Millisecond)
	v := display(t, s, nil, "top", "--sort", "grants")
	v.until("the busy lock first", func(text string) bool {
		names := namesOn(text)
		return len(names) == 5 && names[0] == "e.busy" && regexp.MustCompile(`\d/s$`).MatchString(lineOf(text, "e.busy"))
	})
	stop()
	v = display(t, s, nil, "top", "--sort", "size")
	require.Equal(t, 64, v.ends())
}

// TestTopLeaseEndsInOutage checks that a lease that ends during an outage is not shown as held, and
// that top mentions both possibilities: the server may have renewed it or may remove it late.
func TestTopLeaseEndsInOutage(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := locker(t, s, "billing-service-1")
	_, err := c.TryLock(t.Context(), "short", natslock.TTL(6*time.Second), natslock.NoRenew())
	require.NoError(t, err)
	keepHeld(t, c, "long")
	v := display(t, s, nil, "top", "--sort", "name")
	v.shows("locks 2  held 2", "connected")
	s.Stop()
	text := v.shows("disconnected for", "locks 2  held 1", "As last read")
	require.Regexp(t, `short +unknown +\S.*- +ended `, lineOf(text, "short"))
	require.Regexp(t, `long +excl +\S.*[hms] `, lineOf(text, "long"))
	v.press("j" + keyEnter)
	v.shows("mutex short: unknown, its lease has ended (as last read: disconnected)", "ago, unless renewed since")
	v.press(keyEsc)
	kit.ForgetTTLs(t, s)
	s.Restart()
	v.until("an overdue lock", func(text string) bool {
		return strings.Contains(text, "connected") && !strings.Contains(text, "disconnected") &&
			regexp.MustCompile(`short +overdue +\S.*- overdue `).MatchString(lineOf(text, "short"))
	})
	v.shows("locks 2  held 1")
}

// TestTopHistory checks that a lock's screen lists a bounded number of events, the latest first,
// and reports those that were missed.
func TestTopHistory(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := locker(t, s, "billing-service-1")
	v := display(t, s, nil, "top", "--sort", "name")
	v.shows("connected", "no locks")
	v.resize(120, 260) // before there is much to draw, because the terminal and top do not resize simultaneously
	v.until("a tall screen", func(text string) bool {
		return strings.Count(text[:max(strings.LastIndex(text, "q quit"), 0)], "\n") == 259
	})

	l, err := c.Lock(t.Context(), "x", natslock.TTL(time.Hour))
	require.NoError(t, err)
	impatient, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() { _, _ = locker(t, s, "impatient-3").Lock(impatient, "x") })
	awaitQueue(t, s, "x", 1)
	cancel()
	waiting.Wait()
	code, _, errs := run(t, s, "break", "-f", "--reason", "tired of it", "x")
	require.Zero(t, code, errs)
	<-l.Context().Done()
	require.Error(t, l.Unlock(t.Context()))
	l, err = c.Lock(t.Context(), "x")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(t.Context()))
	v.press(keyEnter)
	text := v.until("both releases", func(text string) bool {
		return strings.Contains(text, "mutex x: free") && strings.Contains(text, "events since") && strings.Count(text, "released ") == 2
	})
	var happened []string
	for _, m := range regexp.MustCompile(`(?m)^    \d\d:\d\d:\d\d\.\d{3}  (\w+(?: up)?) .*(?:billing-service-1|impatient-3) on`).FindAllStringSubmatch(text, -1) {
		happened = append(happened, m[1])
	}
	require.Equal(t, []string{"released", "granted", "released", "broken", "gave up", "queued", "granted"}, happened, text)
	require.Contains(t, text, ": tired of it")

	for range 150 {
		l, err = c.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	}
	v.until("200 events, the last among them", func(text string) bool {
		return strings.Count(text, "token "+uintString(l.Token())) == 2 && !strings.Contains(text, "broken") && len(regexp.MustCompile(`granted +billing`).FindAllString(text, -1)) == 100 &&
			strings.Count(text, "released  billing") == 100
	})
	s.Stop()
	v.shows("disconnected for", "free (as last read: disconnected)")
	s.Restart()
	v.shows("were missed", "connected")
	v.press("q")
	require.Zero(t, v.ends())
}
