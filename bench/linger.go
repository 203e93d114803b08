package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// The figures of locks that linger. Times are in seconds.
const (
	readP50   = "read_p50"   // an uncontended RLock and Unlock
	readP99   = "read_p99"   //
	idleLock  = "idle_lock"  // from another client's Lock to its grant, of an idle lock
	idlePlace = "idle_place" // of that, from its place in the queue on
	idleTry   = "idle_try"   // the same, of TryLock
	heldLock  = "held_lock"  // from Unlock to the grant of another client that waits
)

// lingerFor is short: locks that are idle after a step must not cost anything in the next
// steps.
const lingerFor = time.Second

var lingerSide = Side{
	Name: "natslock, Linger", Server: "nats", Only: []string{stepCycle, stepThroughput, stepContention, stepReader, stepIdle},
	Setup: "natslock with `Linger(time.Second)`: the client keeps the lock until another client asks",
	Open: func(ctx context.Context, s *Servers) (Client, error) {
		c, err := openNatslock(ctx, s)
		if err != nil {
			return nil, err
		}
		c.opts = []natslock.LockOption{natslock.Linger(lingerFor)}
		return c, nil
	},
}

// lingerSteps are the steps that only [lingerSide] has.
func lingerSteps(d time.Duration) []step {
	return []step{
		{title: stepReader, named: true, run: func(ctx context.Context, o *opened, name string) (Figures, error) {
			c := o.clients[0].(*natslockClient)
			got, err := cycles(ctx, &reader{c, rwlock.New(c.Client)}, name, d, &o.audit)
			return Figures{readP50: got[cycleP50], readP99: got[cycleP99]}, err
		}},
		{title: stepIdle, named: true, run: func(ctx context.Context, o *opened, name string) (Figures, error) {
			var queued atomic.Pointer[time.Time]
			asker, err := openNatslock(ctx, o.servers, admin.WithObserver(func(_ context.Context, ev admin.Event) {
				if ev.Type == admin.EventQueued {
					queued.Store(&ev.Time)
				}
			}))
			if err != nil {
				return nil, err
			}
			defer asker.Close()
			return idleHandOvers(ctx, o.clients[0].(*natslockClient), asker, &queued, name, d, &o.audit)
		}},
	}
}

// reader reads. Readers of one client share a token, so it is no [Fencer].
type reader struct {
	c  *natslockClient
	rw *rwlock.RWLock
}

func (r *reader) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := r.rw.RLock(ctx, name, r.c.opts...)
	if err != nil {
		return nil, err
	}
	return l.Unlock, nil
}

func (r *reader) Close() { r.c.Close() }

// idleHandOvers has a client take a lock that another client keeps idle, by Lock and by
// TryLock. In turn with these it takes a lock that the other client holds. queued is when
// it got its last place.
func idleHandOvers(ctx context.Context, owner, asker *natslockClient, queued *atomic.Pointer[time.Time], name string, d time.Duration, a *audit) (Figures, error) {
	var p protected
	defer a.add(&p)
	took := map[string][]time.Duration{}
	for end := time.Now().Add(d); len(took[heldLock]) < 5 || time.Now().Before(end); {
		for figure, lock := range map[string]func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){
			idleLock: asker.Client.Lock, idleTry: asker.TryLock,
		} {
			if err := under(ctx, owner, name, &p); err != nil {
				return nil, err
			}
			time.Sleep(settle)
			begun := time.Now()
			l, err := lock(ctx, name)
			if err != nil {
				return nil, fmt.Errorf("an idle lock: %w", err)
			}
			now := time.Now()
			took[figure] = append(took[figure], now.Sub(begun))
			if place := queued.Swap(nil); place != nil && figure == idleLock { // else it was free already
				took[idlePlace] = append(took[idlePlace], now.Sub(*place))
			}
			p.leave(p.enter(l.Token()))
			if err := l.Unlock(ctx); err != nil {
				return nil, err
			}
		}
		handed, err := handOver(ctx, owner, asker, name, &p)
		if err != nil {
			return nil, err
		}
		took[heldLock] = append(took[heldLock], handed)
	}
	figures := Figures{}
	for figure, all := range took {
		slices.Sort(all)
		figures[figure] = quantile(all, 0.5)
	}
	return figures, nil
}

