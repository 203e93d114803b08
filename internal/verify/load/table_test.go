package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// The tests in this file use real servers and links. They measure what a service can carry: how many writes it
// accepts in two thirds of a validity, which is the time in which each lock is renewed, in the worst such period. If
// that number covers all locks, none is lost. Otherwise at least that many are kept.
const validity = session.DefaultTTL - time.Second

// TestNarrowLinkTCP holds 5,000 locks over a link that carries 700 writes per second, or 1,300 on a busy machine. The
// locks need 357, and the client wants 1,000.
func TestNarrowLinkTCP(t *testing.T) {
	tier.Proof(t)
	const locks = 5000
	for _, c := range []struct {
		rate int
		busy bool
	}{{700, false}, {1300, true}} {
		t.Run(fmt.Sprint(c.rate), func(t *testing.T) {
			s := testutil.RunServer(t)
			link := proxy.NewNarrow(t, s.URL())
			nc, err := nats.Connect(link.URL())
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			client := kit.NewClient(t, nc)
			held, _ := take(t, client, locks, "", time.Time{})
			if c.busy {
				busy(t)
			}
			passed := follow(t, link.Passed)
			begun := time.Now()
			link.Carry(c.rate)
			time.Sleep(validity)
			least, _ := passed.windows(begun, validity*2/3) // later, fewer may be wanted because locks have been lost
			time.Sleep(either(20*time.Second, 45*time.Second) - validity)
			n := alive(held)
			link.Carry(0)
			t.Logf("%d of %d are left, %d writes in %v, at least %d in each %v", n, locks, link.Passed(), time.Since(begun), least, validity*2/3)
			require.GreaterOrEqual(t, n, min(locks, least), "%s", why(held))
		})
	}
}

// TestRestartOfMany restarts the server under 50,000 locks on a busy machine.
func TestRestartOfMany(t *testing.T) {
	tier.Proof(t)
	locks := either(30_000, 50_000)
	s := testutil.RunServer(t)
	nc := s.Connect()
	c := kit.NewClient(t, nc)
	held, _ := take(t, c, locks, "", time.Time{})
	time.Sleep(2 * time.Second) // their watches begin, each with a renewal
	busy(t)
	answered := follow(t, answers(nc))
	time.Sleep(time.Second)
	ends := make([]time.Time, locks)
	begun := time.Now()
	for i, l := range held {
		ends[i] = kit.ValidUntil(l)
	}
	s.Restart()
	away := time.Since(begun)
	time.Sleep(validity - away)
	doomed := answered.doomed(begun, ends)
	least, most := answered.windows(begun.Add(away), validity*2/3) // later, fewer may be wanted because locks have been lost
	time.Sleep(5 * time.Second)
	n := alive(held)
	t.Logf("%d of %d are left after %v, no order keeps %d, %d to %d answers in each %v: %s", n, locks, away, doomed, least, most, validity*2/3, why(held))
	require.GreaterOrEqual(t, n, min(locks-doomed, least), "%s", why(held))
}

