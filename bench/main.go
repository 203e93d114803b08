// Command bench compares natslock with other distributed locks, each on the kind of server that
// it needs. It starts the servers itself, and writes its results as tables, plots and raw
// numbers. Run it with "make compare".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// plan determines how long the measurements take.
type plan struct {
	rounds int
	step   time.Duration // duration of a step, for each side in each round
}

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
	isQuick := flag.Bool("quick", false, "run one short round instead of three, about two minutes in all")
	out := flag.String("out", filepath.Join("..", "docs", "evidence"), "`directory` for benchmarks.md and benchmarks/")
	redis := flag.String("redis", "redis-server", "the redis server's `program`")
	dir := flag.String("dir", "", "`directory` for the servers' files, which are removed afterwards (default a temporary one)")
	again := flag.Bool("rewrite", false, "measure nothing, and rewrite the report from the existing raw numbers")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *again {
		return rewrite(*out)
	}
	p := plan{rounds: 3, step: 600 * time.Millisecond}
	if *isQuick {
		p = plan{rounds: 1, step: 200 * time.Millisecond}
	}
	data, err := os.MkdirTemp(*dir, "natslock-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()

	result := newResult(p, *redis)
	for _, class := range classes {
		result.Classes = append(result.Classes, p.class(ctx, class, data, *redis))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	result.finish()
	if err := result.write(*out); err != nil {
		return err
	}
	fmt.Printf("\n%s, %d critical sections, took %v\n", filepath.Join(*out, "benchmarks.md"), result.Sections, result.Took)
	return errors.Join(result.Violations(), result.Failed())
}

// Titles of the steps that Side.Only can list.
const (
	stepCycle      = "cycle"
	stepThroughput = "throughput"
	stepContention = "contention"
)

// step is a measurement of one side in one round.
type step struct {
	title   string
	waiters int
	only    string // the only side measured in this step, if set
	run     func(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error)
}

func steps() []step {
	all := []step{
		{title: stepCycle, run: cycles},
		{title: stepThroughput, run: manyNames},
		{title: stepContention, waiters: contenders, run: contention},
		{title: "break", only: natslockSide.Name, run: breaks},
	}
	for _, n := range readers {
		all = append(all, step{title: fmt.Sprintf("%d readers join", n), only: natslockSide.Name,
			run: func(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error) {
				return join(ctx, o, name, n, d)
			}})
	}
	for _, n := range crowd {
		all = append(all, step{title: fmt.Sprintf("hand-over, %d waiting", n), waiters: n,
			run: func(ctx context.Context, o *opened, name string, d time.Duration) (Figures, error) {
				return handOver(ctx, o, name, n, d)
			}})
	}
	return all
}

// opened is a side being measured in a class, with two clients on separate connections.
type opened struct {
	Side
	clients []*Client
	procs   []*process.Process
	audit   audit
	result  *SideResult
	servers *Servers
}

// open connects to a side's servers. If the side cannot be measured, its result says why.
func open(ctx context.Context, side Side, s *Servers) *opened {
	o := &opened{Side: side, result: &SideResult{Name: side.Name, Figures: map[string][]float64{}}, servers: s}
	if o.result.Skipped = side.unfit(s); o.result.Skipped != "" {
		return o
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := o.open(ctx); err != nil {
		o.close()
		o.clients = nil
		o.fails("start", err)
	}
	return o
}

func (o *opened) open(ctx context.Context) error {
	if err := o.servers.failed[o.Server]; err != nil {
		return err
	}
	for range 2 {
		c, err := o.Open(ctx, o.servers)
		if err != nil {
			return err
		}
		o.clients = append(o.clients, c)
	}
	pids := []int32{int32(os.Getpid())}
	for _, p := range o.servers.procs[o.Server] {
		pids = append(pids, p.pid)
	}
	for _, pid := range pids {
		p, err := process.NewProcess(pid)
		if err != nil {
			return err
		}
		o.procs = append(o.procs, p)
	}
	return nil
}

func (o *opened) close() {
	for _, c := range o.clients {
		c.Close()
	}
}

// fails records a failure of the side. If err joins several errors, it keeps only the first.
func (o *opened) fails(what string, err error) {
	line, _, _ := strings.Cut(err.Error(), "\n")
	o.result.Failures = append(o.result.Failures, what+": "+strings.ReplaceAll(line, "|", "/"))
}

// maxFailures is the number of failures after which a side is skipped in a class, because each
// failure may take as long as patience.
const maxFailures = 3

// class measures all sides in a class.
func (p plan) class(ctx context.Context, class Class, dir, redis string) *ClassResult {
	s := startServers(ctx, class, dir, redis)
	defer s.Stop()
	var all []*opened
	for _, side := range sides {
		o := open(ctx, side, s)
		defer o.close()
		all = append(all, o)
	}
	return p.measure(ctx, class, steps(), all)
}

// measure measures the sides in turn. A failure is recorded in the result of its side.
func (p plan) measure(ctx context.Context, class Class, steps []step, all []*opened) *ClassResult {
	result := &ClassResult{Class: class}
	for _, o := range all {
		result.Sides = append(result.Sides, o.result)
	}
	begun := time.Now()
	for round := range p.rounds {
		for _, step := range steps {
			for i := range all {
				o := all[(i+round)%len(all)] // rotate, so that no side is always first
				if len(o.clients) == 0 || len(o.result.Failures) >= maxFailures || !o.measures(step) {
					continue
				}
				fmt.Fprintf(os.Stderr, "\r\x1b[K%v in %s: round %d, %s, %s", time.Since(begun).Round(time.Second), class.Name, round+1, step.title, o.Name)
				name := strings.NewReplacer(" ", "-", ",", "").Replace(fmt.Sprintf("%s-%s-%d", o.Name, step.title, round))
				limited, cancel := context.WithTimeout(ctx, 3*p.step+patience)
				figures, err := step.run(limited, o, name, p.step)
				cancel()
				switch {
				case ctx.Err() != nil:
					return result
				case err != nil:
					o.fails(fmt.Sprintf("%s, round %d", step.title, round+1), err)
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
	return result
}
