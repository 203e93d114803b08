// Command lockconform tests a locker that was written from docs/protocol. It runs the program,
// exchanges lines of JSON with it, and sits between it and a real server. Each case tests one
// sentence of the protocol, and judges the program by its records and writes.
//
//	lockconform --level 1 -- node locker.js
//
// docs/protocol/conform.md describes the lines and the cases.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
)

func main() { os.Exit(mainCode(os.Args[1:], os.Stdout, os.Stderr)) }

// mainCode runs a command line and returns the exit code.
func mainCode(args []string, stdout, stderr io.Writer) int {
	c := command{out: stdout}
	parser := kong.Must(&c, kong.Name("lockconform"), kong.Writers(stdout, stderr), kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	_, err := parser.Parse(args)
	if err != nil {
		err = tool.Usagef("%w; see lockconform --help", err)
	} else {
		err = c.runCases()
	}
	if coded, ok := errors.AsType[*tool.Error](err); err != nil && (!ok || coded.Err != nil) {
		fmt.Fprintf(stderr, "lockconform: %v\n", err)
	}
	return tool.CodeOf(err)
}

// command is the command line.
type command struct {
	Level    int      `default:"4" placeholder:"L" help:"Run the cases up to this level, 1 to 5 (default ${default})."`
	Part     string   `placeholder:"PART" help:"Run the cases of a part instead of those of the levels: rwlock or semaphore."`
	Only     int      `placeholder:"L" help:"Run only the cases of this level."`
	Names    string   `name:"run" short:"r" placeholder:"PATTERN" help:"Run the cases whose names match, such as late-*; separate several patterns by commas."`
	List     bool     `help:"List the cases and what they test, without running them."`
	Parallel int      `short:"p" default:"6" placeholder:"N" help:"Run N cases at a time (default ${default})."`
	JSON     bool     `name:"json" help:"Print one JSON object per line, one for each case."`
	Program  []string `arg:"" optional:"" passthrough:"partial" help:"The locker, and its arguments."`

	out io.Writer
}

// Help returns the text that --help prints before the flags.
func (*command) Help() string {
	return `Tests a locker in any language that was written from docs/protocol.

The program reads requests from standard input and writes answers to standard output,
one JSON object per line, as docs/protocol/conform.md describes. Each case starts the
program again, with its own bucket on a server inside this process. A proxy between the
program and the server holds, loses, delays, repeats and forges answers. natslock and raw
conditional writes act as other clients. A case tests one sentence of the protocol. On
failure it prints what was expected and what was seen.

The levels, as in docs/protocol:
  1  one-shot mutex: the bucket, names, records, validity, try, status and unlock
  2  renewals and judgment
  3  the queue, claims out of turn, forged notifications, and overdue records
  4  lost and late answers, restarts

The parts need level 3, and their cases are run instead of those of the levels:
  --part rwlock     reader-writer locks, with --level 5 also on replicas
  --part semaphore  semaphores

Passing proves only what the cases test, on one server: the program only sees simulated
replicas. The optional parts have no cases. The cases take real time: 20 seconds in all
for a program that passes, with six at a time.

  lockconform --level 1 -- node locker.js
  lockconform --only 2 -- node locker.js
  lockconform --part semaphore -- ./locker
  lockconform --run 'late-*,lost-*' -- ./locker
  lockconform --list

With --json each line is an object: "name", "level", "part", "must", "also" (the numbers
of more musts), "result" ("ok", "failed", "error"), "seconds", and for a failure
"violated", "expected" and "seen". With --list it has only those before the result.

If this machine stalls for 300 ms while a case fails, the case is rerun, for three runs in
all. If it still cannot be judged, that does not count as a failure of the program. But a
program that sent a write that no locker may send has failed.

Exit codes: 0 all cases passed; 1 a case failed; 64 usage; 70 a case could not be
judged; 126, 127 the program cannot be run; 130 interrupted.`
}

// AfterApply checks what kong cannot.
func (c *command) AfterApply() error {
	switch {
	case c.Level < 1 || c.Level > 5:
		return fmt.Errorf("--level %d: must be 1 to 5", c.Level)
	case c.Only < 0 || c.Only > 5:
		return fmt.Errorf("--only %d: must be 1 to 5", c.Only)
	case c.Part != "" && c.Part != rwlock && c.Part != semaphore:
		return fmt.Errorf("--part %s: must be %s or %s", c.Part, rwlock, semaphore)
	case c.Parallel < 1:
		return fmt.Errorf("--parallel %d: must be positive", c.Parallel)
	}
	if c.Only > 0 {
		c.Level = c.Only
	}
	for _, p := range strings.Split(c.Names, ",") {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("--run %q: %w", p, err)
		}
	}
	return nil
}