// TestMoreThanItCarries takes more locks on a busy machine than their link, which carries 4,000 writes per second,
// can renew. With -full the machine itself is the limit. The client then acquires no more locks and loses none.
func TestMoreThanItCarries(t *testing.T) {
	tier.Proof(t)
	ttl, locks, rate, during := 5*time.Second, 100_000, 4_000, 10*time.Second
	if *full {
		ttl, locks, rate, during = session.DefaultTTL, 150_000, 0, 2*time.Minute
	}
	valid := ttl - min(ttl/10, time.Second)
	s := testutil.RunServer(t)
	link := proxy.NewNarrow(t, s.URL())
	nc, err := nats.Connect(link.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	c := kit.NewClient(t, nc, natslock.WithTTL(ttl))
	busy(t)
	passed := follow(t, link.Passed)
	begun := time.Now()
	link.Carry(rate)
	held, refused := take(t, c, locks, "", begun.Add(during))
	took := time.Since(begun)
	time.Sleep(valid)
	least, most := passed.windows(begun.Add(valid), valid*2/3)
	n := alive(held)
	link.Carry(0)
	t.Logf("%d of %d are left, taken in %v, %d refusals, %d to %d writes in each %v", n, len(held), took, refused, least, most, valid*2/3)
	require.Less(t, len(held), locks, "the service can carry all")
	require.GreaterOrEqual(t, n, min(len(held), least), "%s", why(held))
}

// TestHeldByFour has four clients hold 100,000 locks with -full, and a fifth of that otherwise. Each lock is renewed
// in every third of its TTL, and none is lost.
func TestHeldByFour(t *testing.T) {
	tier.Proof(t)
	const clients, every = 4, session.DefaultTTL / 3
	locks := either(20_000, 100_000)
	s := testutil.RunServer(t)
	var held []*natslock.Lock
	var all []*natslock.Client
	var conns []*nats.Conn
	for range clients {
		nc := s.Connect()
		c := kit.NewClient(t, nc)
		l, _ := take(t, c, locks/clients, fmt.Sprintf("%d.", len(all)), time.Time{})
		held, all, conns = append(held, l...), append(all, c), append(conns, nc)
	}
	time.Sleep(2*time.Second + every) // their watches begin, each with a renewal
	answered := func() (n int) {
		for _, nc := range conns {
			n += answers(nc)()
		}
		return n
	}
	o := beside(t, s.Connect())
	begun, before := time.Now(), answered()
	var lag time.Duration
	for time.Since(begun) < either(3*every, 12*every) {
		time.Sleep(every / 10)
		for _, c := range all {
			lag = max(lag, c.Stats().RenewalLag)
		}
	}
	renewals := float64(answered()-before) / time.Since(begun).Seconds()
	wanted := float64(locks) / every.Seconds()
	p50, p99 := o.times()
	t.Logf("%d of %d are left; %.0f renewals a second, wanted %.0f; at most %v late; a grant of another client takes %v, 99 of 100 within %v",
		alive(held), locks, renewals, wanted, lag, p50, p99)
	require.Equal(t, locks, alive(held), "%s", why(held))
	require.InDelta(t, wanted, renewals, wanted/10)
	for _, c := range all {
		require.NoError(t, c.Healthy())
	}
}

// TestReconnectSpreadsTCP cuts the connection of 10,000 locks once. The renewals that follow are spread, and another
// client acquires its locks as fast as before.
func TestReconnectSpreadsTCP(t *testing.T) {
	tier.Proof(t)
	const locks, part = 10_000, 500 * time.Millisecond
	s := testutil.RunServer(t)
	nc, link := s.ConnectLink()
	c := kit.NewClient(t, nc)
	o := beside(t, s.Connect())
	late := machine.Lateness(t)
	held, _ := take(t, c, locks, "", time.Time{})
	renewed := follow(t, func() int { return int(c.Stats().Renewed) })
	time.Sleep(2 * time.Second)
	o.times()
	time.Sleep(session.DefaultTTL / 3)
	before50, before99 := o.times()
	cut := time.Now()
	link.Cut()
	link.Heal()
	time.Sleep(session.DefaultTTL)
	during50, during99 := o.times()
	after := time.Now()
	time.Sleep(2 * session.DefaultTTL / 3)
	after50, after99 := o.times()
	_, burst := renewed.windows(cut, part)
	least, most := renewed.windows(after, part)
	mean := locks * int(part) / int(session.DefaultTTL/3)
	t.Logf("renewals in %v: %d at most after the cut, then %d to %d, %d in the mean", part, burst, least, most, mean)
	t.Logf("the other client's p50 and p99: %v %v, for %v after the cut %v %v, then %v %v", before50, before99, session.DefaultTTL, during50, during99, after50, after99)
	require.Equal(t, locks, alive(held))
	require.Less(t, most, 3*mean+2*mean*int(late())/int(part)) // what the machine has delayed arrives together
	require.NoError(t, c.Healthy())
}
