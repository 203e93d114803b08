package simulation_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
)

const (
	shrinking = time.Minute // limits the time spent on making a plan smaller
	tries     = 3           // runs in which a smaller plan may fail, because two runs of a plan differ
)

var (
	simPlan = flag.String("plan", "", "the plan of the seed, as a failing test prints it: clients=2 mutexes=1 ...")
	shrunk  sync.Once // other plans that fail are not shrunk
)

// settings returns the settings of a plan that -plan can set.
func (p *plan) settings() *flag.FlagSet {
	s := flag.NewFlagSet("plan", flag.ContinueOnError)
	for name, n := range map[string]*int{
		"clients": &p.clients, "workers": &p.workers, "crowd": &p.crowd, "rounds": &p.rounds,
		"mutexes": &p.mutexes, "rws": &p.rws, "sems": &p.sems, "remakes": &p.remakes,
	} {
		s.IntVar(n, name, *n, "")
	}
	for name, d := range map[string]*time.Duration{
		"outages": &p.outages, "meddles": &p.meddles, "forge": &p.forge, "crashes": &p.crashes, "closes": &p.closes,
		"linger": &p.linger, "lag": &p.lag,
	} {
		s.DurationVar(d, name, *d, "")
	}
	for name, f := range map[string]*float64{
		"hours": &p.hours, "blind": &p.blind, "drop": &p.rates.Drop, "loseAnswer": &p.rates.LoseAnswer, "delay": &p.rates.Delay,
		"delayAnswer": &p.rates.DelayAnswer, "refuse": &p.rates.Refuse, "notSent": &p.rates.NotSent, "dropEvent": &p.rates.DropEvent,
	} {
		s.Float64Var(f, name, *f, "")
	}
	return s
}

// set applies the value of -plan. A setting that is missing from it is zero.
func (p *plan) set(text string) error {
	p.settings().VisitAll(func(f *flag.Flag) { _ = f.Value.Set("0") })
	for _, c := range strings.Fields(text) {
		name, value, _ := strings.Cut(c, "=")
		if err := p.settings().Set(name, value); err != nil {
			return fmt.Errorf("-plan: %s: %w", c, err)
		}
	}
	return nil
}

// String returns the settings in the form that -plan accepts.
func (p plan) String() string {
	var all []string
	p.settings().VisitAll(func(f *flag.Flag) {
		if v := f.Value.String(); v != "0" && v != "0s" {
			all = append(all, f.Name+"="+v)
		}
	})
	return strings.Join(all, " ")
}

// smaller returns the plans with less of one setting, the smallest first.
func (p plan) smaller(f *flag.Flag) (all []plan) {
	var less []any
	switch v := f.Value.(flag.Getter).Get().(type) {
	case int:
		less = slices.Compact([]any{min(v, 1), v / 2, max(v-1, 0)})
	case time.Duration:
		less = []any{"0s"}
	case float64:
		less = []any{0}
		if f.Name == "hours" {
			less = []any{v / 8, v / 2}
		}
	}
	for _, v := range less {
		q := p
		_ = q.settings().Set(f.Name, fmt.Sprint(v))
		if q.String() != p.String() && q.clients > 0 && q.mutexes+q.rws+q.sems > 0 && q.hours > 0.001 {
			all = append(all, q)
		}
	}
	return all
}

// shrink makes a failing plan smaller, one setting after another, until no smaller plan fails.
// It returns the smallest plan that has failed.
func shrink(p plan, fails func(plan) bool) plan {
	names := []string{"hours"} // first, because it makes the others fast
	p.settings().VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	for since := 0; since < len(names); since++ { // since the last success
		for all := p.smaller(p.settings().Lookup(names[0])); len(all) > 0; all = all[1:] {
			for n := 0; n < tries; n++ {
				if q := all[0]; fails(q) {
					p, since, n = q, -1, tries
					all = append(all[:1:1], q.smaller(q.settings().Lookup(names[0]))...)
				}
			}
		}
		names = append(names[1:], names[0])
	}
	return p
}

// verify simulates a plan and judges what happens. If the plan fails, verify prints it, shrinks
// it for a minute, and fails with the history of the smallest plan that broke one of the same
// checks.
func verify(t *testing.T, p plan, test string, least map[string]int) *history.History {
	t.Helper()
	if *simPlan != "" {
		require.NoError(t, p.set(*simPlan))
		least = nil
	}
	h := simulate(t, p, test)
	checks := map[int]bool{0: t.Failed()} // 0 stands for the simulation's own assertions
	for _, v := range history.Verify(t, h, history.Options{Least: least}) {
		checks[v.Check] = v.Check != 8 // a smaller plan shows less
	}
	if !t.Failed() || flag.Lookup("test.failfast").Value.String() == "true" || *simPlan != "" {
		return h
	}
	shrunk.Do(func() {
		smallest := h
		p.over = new(atomic.Bool)
		defer time.AfterFunc(shrinking, func() { p.over.Store(true) }).Stop()
		p = shrink(p, func(q plan) (fails bool) {
			if p.over.Load() {
				return false
			}
			t.Run("smaller", func(t *testing.T) {
				h := simulate(t, q, test)
				fails = t.Failed() && checks[0]
				for _, v := range history.Check(h, history.Options{Patience: time.Second}) {
					fails = fails || checks[v.Check]
				}
				if fails {
					smallest = h
				}
			})
			return fails
		})
		t.Logf("the smallest plan that failed: %v\n%s", p, smallest.Repeat)
		history.Verify(t, smallest, history.Options{})
	})
	return h
}

// If a plan fails because of some of its settings, in every other run, shrink leaves only those,
// as small as possible. What it prints makes the same plan again.
func TestShrink(t *testing.T) {
	p := planOf(1, 1)
	p.clients, p.workers, p.rws, p.forge = 5, 4, 2, time.Minute
	runs := 0
	small := shrink(p, func(q plan) bool {
		require.NotZero(t, q.clients)
		require.NotZero(t, q.mutexes+q.rws+q.sems)
		runs++
		return runs%2 == 0 && q.clients >= 2 && q.workers >= 3 && q.forge > 0 && q.rates.LoseAnswer > 0 && q.hours > 0.1
	})
	require.Equal(t, fmt.Sprintf("clients=2 forge=1m0s hours=0.125 loseAnswer=%v rws=1 workers=3", p.rates.LoseAnswer), small.String())
	require.NoError(t, p.set(small.String()))
	require.Equal(t, small, p)
	require.Error(t, p.set("clients=many"))
	require.Equal(t, small, shrink(small, func(plan) bool { return false }))
}