// result is the result of a case. Scripts depend on it: fields may be added, but never renamed.
type result struct {
	*Case
	Result   string  `json:"result"` // ok, failed or error
	Seconds  float64 `json:"seconds"`
	Violated string  `json:"violated,omitempty"` // the violated sentence, unless it is the case's own
	Expected string  `json:"expected,omitempty"`
	Seen     string  `json:"seen,omitempty"`

	slow bool // the machine was too slow to judge the case
}

// run is a single run of the command.
type run struct {
	*command
	url  string               // the server that the cases share
	late func() time.Duration // measured if nil
}

// runCases runs the cases and prints their results.
func (c *command) runCases() error {
	cases := c.chosen()
	if len(cases) == 0 {
		return tool.Usagef("no case up to level %d matches --run %s; see lockconform --list", c.Level, plain.Text(c.Names))
	}
	if c.List {
		return c.list(cases)
	}
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	if len(c.Program) == 0 {
		return tool.Usagef("no program given; see lockconform --help")
	}
	if _, err := exec.LookPath(c.Program[0]); err != nil {
		code := tool.ExitNotFound
		if !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, os.ErrNotExist) {
			code = tool.ExitNotExec
		}
		return tool.Exitf(code, "cannot run %s: %w", plain.Text(c.Program[0]), err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var interrupted atomic.Int32
	go func() {
		select {
		case sig := <-signals:
			interrupted.Store(int32(sig.(syscall.Signal)))
			cancel()
		case <-ctx.Done():
		}
	}()
	dir, err := os.MkdirTemp("", "lockconform-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := startServer(filepath.Join(dir, "jetstream"), 0)
	if err != nil {
		return err
	}
	defer stopServer(srv)
	r := &run{command: c, url: srv.ClientURL()}
	results := r.all(ctx, cases, func(one result) {
		if c.JSON {
			c.printJSON(one)
		}
	})
	if ctx.Err() != nil {
		return &tool.Error{Code: tool.ExitSignal + int(interrupted.Load())}
	}
	return c.report(results)
}

// chosen returns the cases that the flags select.
func (c *command) chosen() (cases []*Case) {
	for _, one := range Cases {
		matches := c.Names == ""
		for _, p := range strings.Split(c.Names, ",") {
			ok, _ := path.Match(p, one.Name) // AfterApply has checked the pattern
			matches = matches || ok
		}
		if matches && one.Part == c.Part && one.Level <= c.Level && (c.Only == 0 || one.Level == c.Only) && (canStop || !one.Stops) {
			cases = append(cases, one)
		}
	}
	return cases
}

// table returns a table without borders, with two spaces between its columns.
func (c *command) table() *tabwriter.Writer { return tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0) }

// printJSON prints v on a single line.
func (c *command) printJSON(v any) {
	e := json.NewEncoder(c.out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

func (c *command) list(cases []*Case) error {
	if c.JSON {
		for _, one := range cases {
			c.printJSON(one)
		}
		return nil
	}
	t := c.table()
	fmt.Fprintln(t, "LEVEL\tCASE\tWHAT IT TESTS")
	for _, one := range cases {
		fmt.Fprintf(t, "%d\t%s\t%s\n", one.Level, one.Name, one.Must)
	}
	return t.Flush()
}

// all runs several cases at a time, and calls done with each result. It returns the results in
// the order of the cases.
func (r *run) all(ctx context.Context, cases []*Case, done func(result)) []result {
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		results = make([]result, len(cases))
		slots   = make(chan struct{}, r.Parallel)
	)
	for i, one := range cases {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			for try := range 3 {
				if results[i] = r.one(ctx, one, fmt.Sprintf("conform%d-%d", i, try)); !results[i].slow || ctx.Err() != nil {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() == nil {
				done(results[i])
			}
		})
	}
	wg.Wait()
	return results
}

// one runs a case in a separate bucket.
func (r *run) one(ctx context.Context, c *Case, bucket string) (res result) {
	begun := time.Now()
	t := &trial{Case: c, ctx: ctx, run: r, bucket: bucket, ttl: cmp.Or(c.TTL, 3*time.Second)}
	res = result{Case: c, Result: "ok"}
	late := r.late
	if late == nil {
		var stop func()
		late, stop = lateness()
		defer stop()
	}
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			if rule, broken := t.brokenRule(); broken && rule != v {
				rule.Seen += "; then expected: " + v.Expected + "; seen: " + v.Seen
				v = rule
			}
			if most := late(); most >= settled && !v.certain {
				res.Result, res.slow = "error", true
				res.Seen = fmt.Sprintf("the machine is too slow: a timer was %v late; expected: %s; seen: %s", most.Round(time.Millisecond), v.Expected, v.Seen)
				break
			}
			res.Result, res.Expected, res.Seen = "failed", v.Expected, v.Seen
			if v.Must != c.Must {
				res.Violated = v.Must
			}
			if t.program != nil {
				if said := t.program.complaint(); said != "" && !strings.Contains(res.Seen, said) {
					res.Seen += "; " + said
				}
			}
		case fault:
			_, slow := errors.AsType[tooSlow](v.error)
			res.Result, res.Seen, res.slow = "error", v.Error(), slow
		default:
			panic(v)
		}
		t.end()
		res.Seconds = time.Since(begun).Round(time.Millisecond).Seconds()
	}()
	if !c.Own {
		t.prepare(r.url)
	}
	c.judge(t)
	if v, broken := t.brokenRule(); broken {
		panic(v)
	}
	return res
}

