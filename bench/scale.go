package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// Scale is how natslock's costs grow, on one server with files but for Together.
type Scale struct {
	Held     []*Held   `json:"held"`
	Waiters  []*Crowd  `json:"waiters"`
	Readers  []*Joined `json:"readers"`
	FailOver Spread    `json:"fail_over"` // beyond the end of the dead holder's record
	Broken   Spread    `json:"broken"`    // from the call of Break to the end of the holder's context
	Together []*Joins  `json:"together"`  // on three servers
}

// Joins are readers that join at the same moment.
type Joins struct {
	Readers int `json:"readers"`
	Spread
}

// Crowd is a lock with waiters.
type Crowd struct {
	Waiters  int     `json:"waiters"`
	HandOver float64 `json:"handover_p50"`
	Messages float64 `json:"messages"` // per hand-over, in and out of all clients
	Idle     float64 `json:"idle_cpu"` // cores of clients and server while nothing happens
}

// Joined is a reader's join and leave beside others.
type Joined struct {
	Readers int     `json:"readers"`
	P50     float64 `json:"p50"`
}

// Spread is how times are distributed.
type Spread struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func spreadOf(times []time.Duration) Spread {
	slices.Sort(times)
	return Spread{len(times), quantile(times, 0.5), quantile(times, 0.9), quantile(times, 0.99), times[len(times)-1].Seconds()}
}

// scalePlan has the numbers that a growth is measured with.
type scalePlan struct {
	held      []int
	waiters   []int
	readers   []int
	together  []int
	failOvers int
	breaks    int
}

var (
	fullScale  = scalePlan{held: []int{1_000, 10_000, 100_000}, waiters: []int{1, 10, 100, 1000}, readers: []int{0, 1, 10, 100}, together: []int{1, 2, 8, 32}, failOvers: 20, breaks: 200}
	quickScale = scalePlan{held: []int{1_000, 10_000}, waiters: []int{1, 10, 100}, readers: []int{0, 1, 10}, together: []int{1, 8}, failOvers: 4, breaks: 50}
)

func (b *bench) scaling(format string, args ...any) {
	_ = b.bar.Add(1)
	b.bar.Describe("scale: " + fmt.Sprintf(format, args...))
}

// scaleReplicas measures the costs that grow differently where there are replicas.
func (b *bench) scaleReplicas(ctx context.Context, s *Servers) error {
	for _, n := range b.grow.together {
		b.scaling("%d readers join", n)
		j, err := together(ctx, s, n, max(b.step, time.Second))
		if err != nil {
			return fmt.Errorf("%d readers: %w", n, err)
		}
		b.scaled.Together = append(b.scaled.Together, j)
	}
	return nil
}

func (b *bench) scale(ctx context.Context, s *Servers) (err error) {
	r, step := &b.scaled, b.scaling
	for _, n := range b.grow.waiters {
		step("hand-over, %d waiting", n)
		c, err := crowded(ctx, s, n, b.step)
		if err != nil {
			return fmt.Errorf("%d waiters: %w", n, err)
		}
		r.Waiters = append(r.Waiters, c)
	}
	for _, n := range b.grow.readers {
		step("%d readers", n)
		j, err := joined(ctx, s, n, b.step)
		if err != nil {
			return fmt.Errorf("%d readers: %w", n, err)
		}
		r.Readers = append(r.Readers, j)
	}
	step("breaks")
	if r.Broken, err = breaks(ctx, s, b.grow.breaks); err != nil {
		return fmt.Errorf("breaks: %w", err)
	}
	step("fail-overs")
	if r.FailOver, err = failOvers(ctx, s, b.grow.failOvers); err != nil {
		return fmt.Errorf("fail-overs: %w", err)
	}
	for _, n := range b.grow.held {
		step("%d locks held", n)
		h, err := holdMany(ctx, s, n)
		if err != nil {
			return fmt.Errorf("%d locks: %w", n, err)
		}
		r.Held = append(r.Held, h)
	}
	return nil
}

// steps is how many there are, for the progress bar.
func (p scalePlan) steps() int {
	return len(p.held) + len(p.waiters) + len(p.readers) + len(p.together) + 2
}

