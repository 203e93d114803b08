package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
)

// Result is the content of raw.json.
type Result struct {
	Date     time.Time         `json:"date"`
	Took     string            `json:"took"`
	Command  string            `json:"command"`
	Rounds   int               `json:"rounds"`
	Step     string            `json:"step"`
	Versions map[string]string `json:"versions"`
	Machine  Machine           `json:"machine"`
	Sections int64             `json:"sections"`
	Classes  []*ClassResult    `json:"classes"`
	Note     string            `json:"note,omitempty"` // added by hand, about this run
}

// Machine describes the machine that the measurements were made on.
type Machine struct {
	Cores      int     `json:"cores"`
	CPU        string  `json:"cpu"`
	System     string  `json:"system"`
	LoadBefore float64 `json:"load_before"` // one-minute average
	LoadAfter  float64 `json:"load_after"`
}

// ClassResult holds the measurements of a class.
type ClassResult struct {
	Class
	Sides []*SideResult `json:"sides"`
}

// SideResult holds a side's results. Each figure has one value per round.
type SideResult struct {
	Name     string               `json:"name"`
	Skipped  string               `json:"skipped,omitempty"`
	Failures []string             `json:"failures,omitempty"`
	Figures  map[string][]float64 `json:"figures,omitempty"`
	Sections int64                `json:"sections"` // critical sections that were checked
	Lost     int64                `json:"lost"`     // sections during which there was another holder
	Stale    int64                `json:"stale"`    // sections whose fencing token was not above all earlier tokens
}

// median returns the median of a figure, or 0 if it was not measured.
func (s *SideResult) median(figure string) float64 {
	all := slices.Sorted(slices.Values(s.Figures[figure]))
	if len(all) == 0 {
		return 0
	}
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// compared are the modules whose versions the report lists.
var compared = []string{
	"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "go.etcd.io/etcd/server/v3",
	"go.etcd.io/etcd/client/v3", "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock",
	"github.com/redis/rueidis", "github.com/redis/go-redis/v9",
}

func newResult(p plan, redis string) *Result {
	r := &Result{Date: time.Now().UTC().Truncate(time.Second), Rounds: p.rounds, Step: p.step.String(), Versions: map[string]string{}}
	r.Command = "make compare"
	if len(os.Args) > 1 {
		r.Command = "cd bench && go run . " + strings.Join(os.Args[1:], " ")
	}
	r.Versions["go"] = runtime.Version()
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(compared, m.Path) {
				r.Versions[m.Path] = m.Version
			}
		}
	}
	if out, err := exec.Command(redis, "--version").Output(); err == nil {
		r.Versions["redis-server"] = strings.TrimPrefix(strings.Fields(string(out) + " - - -")[2], "v=")
	}
	r.Machine = Machine{Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, LoadBefore: loadNow()}
	if c, err := cpu.Info(); err == nil && len(c) > 0 {
		r.Machine.CPU = c[0].ModelName
	}
	if h, err := host.Info(); err == nil {
		r.Machine.System += ", " + h.Platform + " " + h.PlatformVersion + ", kernel " + h.KernelVersion
	}
	return r
}

func loadNow() float64 {
	if l, err := load.Avg(); err == nil {
		return l.Load1
	}
	return 0
}

func (r *Result) finish() {
	r.Took = time.Since(r.Date).Round(time.Second).String()
	r.Machine.LoadAfter = loadNow()
	for _, c := range r.Classes {
		for _, s := range c.Sides {
			r.Sections += s.Sections
		}
	}
}

// Violations returns an error that names the sides that failed to provide mutual exclusion or
// whose fencing tokens did not rise.
func (r *Result) Violations() error {
	var errs []error
	for _, c := range r.Classes {
		for _, s := range c.Sides {
			if s.Lost != 0 {
				errs = append(errs, fmt.Errorf("%s, %s: another holder was inside during %d of %d critical sections", c.Title, s.Name, s.Lost, s.Sections))
			}
			if s.Stale != 0 {
				errs = append(errs, fmt.Errorf("%s, %s: %d of %d fencing tokens were not above all earlier ones", c.Title, s.Name, s.Stale, s.Sections))
			}
		}
	}
	return errors.Join(errs...)
}

// Failed returns an error that lists the failures. The report lists them as well.
func (r *Result) Failed() error {
	var errs []error
	for _, row := range r.rows(func(s *SideResult) []string { return s.Failures }) {
		errs = append(errs, errors.New("failed: "+strings.Join(row, ", ")))
	}
	return errors.Join(errs...)
}

//go:embed report.md.tmpl
var reportText string

// write writes the report, the plots and the raw numbers under dir.
func (r *Result) write(dir string) error {
	sub := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(sub, "raw.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	drawn, err := r.plots(sub)
	if err != nil {
		return err
	}
	report, err := template.New("report").Funcs(template.FuncMap{
		"table":   table,
		"contend": contentionTable,
		"alone":   r.aloneTable,
		"skipped": func() string {
			return listed([]string{"class", "side", "why it is not measured"}, "all are", r.rows(func(s *SideResult) []string {
				return slices.DeleteFunc([]string{s.Skipped}, func(why string) bool { return why == "" })
			}))
		},
		"failed": func() string {
			return listed([]string{"class", "side", "what failed"}, "nothing", r.rows(func(s *SideResult) []string { return s.Failures }))
		},
		"sides": func() []Side { return sides },
		"plots": func() []plotted { return drawn },
	}).Parse(reportText)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		return err
	}
	return errors.Join(report.Execute(f, r), f.Close())
}

