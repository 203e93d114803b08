// Package bench measures the locks of a server: cycles, bare publishes and hand-overs.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/schollz/progressbar/v3"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Command is "lockctl bench".
type Command struct {
	Pattern  string        `arg:"" optional:"" default:">" help:"Use names that this matches, for users who have but some names."`
	Duration time.Duration `short:"d" default:"3s" placeholder:"DURATION" help:"How long to measure (default ${default})."`
	Count    int           `short:"c" placeholder:"N" help:"Measure N of each instead, however long that takes."`
	JSON     bool          `name:"json" help:"Print an object."`
}

// Help is the text of --help.
func (*Command) Help() string {
	return `Measures the locks of the server it is connected to, with one caller at a time:

  cycle      an uncontended lock and unlock: two writes
  bare       two conditional publishes as the cycle's, without the library
  hand-over  from the unlock on one connection to the grant on another

Cycles and bare publishes are made in turn, in the same seconds, so that their ratio
says what the library costs on top of the server. The locks have names of the
benchmark's own and nothing is left of them. INT ends it early, with what was
measured until then.

With --json an object: "server", "bucket", "interrupted", "cycle", "bare" and "handover"
with "n", "p50" and "p99" each, in seconds, and "ratio" of the p50 of cycle and bare.

Exit codes: 0; 64 usage; 69 no server, or it went away; 77 no permission for the
names; 78 no bucket, or one not fit for locks; 130 interrupted.`
}

// AfterApply checks what kong cannot.
func (c *Command) AfterApply() error {
	switch {
	case c.Duration <= 0:
		return fmt.Errorf("--duration %v: must be positive", c.Duration)
	case c.Count < 0:
		return fmt.Errorf("--count %d: must be positive", c.Count)
	}
	return nil
}

// figures is what was measured of one thing. Durations are in seconds.
type figures struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// output is what --json prints. Scripts depend on it: fields are added, never
// renamed.
type output struct {
	Server      string  `json:"server"`
	Bucket      string  `json:"bucket"`
	Interrupted bool    `json:"interrupted"`
	Cycle       figures `json:"cycle"`
	Bare        figures `json:"bare"`
	HandOver    figures `json:"handover"`
	Ratio       float64 `json:"ratio"` // 0: nothing was measured
}

// bench is one run.
type bench struct {
	*Command
	g     *session.Globals
	a, b  *session.Session
	store *kvstore.Store
	name  string        // of the lock
	key   string        // of the bare publishes
	queue chan struct{} // receives when a waiter has queued on either connection

	cycles, bares, handOvers []time.Duration
}

// Run measures, and prints the figures.
func (c *Command) Run(g *session.Globals) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	b := &bench{Command: c, g: g, queue: make(chan struct{}, 1)}
	if err := b.names(); err != nil {
		return err
	}
	defer b.close()
	if err := b.open(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case sig := <-signals:
			cancel(&interruption{sig.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	err := b.measure(ctx)
	interrupted, stopped := errors.AsType[*interruption](context.Cause(ctx))
	if err != nil && !stopped {
		if errors.Is(err, natslock.ErrTimeout) {
			return tool.Exitf(tool.ExitUnavailable, "%w", err)
		}
		return err
	}
	if err := b.report(stopped); err != nil {
		return err
	}
	if stopped {
		return &tool.Error{Code: tool.ExitSignal + int(interrupted.signal)}
	}
	return nil
}

// interruption is the end by a signal.
type interruption struct{ signal syscall.Signal }

func (i *interruption) Error() string { return i.signal.String() }

// names chooses names that nobody else uses.
func (b *bench) names() (err error) {
	if b.name, err = session.OwnName(b.Pattern, "bench"); err != nil {
		return err
	}
	bare, err := session.OwnName(b.Pattern, "bench")
	if err != nil {
		return err
	}
	set, err := admin.Permissions(admin.Access{Pattern: bare, Bucket: b.g.Bucket})
	if err != nil {
		return err
	}
	b.key = strings.TrimPrefix(set.Publish[0].Subject, "$KV."+b.g.Bucket+".")
	return nil
}

func (b *bench) open() (err error) {
	queued := admin.WithObserver(func(_ context.Context, ev admin.Event) {
		if ev.Type == admin.EventQueued {
			select {
			case b.queue <- struct{}{}:
			default:
			}
		}
	})
	opts := []natslock.Option{natslock.WithOwner("lockctl bench"), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}), queued}
	b.a, err = b.g.Open(opts...)
	if err != nil {
		return err
	}
	second := *b.g
	if b.a.Own != nil { // one server for both
		second.Embedded = false
		second.Connection = tool.Connection{Server: b.a.Own.URL(), NoContext: true, Timeout: b.g.Timeout}
	}
	if b.b, err = second.Open(opts...); err != nil {
		return err
	}
	ctx, cancel := b.g.Bounded()
	defer cancel()
	b.store, err = kvstore.Open(ctx, b.a.JS, kvstore.Config{Bucket: b.g.Bucket, NoCreate: true})
	return err
}