// handOver takes the time from the Unlock of one client to the grant of another client that
// waits. Neither lingers.
func handOver(ctx context.Context, from, to *natslockClient, name string, p *protected) (time.Duration, error) {
	held, err := from.Client.Lock(ctx, name)
	if err != nil {
		return 0, err
	}
	entered := p.enter(held.Token())
	type grant struct {
		l   *natslock.Lock
		at  time.Time
		err error
	}
	got := make(chan grant, 1)
	go func() {
		l, err := to.Client.Lock(ctx, name)
		got <- grant{l, time.Now(), err}
	}()
	for to.Stats().Waiting == 0 && ctx.Err() == nil {
		time.Sleep(100 * time.Microsecond)
	}
	time.Sleep(settle)
	p.leave(entered)
	released := time.Now()
	if err := held.Unlock(ctx); err != nil {
		return 0, err
	}
	g := <-got
	if g.err != nil {
		return 0, g.err
	}
	p.leave(p.enter(g.l.Token()))
	return g.at.Sub(released), g.l.Unlock(ctx)
}

// lingered says whether locks that linger were measured.
func (r *Result) lingered() bool {
	return slices.ContainsFunc(r.Classes, func(c *ClassResult) bool { return len(c.side(lingerSide.Name).Figures) > 0 })
}

// lingerTable is the Markdown table of locks that linger, which has a row for each class.
// Its ratios are to other sides of the same class.
func (r *Result) lingerTable() string {
	columns := []string{
		"", "cycle p50", "p99", "times as fast as redislock", "cycles for each message sent",
		"a reader's cycle p50", "p99", "times as fast as redislock",
		"64 names: cycles/s", "redislock", "rueidislock",
	}
	return r.lingerRows(columns, func(c *ClassResult, s *SideResult) []string {
		redis := c.side(redislockSide.Name)
		return []string{
			duration(s.median(cycleP50)), duration(s.median(cycleP99)), times(redis.median(cycleP50), s.median(cycleP50)), times(1, s.median(cycleSent)),
			duration(s.median(readP50)), duration(s.median(readP99)), times(redis.median(cycleP50), s.median(readP50)),
			number(s.median(throughput)), number(redis.median(throughput)), number(c.side(rueidislockSide.Name).median(throughput)),
		}
	})
}

// askTable is the Markdown table of what other clients get of locks that linger.
func (r *Result) askTable() string {
	columns := []string{
		"", "`Lock` of an idle lock", "from its place on", "hand-over of a held lock", "ratio", "`TryLock` of an idle lock",
		"two clients contend: grants/s", "without `Linger`", "ratio",
	}
	return r.lingerRows(columns, func(c *ClassResult, s *SideResult) []string {
		plain := c.side(natslockSide.Name)
		return []string{
			duration(s.median(idleLock)), duration(s.median(idlePlace)), duration(s.median(heldLock)), times(s.median(idlePlace), s.median(heldLock)), duration(s.median(idleTry)),
			number(s.median(contended)), number(plain.median(contended)), times(s.median(contended), plain.median(contended)),
		}
	})
}

// lingerRows is a Markdown table with a row for each class in which locks that linger were
// measured.
func (r *Result) lingerRows(columns []string, cells func(*ClassResult, *SideResult) []string) string {
	var b strings.Builder
	b.WriteString("|" + strings.Join(columns, " | ") + " |\n|---|" + strings.Repeat("---:|", len(columns)-1) + "\n")
	for _, c := range r.Classes {
		if s := c.side(lingerSide.Name); len(s.Figures) > 0 {
			b.WriteString("| " + strings.Join(append([]string{c.Title}, cells(c, s)...), " | ") + " |\n")
		}
	}
	return b.String()
}

// times prints how many times b is in a, "-" where one of them was not measured.
func times(a, b float64) string {
	switch {
	case a == 0 || b == 0:
		return "-"
	case a/b < 10:
		return fmt.Sprintf("%.2f", a/b)
	}
	return fmt.Sprintf("%.0f", a/b)
}
