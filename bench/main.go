// Command bench compares natslock with other distributed locks, each on the kind of
// servers that it needs. It starts these servers itself, and writes its measurements as a
// table, plots and raw numbers. "make compare" runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/shirou/gopsutil/v4/process"
)

// plan is how much is measured.
type plan struct {
	rounds int
	step   time.Duration // for each figure of each side in each round
	grow   scalePlan
}

var (
	full  = plan{rounds: 3, step: 600 * time.Millisecond, grow: fullScale}
	quick = plan{rounds: 1, step: 200 * time.Millisecond, grow: quickScale}
)

func main() {
	runChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	isQuick := flag.Bool("quick", false, "one short round instead of three, two minutes in all")
	out := flag.String("out", filepath.Join("..", "docs", "evidence"), "`directory` for benchmarks.md and benchmarks/")
	redis := flag.String("redis", "redis-server", "the redis server's `program`")
	dir := flag.String("dir", "", "`directory` for the servers' files, which are removed again (default a temporary one)")
	again := flag.Bool("rewrite", false, "measure nothing, write the report of the raw numbers that are there")
	held := flag.Int("beside", 0, "measure only what another client sees while a client holds so `many` locks")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *again {
		return rewrite(*out)
	}
	p := full
	if *isQuick {
		p = quick
	}
	data, err := os.MkdirTemp(*dir, "natslock-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	if *held > 0 {
		b, err := beside(ctx, data, *held, leaseTTL*2/3, 20*time.Second) // the locks are watched then, and renewed
		if err == nil {
			fmt.Println(b)
		}
		return err
	}

	result := newResult(p, *redis)
	b := newBench(p)
	for _, class := range classes {
		c, err := b.class(ctx, class, data, *redis)
		if c != nil {
			result.Classes = append(result.Classes, c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", class.Name, err)
		}
	}
	_ = b.bar.Finish()
	fmt.Fprintln(os.Stderr)
	result.Scale = &b.scaled
	result.finish()
	if err := result.write(*out); err != nil {
		return err
	}
	for _, c := range result.Classes {
		for _, s := range c.Sides {
			if s.Skipped != "" {
				fmt.Printf("skipped: %s, %s: %s\n", c.Title, s.Name, s.Skipped)
			}
			for _, f := range s.Failures {
				fmt.Printf("failed: %s, %s: %s\n", c.Title, s.Name, f)
			}
		}
	}
	fmt.Printf("%s, %d critical sections, took %v\n", filepath.Join(*out, "benchmarks.md"), result.Sections, result.Took)
	return result.Violations()
}

type bench struct {
	plan
	bar    *progressbar.ProgressBar
	scaled Scale
}

// The titles of the steps that a side names in Only.
const (
	stepCycle      = "cycle"
	stepThroughput = "throughput"
	stepContention = "contention"
	stepReader     = "reader's cycle"
	stepIdle       = "idle hand-over"
)

// step is a measurement of one side in one round.
type step struct {
	title   string
	waiters int
	named   bool // it is only for the sides that name it
	run     func(ctx context.Context, o *opened, name string) (Figures, error)
}

func newBench(p plan) *bench {
	b := &bench{plan: p}
	b.bar = progressbar.NewOptions(len(classes)*len(sides)*len(b.steps())*p.rounds+p.grow.steps(),
		progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetWidth(30), progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionThrottle(100*time.Millisecond))
	return b
}

func (b *bench) steps() []step {
	all := []step{
		{title: stepCycle, run: func(ctx context.Context, o *opened, name string) (Figures, error) {
			return cycles(ctx, o.clients[0], name, b.step, &o.audit)
		}},
		{title: stepThroughput, run: func(ctx context.Context, o *opened, name string) (Figures, error) {
			return manyNames(ctx, o.clients[0], name, b.step, &o.audit)
		}},
	}
	all = append(all, step{title: stepContention, waiters: contenders, run: func(ctx context.Context, o *opened, name string) (Figures, error) {
		local, err := contention(ctx, o, o.clients[:1], name+"-local", localSuffix, b.step)
		if err != nil {
			return nil, err
		}
		figures, err := contention(ctx, o, o.clients, name, "", b.step)
		if err != nil {
			return nil, err
		}
		maps.Copy(figures, local)
		return figures, nil
	}})
	all = append(all, lingerSteps(b.step)...)
	for _, n := range crowd {
		all = append(all, step{title: fmt.Sprintf("hand-over, %d waiting", n), waiters: n,
			run: func(ctx context.Context, o *opened, name string) (Figures, error) {
				procs := o.procs
				if n != crowd[len(crowd)-1] {
					procs = nil
				}
				return newRelay(o, name, n, b.step, procs).measure(ctx, o)
			}})
	}
	return all
}

// opened is a side in a class, with two clients on connections of their own.
type opened struct {
	Side
	clients []Client
	procs   []*process.Process
	audit   audit
	result  *SideResult
	servers *Servers
}

// crowd returns n clients on connections of their own, with those that are open. leave
// closes the others.
func (o *opened) crowd(ctx context.Context, n int) (clients []Client, leave func(), err error) {
	var more []Client
	leave = func() {
		for _, c := range more {
			c.Close()
		}
	}
	for len(o.clients)+len(more) < n {
		c, err := o.Open(ctx, o.servers)
		if err != nil {
			return nil, leave, err
		}
		more = append(more, c)
	}
	return slices.Concat(o.clients, more), leave, nil
}

// open opens a side, or says in its result why not.
func open(ctx context.Context, side Side, s *Servers) *opened {
	o := &opened{Side: side, result: &SideResult{Name: side.Name, Figures: map[string][]float64{}}, servers: s}
	if o.result.Skipped = side.unfit(s); o.result.Skipped != "" {
		return o
	}
	err := func() error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for range 2 {
			c, err := side.Open(ctx, s)
			if err != nil {
				return err
			}
			o.clients = append(o.clients, c)
		}
		self, err := process.NewProcess(int32(os.Getpid()))
		if err != nil {
			return err
		}
		o.procs = append(o.procs, self)
		for _, p := range s.procs[side.Server] {
			server, err := process.NewProcess(p.pid)
			if err != nil {
				return err
			}
			o.procs = append(o.procs, server)
		}
		return nil
	}()
	if err != nil {
		o.result.Skipped = "failed: " + firstLine(err)
	}
	return o
}