// crowded hands a lock on among n+1 clients.
func crowded(ctx context.Context, s *Servers, n int, d time.Duration) (*Crowd, error) {
	o := open(ctx, natslockSide, s)
	defer o.close()
	if o.result.Skipped != "" {
		return nil, errors.New(o.result.Skipped)
	}
	sent := func(clients []Client) (sum uint64) {
		for _, c := range clients {
			stats := c.(*natslockClient).nc.Stats()
			sum += stats.InMsgs + stats.OutMsgs
		}
		return sum
	}
	ctx, cancel := context.WithTimeout(ctx, 2*d+2*patience)
	defer cancel()
	r := newRelay(o, "crowd-"+strconv.Itoa(n), n, max(d, time.Second), o.procs)
	r.sent = sent
	figures, err := r.measure(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Crowd{Waiters: n, HandOver: figures[handOverP50(n)], Messages: figures[messagesPer], Idle: figures[waitingCPU]}, nil
}

// together has n readers join at the same moment, over and over. Each has a client of its
// own.
func together(ctx context.Context, s *Servers, n int, d time.Duration) (*Joins, error) {
	locks := make([]*rwlock.RWLock, n)
	for i := range locks {
		c, err := openNatslock(ctx, s)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		locks[i] = rwlock.New(c.Client)
	}
	var took []time.Duration
	for end := time.Now().Add(d); len(took) < 10*n || time.Now().Before(end); {
		each := make([]time.Duration, n)
		held := make([]*natslock.Lock, n)
		if err := spread(n, func(i int) (err error) {
			begun := time.Now()
			held[i], err = locks[i].RLock(ctx, "together-"+strconv.Itoa(n))
			each[i] = time.Since(begun)
			return err
		}); err != nil {
			return nil, err
		}
		took = append(took, each...)
		if err := spread(n, func(i int) error { return held[i].Unlock(ctx) }); err != nil {
			return nil, err
		}
	}
	return &Joins{n, spreadOf(took)}, nil
}

// joined has a reader join and leave while n others read. Each has a client of its own,
// because the readers of one client share a lease.
func joined(ctx context.Context, s *Servers, n int, d time.Duration) (*Joined, error) {
	name := "joined-" + strconv.Itoa(n)
	read := func() (*natslockClient, *rwlock.RWLock, error) {
		c, err := openNatslock(ctx, s)
		if err != nil {
			return nil, nil, err
		}
		return c, rwlock.New(c.Client), nil
	}
	for range n {
		c, rw, err := read()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		l, err := rw.RLock(ctx, name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Unlock(ctx) }()
	}
	c, rw, err := read()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var took []time.Duration
	for end := time.Now().Add(d); len(took) < warmUp+10 || time.Now().Before(end); {
		begun := time.Now()
		l, err := rw.RLock(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := l.Unlock(ctx); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	took = took[warmUp:]
	slices.Sort(took)
	return &Joined{n, quantile(took, 0.5)}, nil
}

// breaks breaks watched locks, and waits until the contexts of their holders end.
func breaks(ctx context.Context, s *Servers, n int) (Spread, error) {
	c, err := openNatslock(ctx, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
	if err != nil {
		return Spread{}, err
	}
	defer c.Close()
	operator, err := openNatslock(ctx, s)
	if err != nil {
		return Spread{}, err
	}
	defer operator.Close()
	var took []time.Duration
	for i := range n {
		l, err := c.Client.Lock(ctx, "broken-"+strconv.Itoa(i))
		if err != nil {
			return Spread{}, err
		}
		time.Sleep(50 * time.Millisecond) // the watch follows the grant, and hints in a row are answered slowly
		begun := time.Now()
		if err := admin.New(operator.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: l.Name(), ID: l.ID(), Reason: "measured"}); err != nil {
			return Spread{}, err
		}
		select {
		case <-l.Context().Done():
		case <-time.After(patience):
			return Spread{}, errors.New("a holder was never notified")
		}
		took = append(took, time.Since(begun))
		_ = l.Unlock(ctx) // says that it was broken
	}
	return spreadOf(took), nil
}

// failOverTTL is the TTL of holders that are killed.
const failOverTTL = 2 * time.Second

// failOvers kills processes that hold a lock. It takes the time from the end of the record
// that each process leaves to the next holder's grant. The end of a record is its TTL after
// the time at which the server stored it. Server and client have one clock here.
func failOvers(ctx context.Context, s *Servers, n int) (Spread, error) {
	c, err := openNatslock(ctx, s)
	if err != nil {
		return Spread{}, err
	}
	defer c.Close()
	js, err := jetstream.New(c.nc)
	if err != nil {
		return Spread{}, err
	}
	stream, err := js.Stream(ctx, "KV_natslock")
	if err != nil {
		return Spread{}, err
	}
	took := make([]time.Duration, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	// One at a time: a server that has stored anything with a TTL removes nothing in
	// the next 250 ms (resetAgeChk in its filestore.go).
	slots := make(chan struct{}, 1)
	for i := range n {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			took[i], errs[i] = failOver(ctx, s, c, stream, "killed-"+strconv.Itoa(i))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return Spread{}, err
	}
	return spreadOf(took), nil
}

func failOver(ctx context.Context, s *Servers, c *natslockClient, stream jetstream.Stream, name string) (time.Duration, error) {
	holder, err := startHolder(ctx, s, name)
	if err != nil {
		return 0, err
	}
	defer holder.kill()
	type grant struct {
		unlock func(context.Context) error
		at     time.Time
		err    error
	}
	got := make(chan grant, 1)
	go func() {
		unlock, err := c.Lock(ctx, name)
		got <- grant{unlock, time.Now(), err}
	}()
	time.Sleep(failOverTTL / 2) // it waits, and the holder renews
	holder.kill()
	record, err := stream.GetLastMsgForSubject(ctx, barePrefix+"lock."+name)
	if err != nil {
		return 0, err
	}
	end := record.Time.Add(failOverTTL)
	g := <-got
	if g.err != nil {
		return 0, g.err
	}
	if g.at.Before(end) {
		return 0, fmt.Errorf("granted %v before the record's end", end.Sub(g.at))
	}
	return g.at.Sub(end), g.unlock(ctx)
}

// startHolder starts a process that holds a lock.
func startHolder(ctx context.Context, s *Servers, name string) (*child, error) {
	p, err := startChild(childConfig{Kind: "holder", Dir: filepath.Join(s.dir, name), Lock: name, URLs: s.NATS})
	if err != nil {
		return nil, err
	}
	if err := p.wait(ctx, "the holder of "+name); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// runHolder is the life of a holder.
func runHolder(c childConfig) error {
	ctx := context.Background()
	client, err := openNatslock(ctx, &Servers{NATS: c.URLs}, natslock.WithTTL(failOverTTL))
	if err != nil {
		return err
	}
	l, err := client.Client.Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	serve(os.Getpid())
	runtime.KeepAlive(l) // a lock whose handle is dropped is not renewed
	return nil
}