func (c *command) report(results []result) error {
	count := map[string]int{}
	byLevel := map[int][2]int{} // cases, and passed cases
	for _, one := range results {
		count[one.Result]++
		n := byLevel[one.Level]
		n[0]++
		if one.Result == "ok" {
			n[1]++
		}
		byLevel[one.Level] = n
	}
	if !c.JSON {
		t := c.table()
		fmt.Fprintln(t, "LEVEL\tCASE\t\tS")
		for _, one := range results {
			word := one.Result
			if word == "error" {
				word = "not judged"
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%.1f\n", one.Level, one.Name, word, one.Seconds)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, one := range results {
			if one.Result == "ok" {
				continue
			}
			fmt.Fprintf(c.out, "\n%s (level %d)\n", one.Name, one.Level)
			if one.Result == "failed" {
				fmt.Fprintf(c.out, "  must:     %s\n  expected: %s\n", cmp.Or(one.Violated, one.Must), plain.Text(one.Expected))
			}
			fmt.Fprintf(c.out, "  seen:     %s\n", plain.Text(one.Seen))
		}
		fmt.Fprintln(c.out)
		levels := []int{}
		for level := range byLevel {
			levels = append(levels, level)
		}
		slices.Sort(levels)
		for _, level := range levels {
			fmt.Fprintf(c.out, "level %d: %d of %d cases passed\n", level, byLevel[level][1], byLevel[level][0])
		}
	}
	switch {
	case count["error"] > 0:
		return tool.Exitf(tool.ExitInternal, "cases that could not be judged: %d", count["error"])
	case count["failed"] > 0:
		return &tool.Error{Code: tool.ExitConflict}
	}
	return nil
}