// maxFailures of a side end its part in a class: each may take as long as patience.
const maxFailures = 3

// firstLine is the first of several joined errors.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func (o *opened) close() {
	for _, c := range o.clients {
		c.Close()
	}
}

// class measures all sides in a class, in turn.
func (b *bench) class(ctx context.Context, class Class, dir, redis string) (_ *ClassResult, err error) {
	b.bar.Describe(class.Name + ": starting servers")
	s, err := startServers(ctx, class, dir, redis)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	result := &ClassResult{Class: class}
	var all []*opened
	for _, side := range sides {
		o := open(ctx, side, s)
		defer o.close()
		all = append(all, o)
		result.Sides = append(result.Sides, o.result)
	}
	for round := range b.rounds {
		for _, step := range b.steps() {
			for i := range all {
				o := all[(i+round)%len(all)] // no side is always the first
				_ = b.bar.Add(1)
				if o.result.Skipped != "" || len(o.result.Failures) >= maxFailures || !o.measures(step) {
					continue
				}
				b.bar.Describe(fmt.Sprintf("%s: %s, %s", class.Name, o.Name, step.title))
				name := strings.NewReplacer(" ", "-", ",", "").Replace(fmt.Sprintf("%s-%s-%d", o.Name, step.title, round))
				limited, cancel := context.WithTimeout(ctx, 3*b.step+patience)
				figures, err := step.run(limited, o, name)
				cancel()
				if ctx.Err() != nil {
					return result, context.Cause(ctx)
				}
				if err != nil {
					o.result.Failures = append(o.result.Failures, fmt.Sprintf("%s, round %d: %v", step.title, round+1, firstLine(err)))
					continue
				}
				for f, v := range figures {
					o.result.Figures[f] = append(o.result.Figures[f], v)
				}
			}
		}
	}
	for _, o := range all {
		o.result.Sections, o.result.Lost, o.result.Stale = o.audit.sections.Load(), o.audit.lost.Load(), o.audit.stale.Load()
	}
	switch class.Name {
	case "file":
		if err = b.scale(ctx, s); err != nil {
			return result, fmt.Errorf("scale: %w", err)
		}
	case "r3":
		if err = b.scaleReplicas(ctx, s); err != nil {
			return result, fmt.Errorf("scale: %w", err)
		}
	}
	return result, nil
}
