// Package demo implements "lockctl demo". Workers and a process that gets killed contend for a
// lock on a server in this process, and an operator breaks that lock. A stage checks that the
// lock provides mutual exclusion.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Command is "lockctl demo".
type Command struct {
	TTL time.Duration `name:"ttl" default:"4s" placeholder:"DURATION" help:"Lease of the demo's lock (default ${default})."`
}

// Help returns the detailed help for the command.
func (*Command) Help() string {
	return `Starts a server in this process, with its data in a temporary directory, and lets workers
contend for one lock. One of them, a separate process, is killed; another one's lock is
broken. Exit code 1: two holders overlapped, or tokens did not rise.`
}

const (
	demoLock  = "demo"
	demoTurns = 3 // per worker, in the first part
	demoLimit = time.Minute
)

var demoWorkers = []string{"amber", "blue", "coral", "dune"}

// Run runs the demo for at most a minute and prints what happens. It returns an error if the
// demo or mutual exclusion fails.
func (c *Command) Run(g *session.Globals) error {
	ctx, cancel := context.WithTimeout(context.Background(), demoLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "lockctl-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	st := newStage(g.Out)
	srv, err := session.StartServer(dir, 0)
	if err != nil {
		return err
	}
	defer srv.Stop()
	g.Connection, g.Bucket, g.MayCreate = tool.Connection{Server: srv.URL(), NoContext: true, Timeout: g.Timeout}, "demo", true
	st.say("server", "nats-server %s in this process, %s", session.ServerVersion, srv.URL())

	d := &demo{stage: st, g: g, ttl: c.TTL}
	if err := d.hire(); err != nil {
		return err
	}
	defer d.dismiss()
	for _, part := range []func(context.Context) error{d.contend, d.crash, d.breaking} {
		if err := part(ctx); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	return st.summary(d.ttl)
}

// demo is a single run of the demo, with a method for each part. The stage reports the events.
type demo struct {
	*stage
	g       *session.Globals
	ttl     time.Duration
	workers []*worker
	boss    *session.Session // the operator, who reads and breaks the lock
}

type worker struct {
	name string
	s    *session.Session
}

func (d *demo) hire() (err error) {
	if d.boss, err = d.g.Open(natslock.WithOwner("operator"), natslock.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		return err
	}
	d.say("bucket", "created %q: leases of %v, renewed every %s; tokens exceed those of any earlier bucket", d.g.Bucket, d.ttl, show.Brief(d.ttl/3))
	for _, name := range demoWorkers {
		s, err := d.g.Open(natslock.WithOwner(name), natslock.WithTTL(d.ttl), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		if err != nil {
			return err
		}
		d.workers = append(d.workers, &worker{name, s})
	}
	return nil
}

func (d *demo) dismiss() {
	for _, w := range d.workers {
		w.s.End()
	}
	d.boss.End()
}

// together runs fn for all workers concurrently.
func (d *demo) together(workers []*worker, fn func(*worker) error) error {
	errs := make(chan error)
	for _, w := range workers {
		go func() { errs <- fn(w) }()
	}
	var all []error
	for range workers {
		all = append(all, <-errs)
	}
	return plain.Join(all...)
}

// turn takes the lock, increments the counter, and unlocks.
func (d *demo) turn(ctx context.Context, w *worker) error {
	asked := time.Now()
	l, err := w.s.Lock(ctx, demoLock)
	if err != nil {
		return err
	}
	h := d.enter(w.name, l.Token(), asked)
	d.sayQueue(ctx, h, l.ID())
	d.count(60 * time.Millisecond)
	h.leave()
	return l.Unlock(ctx)
}

// queued returns the number of waiters. It leaves out the claim whose ID is besides, which has
// just been granted and may not have left the queue yet.
func (d *demo) queued(ctx context.Context, besides string) int {
	info, err := admin.New(d.boss.Client).Inspect(ctx, admin.KindMutex, demoLock)
	if err != nil {
		return -1
	}
	n := 0
	for _, w := range info.Queue {
		if w.ID != besides {
			n++
		}
	}
	return n
}

// sayQueue reports a grant and how many clients are still waiting.
func (d *demo) sayQueue(ctx context.Context, v *visit, id string) {
	v.granted(d.queued(ctx, id))
}

// awaitQueue waits until n clients are queued.
func (d *demo) awaitQueue(ctx context.Context, n int) error {
	for d.queued(ctx, "") != n {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d in the queue: %w", n, ctx.Err())
		}
	}
	return nil
}

// contend makes all workers take turns incrementing a plain counter, which would lose
// increments without the lock.
func (d *demo) contend(ctx context.Context) error {
	d.title("%d workers want the lock, %d times each", len(d.workers), demoTurns)
	return d.together(d.workers, func(w *worker) error {
		for range demoTurns {
			if err := d.turn(ctx, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// crash kills a process that holds the lock while others are queued.
func (d *demo) crash(ctx context.Context) error {
	d.title("a holder is killed")
	asked := time.Now()
	v, err := d.startVictim()
	if err != nil {
		return err
	}
	defer v.stop()
	token, err := v.granted()
	if err != nil {
		return err
	}
	h := d.enter("victim", token, asked)
	d.sayQueue(ctx, h, "")
	waiting := make(chan error, 1)
	go func() { waiting <- d.together(d.workers, func(w *worker) error { return d.turn(ctx, w) }) }()
	if err := d.awaitQueue(ctx, len(d.workers)); err != nil {
		return err
	}
	if err := v.renewed(); err != nil {
		return err
	}
	d.say("victim", "has renewed its lease; %d waiting", len(d.workers))
	at, err := v.kill()
	if err != nil {
		return err
	}
	h.crashed(at)
	return <-waiting
}

// breaking makes an operator break a lock that its holder does not release.
func (d *demo) breaking(ctx context.Context) error {
	d.title("an operator breaks a lock")
	slow, next := d.workers[0], d.workers[1]
	asked := time.Now()
	l, err := slow.s.Lock(ctx, demoLock)
	if err != nil {
		return err
	}
	h := d.enter(slow.name, l.Token(), asked)
	d.sayQueue(ctx, h, l.ID())
	waiting := make(chan error, 1)
	go func() { waiting <- d.turn(ctx, next) }()
	if err := d.awaitQueue(ctx, 1); err != nil {
		return err
	}
	at := time.Now()
	if err := admin.New(d.boss.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: demoLock, ID: l.ID(), Reason: "it hangs"}); err != nil {
		return err
	}
	select {
	case <-l.Context().Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	notified := time.Since(at)
	d.say("operator", "broke the lock of %s, reason \"it hangs\"", slow.name)
	d.say(slow.name, "is notified %s later and cannot renew; it needs 300ms to stop", show.Brief(notified))
	time.Sleep(300 * time.Millisecond) // the holder stops its work
	h.leave()
	if err := l.Unlock(ctx); !errors.Is(err, natslock.ErrBroken) {
		return fmt.Errorf("the unlock of a broken lock returned %v", err)
	}
	return <-waiting
}

// summary prints the summary. It returns an error if mutual exclusion failed, judging only by
// what the stage saw.
func (s *stage) summary(ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.titleLocked("summary")
	slices.Sort(s.gaps)
	rising := "tokens strictly rising"
	if s.falls > 0 {
		rising = show.Alarm.Sprintf("%d tokens that did not rise", s.falls)
	}
	overlap := "no overlap"
	if s.overlaps > 0 {
		overlap = show.Alarm.Sprintf("%d overlaps", s.overlaps)
	}
	fmt.Fprintf(s.out, "  %d grants, %s, %s, counter %d of %d\n", s.grants, rising, overlap, s.counter, s.counted)
	if n := len(s.gaps); n > 0 {
		fmt.Fprintf(s.out, "  hand-over: median %s, longest %s\n", show.Brief(s.gaps[n/2]), show.Brief(s.gaps[n-1]))
	}
	fmt.Fprintf(s.out, "  fail-over: %s after the kill, with a TTL of %v\n", show.Brief(s.failover), ttl)
	if s.falls > 0 || s.overlaps > 0 || s.counter != s.counted {
		return tool.Exitf(tool.ExitConflict, "the lock did not work: see the summary")
	}
	return nil
}