// rewrite regenerates the report and the plots from existing raw numbers.
func rewrite(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "benchmarks", "raw.json"))
	if err != nil {
		return err
	}
	var r Result
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	return r.write(dir)
}

// rows calls of for every side of every class, and returns a row for each text it gets back.
func (r *Result) rows(of func(*SideResult) []string) (rows [][]string) {
	for _, c := range r.Classes {
		for _, s := range c.Sides {
			for _, text := range of(s) {
				rows = append(rows, []string{c.Title, s.Name, text})
			}
		}
	}
	return rows
}

// listed returns a table of rows. If there are no rows, the table contains only the text in
// nothing.
func listed(columns []string, nothing string, rows [][]string) string {
	if len(rows) == 0 {
		rows = [][]string{{"", "", nothing}}
	}
	return markdown("---", columns, rows)
}

// markdown returns a Markdown table. align is the separator for every column but the first.
func markdown(align string, columns []string, rows [][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat(align+"|", len(columns)-1))
	for _, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	return b.String()
}

// contentionTable returns the Markdown table of a class's contention figures.
func contentionTable(c *ClassResult) string {
	columns := []string{"8 contenders", "one client: grants/s", "longest wait", "messages sent per grant", "two clients: grants/s", "longest wait", "messages sent per grant"}
	var rows [][]string
	for _, s := range c.Sides {
		if s.median(contended) == 0 && s.median(contended+localSuffix) == 0 {
			continue
		}
		row := []string{s.Name}
		for _, suffix := range []string{localSuffix, ""} {
			row = append(row, number(s.median(contended+suffix)), duration(s.median(longestWait+suffix)), s.format(sentEach+suffix, "%.3g"))
		}
		rows = append(rows, row)
	}
	return markdown("---:", columns, rows)
}

// aloneTable returns the Markdown table of the figures that are measured only for natslock.
func (r *Result) aloneTable() string {
	columns := []string{"", "notification of a break, p50", "p99"}
	for _, n := range readers {
		columns = append(columns, fmt.Sprintf("%d readers join, p50", n), "p99")
	}
	var rows [][]string
	for _, c := range r.Classes {
		s := c.side(natslockSide.Name)
		if s.median(brokenP50)+s.median(joinP50(readers[0])) == 0 {
			continue
		}
		row := []string{c.Title, duration(s.median(brokenP50)), duration(s.median(brokenP99))}
		for _, n := range readers {
			row = append(row, duration(s.median(joinP50(n))), duration(s.median(joinP99(n))))
		}
		rows = append(rows, row)
	}
	return markdown("---:", columns, rows)
}

// table returns the main Markdown table of a class.
func table(c *ClassResult) string {
	columns := []string{
		"", "cycle p50", "p99", "to bare", "allocations", "cycles/s, 64 names", "to bare",
		"hand-over, 1 waiter", "10", "100", "cores while 100 wait",
	}
	var rows [][]string
	bare := c.side(bareSide.Name)
	for _, s := range c.Sides {
		if s.Skipped != "" {
			rows = append(rows, append([]string{s.Name, "skipped"}, make([]string, len(columns)-2)...))
			continue
		}
		if len(s.Figures[cycleP50]) == 0 && len(s.Failures) == 0 {
			continue // measured only in other steps
		}
		ratio := func(figure string) string {
			limit := bare.median(figure)
			switch v := s.median(figure) / max(limit, 1e-12); {
			case limit == 0 || v == 0:
				return "-"
			case v < 0.1:
				return fmt.Sprintf("%.1g", v)
			default:
				return fmt.Sprintf("%.2f", v)
			}
		}
		row := []string{
			s.Name, duration(s.median(cycleP50)), duration(s.median(cycleP99)), ratio(cycleP50),
			number(s.median(allocs)), number(s.median(throughput)), ratio(throughput),
		}
		for _, n := range crowd {
			row = append(row, duration(s.median(handOverP50(n))))
		}
		switch {
		case len(s.Failures) > 0 && len(s.Figures) == 0:
			row[0] += " (failed, see below)"
		case len(s.Failures) > 0:
			row[0] += " (failed at times, see below)"
		}
		rows = append(rows, append(row, s.format(waitingCPU, "%.2f")))
	}
	return markdown("---:", columns, rows)
}

// format formats the median of a figure, or returns "-" if the figure was not measured. Unlike
// number, it formats a median of 0.
func (s *SideResult) format(figure, format string) string {
	if len(s.Figures[figure]) == 0 {
		return "-"
	}
	return fmt.Sprintf(format, s.median(figure))
}

func number(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", v)
}

// duration formats a time with three significant digits.
func duration(seconds float64) string {
	switch {
	case seconds == 0:
		return "-"
	case seconds < 1e-3:
		return fmt.Sprintf("%.3g µs", seconds*1e6)
	case seconds < 1:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}