func (b *bench) close() {
	if b.store != nil {
		b.store.Close()
	}
	for _, s := range []*session.Session{b.b, b.a} { // the server, if it is a's, last
		if s != nil {
			s.End()
		}
	}
}

// warmUp is how many of each are made before they count.
const warmUp = 10

// measure fills the figures, until it is done or ctx ends.
func (b *bench) measure(ctx context.Context) error {
	bar := newBar(b.g.Stderr)
	defer bar.stop()
	var last uint64 // revision of the bare key
	err := b.repeat(ctx, bar, 0, 2./3, func(keep bool) error {
		begun := time.Now()
		l, err := b.a.Lock(ctx, b.name, natslock.MaxWait(b.g.Timeout))
		if err != nil {
			return err
		}
		if err := l.Unlock(ctx); err != nil {
			return err
		}
		cycle := time.Since(begun)
		begun = time.Now()
		for range 2 {
			if last, err = b.publish(ctx, last); err != nil {
				if conflict, ok := errors.AsType[*kvstore.ConflictError](err); ok && conflict.Last == 0 {
					last, err = b.publish(ctx, 0) // after a pause of a second: it has ended
				}
			}
			if err != nil {
				return err
			}
		}
		if keep {
			b.cycles, b.bares = append(b.cycles, cycle), append(b.bares, time.Since(begun))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.handOver(ctx, bar)
}

// publish writes a tombstone of a record's size: nobody takes it for a lock, and
// it ends by itself.
func (b *bench) publish(ctx context.Context, expect uint64) (uint64, error) {
	answers := make(chan kvstore.Answer, 1)
	w := kvstore.Write{Key: b.key, Value: make([]byte, 100), Expect: expect, Delete: true}
	forget, err := b.store.Send(w, func(a kvstore.Answer) { answers <- a })
	if err != nil {
		return 0, err
	}
	defer forget()
	limit := time.NewTimer(b.g.Timeout)
	defer limit.Stop()
	select {
	case a := <-answers:
		return a.Revision, a.Err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-limit.C:
		return 0, fmt.Errorf("%w: no answer to a publish within %v", natslock.ErrUnavailable, b.g.Timeout)
	}
}

// handOver passes a lock to and fro between the connections.
func (b *bench) handOver(ctx context.Context, bar bar) error {
	rtt, err := b.a.NC.RTT()
	if err != nil {
		return fmt.Errorf("%w: %w", natslock.ErrUnavailable, err)
	}
	// A new waiter reads the queue and subscribes: let it finish.
	settle := min(max(10*rtt, time.Millisecond), 100*time.Millisecond)
	holder, waiter := b.a, b.b
	held, err := holder.Lock(ctx, b.name, natslock.MaxWait(b.g.Timeout))
	if err != nil {
		return err
	}
	defer func() { _ = held.Unlock(ctx) }()
	type grant struct {
		lock *natslock.Lock
		at   time.Time
		err  error
	}
	return b.repeat(ctx, bar, 2./3, 1, func(keep bool) error {
		select {
		case <-b.queue: // an old one
		default:
		}
		granted := make(chan grant, 1)
		go func() {
			l, err := waiter.Lock(ctx, b.name, natslock.MaxWait(b.g.Timeout))
			granted <- grant{l, time.Now(), err}
		}()
		select {
		case <-b.queue:
		case g := <-granted:
			return cmp.Or(g.err, errors.New("granted while it was held"))
		}
		time.Sleep(settle)
		begun := time.Now()
		err := held.Unlock(ctx)
		g := <-granted
		if g.err != nil {
			return errors.Join(err, g.err)
		}
		held = g.lock
		holder, waiter = waiter, holder
		if keep {
			b.handOvers = append(b.handOvers, g.at.Sub(begun))
		}
		return err
	})
}

// repeat calls fn as often or as long as was asked for, for the part of the run
// between two fractions of it. The first calls do not count.
func (b *bench) repeat(ctx context.Context, bar bar, from, to float64, fn func(keep bool) error) error {
	begun := time.Now()
	limit := time.Duration(float64(b.Duration) * (to - from))
	for n := -warmUp; ; n++ {
		done := time.Since(begun).Seconds() / limit.Seconds()
		if b.Count > 0 {
			done = float64(n) / float64(b.Count)
		}
		bar.set(from + (to-from)*min(max(done, 0), 1))
		if done >= 1 && n > 0 {
			return nil
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := fn(n >= 0); err != nil {
			return err
		}
	}
}

// bar shows the progress on a terminal, and nowhere else.
type bar struct{ *progressbar.ProgressBar }

func newBar(stderr io.Writer) bar {
	if console.Terminal(stderr) == nil {
		return bar{}
	}
	return bar{progressbar.NewOptions(1000, progressbar.OptionSetWriter(stderr), progressbar.OptionSetDescription("measuring"),
		progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetElapsedTime(false))}
}

func (p bar) set(part float64) {
	if p.ProgressBar != nil {
		_ = p.Set(int(part * 999)) // at its end it is cleared
	}
}

func (p bar) stop() {
	if p.ProgressBar != nil {
		_ = p.Finish()
	}
}

func (b *bench) report(interrupted bool) error {
	out := output{
		Server: b.a.URL, Bucket: b.g.Bucket, Interrupted: interrupted,
		Cycle: figuresOf(b.cycles), Bare: figuresOf(b.bares), HandOver: figuresOf(b.handOvers),
	}
	if out.Bare.N > 0 {
		out.Ratio = math.Round(out.Cycle.P50/out.Bare.P50*100) / 100
	}
	if b.JSON {
		return show.WriteJSON(b.g.Out, out)
	}
	if interrupted {
		b.g.Complain("interrupted: this is what was measured until then")
	}
	t := show.NewTable(b.g.Out, "", "p50", "p99", "n")
	row := func(what string, f figures) {
		if f.N > 0 {
			t.AppendRow(table.Row{what, micros(f.P50), micros(f.P99), f.N})
		}
	}
	row("cycle", out.Cycle)
	row("bare", out.Bare)
	row("hand-over", out.HandOver)
	t.Render()
	if out.Ratio > 0 {
		fmt.Fprintf(b.g.Out, "a cycle takes %.2f times its two bare publishes, at %s\n", out.Ratio, b.a.URL)
	}
	return nil
}

func figuresOf(all []time.Duration) figures {
	if len(all) == 0 {
		return figures{}
	}
	slices.Sort(all)
	return figures{N: len(all), P50: all[len(all)/2].Seconds(), P99: all[min(len(all)*99/100, len(all)-1)].Seconds()}
}

func micros(seconds float64) string {
	return time.Duration(seconds * 1e9).Round(time.Microsecond).String()
}
