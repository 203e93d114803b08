package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test be the servers as well.
func TestMain(m *testing.M) {
	runChild()
	os.Exit(m.Run())
}

// contend counts under one lock from several goroutines on two clients.
func contend(t *testing.T, clients []Client, goroutines, each int) *audit {
	t.Helper()
	var p protected
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range goroutines {
		all.Go(func() {
			for range each {
				unlock, token, err := lock(ctx, clients[i%len(clients)], "contended")
				if !onNil(t, err) {
					return
				}
				entered := p.enter(token)
				time.Sleep(time.Millisecond) // for another goroutine to come in
				p.leave(entered)
				if !onNil(t, unlock(ctx)) {
					return
				}
			}
		})
	}
	all.Wait()
	var a audit
	a.add(&p)
	require.EqualValues(t, goroutines*each, a.sections.Load())
	return &a
}

// onNil reports an error from any goroutine.
func onNil(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// TestSides runs every side that this machine has once, and checks that it excludes.
func TestSides(t *testing.T) {
	s, err := startServers(t.Context(), classes[1], t.TempDir(), "redis-server")
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	for _, side := range sides {
		t.Run(side.Name, func(t *testing.T) {
			o := open(t.Context(), side, s)
			t.Cleanup(o.close)
			if o.result.Skipped != "" {
				require.NotEmpty(t, side.unfit(s), "%s", o.result.Skipped) // it is not there, or else it failed
				t.Skip(o.result.Skipped)
			}
			n := 4
			if side.Waiters > 0 {
				n = side.Waiters + 1
			}
			require.Zero(t, contend(t, o.clients, n, 3).lost.Load(), "it did not exclude")
			b := newBench(plan{rounds: 1, step: 50 * time.Millisecond})
			for i, step := range b.steps() {
				if step.waiters > 10 || !side.measures(step) {
					continue
				}
				figures, err := step.run(t.Context(), o, fmt.Sprint("step-", i))
				require.NoError(t, err, step.title)
				for name, v := range figures {
					require.Positive(t, v, name)
				}
			}
			require.Zero(t, o.audit.lost.Load(), "it did not exclude")
			require.Zero(t, o.audit.stale.Load(), "its tokens did not rise")
			require.Positive(t, o.audit.sections.Load())
		})
	}
}

// broken locks nothing.
type broken struct{}

func (broken) Lock(context.Context, string) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}

func (broken) Close() {}

// TestAuditSees: the audit finds a lock that does not exclude.
func TestAuditSees(t *testing.T) {
	require.Positive(t, contend(t, []Client{broken{}, broken{}}, 4, 3).lost.Load())
}

// repeated locks, with the same token each time.
type repeated struct{ mu *sync.Mutex }

func (r repeated) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	unlock, _, err := r.LockFenced(ctx, name)
	return unlock, err
}

func (r repeated) LockFenced(context.Context, string) (func(context.Context) error, uint64, error) {
	r.mu.Lock()
	return func(context.Context) error { r.mu.Unlock(); return nil }, 7, nil
}

func (repeated) Close() {}

// TestAuditSeesTokens finds a lock whose tokens do not rise, and reports it.
func TestAuditSeesTokens(t *testing.T) {
	a := contend(t, []Client{repeated{new(sync.Mutex)}}, 2, 2)
	require.Zero(t, a.lost.Load())
	require.EqualValues(t, 3, a.stale.Load())
	r := Result{Classes: []*ClassResult{{Sides: []*SideResult{{Name: "repeated", Stale: a.stale.Load(), Sections: 4}}}}}
	require.ErrorContains(t, r.Violations(), "3 of 4 fencing tokens")
}

// TestContentionTable has a row for each side that was measured, and its messages where
// they were counted.
func TestContentionTable(t *testing.T) {
	c := &ClassResult{Sides: []*SideResult{
		{Name: "bare publishes", Figures: map[string][]float64{cycleP50: {1}}},
		{Name: "natslock", Figures: map[string][]float64{
			contended: {9000, 8000, 10000}, longestWait: {0.005}, sentEach: {0.08},
			contended + localSuffix: {200000}, longestWait + localSuffix: {0.001}, sentEach + localSuffix: {0.016},
		}},
		{Name: "rueidislock", Figures: map[string][]float64{contended: {1000}, longestWait: {0.01}}},
		{Name: "etcd", Skipped: "missing"},
	}}
	text := contentionTable(c)
	require.Contains(t, text, "| natslock | 200000 | 1 ms | 0.016 | 9000 | 5 ms | 0.08 |\n")
	require.Contains(t, text, "| rueidislock | - | - | - | 1000 | 10 ms | - |\n")
	require.NotContains(t, text, "bare")
	require.NotContains(t, text, "etcd")
}

// TestLingerTables has the lingering side beside the peers of each class, where it was
// measured. A page of an older run says nothing about it.
func TestLingerTables(t *testing.T) {
	var r Result
	require.False(t, r.lingered())
	r.Classes = []*ClassResult{
		{Class: Class{Title: "Memory"}, Sides: []*SideResult{
			{Name: "natslock", Figures: map[string][]float64{contended: {50000}}},
			{Name: "natslock, Linger", Figures: map[string][]float64{
				cycleP50: {2e-6}, cycleP99: {5e-6}, cycleSent: {1. / 64}, readP50: {4e-6}, readP99: {6e-6},
				throughput: {400000}, idleLock: {900e-6}, idlePlace: {600e-6}, heldLock: {500e-6}, idleTry: {700e-6}, contended: {60000},
			}},
			{Name: "redislock", Figures: map[string][]float64{cycleP50: {200e-6}, throughput: {40000}}},
		}},
		{Class: Class{Title: "Three servers"}, Sides: []*SideResult{
			{Name: "natslock, Linger", Figures: map[string][]float64{cycleP50: {2e-6}}}, {Name: "redislock", Skipped: "one server"},
		}},
		{Class: Class{Title: "Files"}, Sides: []*SideResult{{Name: "natslock, Linger", Skipped: "missing"}}},
	}
	require.True(t, r.lingered())
	text := r.lingerTable()
	require.Contains(t, text, "| Memory | 2 µs | 5 µs | 100 | 64 | 4 µs | 6 µs | 50 | 400000 | 40000 | - |\n")
	require.Contains(t, text, "| Three servers | 2 µs | - | - |")
	require.NotContains(t, text, "Files")
	require.Contains(t, r.askTable(), "| Memory | 900 µs | 600 µs | 500 µs | 1.20 | 700 µs | 60000 | 50000 | 1.20 |\n")
}

// TestBeside measures another client beside few locks for a moment.
func TestBeside(t *testing.T) {
	b, err := beside(t.Context(), t.TempDir(), 100, 0, 2*time.Second)
	require.NoError(t, err)
	require.Zero(t, b.Lost)
	require.Positive(t, b.Renewals)
	require.Positive(t, b.Other.P50)
	t.Log(b)
}
