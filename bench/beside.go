package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// Beside is what another client sees of a client that holds many locks, and what these cost.
type Beside struct {
	Held     int     `json:"held"`
	Lost     int     `json:"lost"`
	Renewals float64 `json:"renewals"` // per second
	Other    Spread  `json:"other"`    // a lock of the other client
	Client   float64 `json:"client"`   // cores of the process that holds
	Server   float64 `json:"server"`   // cores
	Sent     float64 `json:"sent"`     // messages for each renewal
	Received float64 `json:"received"`
}

func (b *Beside) String() string {
	each := func(cores float64) float64 { return cores / max(b.Renewals, 1) * 1e6 }
	ms := func(s float64) float64 { return s * 1e3 }
	return fmt.Sprintf("| %d | %.0f | %.2f ms | %.1f ms | %.1f ms | %.2f, %.1f µs | %.2f, %.1f µs | %.2f, %.2f | %d |",
		b.Held, b.Renewals, ms(b.Other.P50), ms(b.Other.P99), ms(b.Other.Max),
		b.Client, each(b.Client), b.Server, each(b.Server), b.Sent, b.Received, b.Lost)
}

// beside holds n locks on a server with files, and has another client in a process of its own take
// locks for d meanwhile, from a time after the last lock was taken on.
func beside(ctx context.Context, dir string, n int, settle, d time.Duration) (_ *Beside, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	server, err := startChild(childConfig{Kind: "nats", Dir: filepath.Join(dir, "nats"), Port: ports[0], Peers: []int{0}})
	if err != nil {
		return nil, err
	}
	s := &Servers{Class: classes[1], NATS: []string{"nats://127.0.0.1:" + strconv.Itoa(ports[0])}, procs: map[string][]*child{"nats": {server}}, dir: dir}
	defer s.Stop()
	if err := s.waitFor(ctx, "nats"); err != nil {
		return nil, err
	}
	c, err := openNatslock(ctx, s)
	if err != nil {
		return nil, err
	}
	unlocks := make([]func(context.Context) error, n)
	defer func() { // most are still held: the server goes with them
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_ = c.Client.Close(ended)
		c.nc.Close()
		clear(unlocks)
	}()
	if err := spread(n, func(i int) (err error) {
		unlocks[i], err = c.Lock(ctx, "held."+strconv.Itoa(i))
		return err
	}); err != nil {
		return nil, err
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	other, err := startChild(childConfig{Kind: "other", Dir: filepath.Join(dir, "other"), URLs: s.NATS})
	if err != nil {
		return nil, err
	}
	defer other.kill()
	if err := other.wait(ctx, "the other client"); err != nil {
		return nil, err
	}
	serverCPU, err := usageOf(server.pid)
	if err != nil {
		return nil, err
	}
	before, msgs, own, begun := c.Stats(), c.nc.Stats(), ownUsage(), time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	own = ownUsage() - own
	used, err := usageOf(server.pid)
	if err != nil {
		return nil, err
	}
	stats, now, took := c.Stats(), c.nc.Stats(), time.Since(begun).Seconds()
	renewed := float64(stats.Renewed - before.Renewed)
	b := &Beside{
		Held: n, Lost: int(stats.Lost), Renewals: renewed / took, Client: own / took, Server: (used - serverCPU) / took,
		Sent: float64(now.OutMsgs-msgs.OutMsgs) / max(renewed, 1), Received: float64(now.InMsgs-msgs.InMsgs) / max(renewed, 1),
	}
	_ = other.stdin.Close()
	if err := other.cmd.Wait(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(otherResult(filepath.Join(dir, "other")))
	if err != nil {
		return nil, err
	}
	return b, json.Unmarshal(text, &b.Other)
}

// usageOf is the seconds of CPU that a process has used.
func usageOf(pid int32) (float64, error) {
	p, err := process.NewProcess(pid)
	if err != nil {
		return 0, err
	}
	t, err := p.Times()
	if err != nil {
		return 0, err
	}
	return t.User + t.System, nil
}

func otherResult(dir string) string { return filepath.Join(dir, "result.json") }

// runOther is the life of the other client: it takes and releases locks, with a pause of a
// millisecond, and writes how long its acquires took.
func runOther(c childConfig) error {
	client, err := openNatslock(context.Background(), &Servers{NATS: c.URLs, Class: classes[1]})
	if err != nil {
		return err
	}
	var took []time.Duration
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; !over.Load() && err == nil; i++ {
			var unlock func(context.Context) error
			begun := time.Now()
			if unlock, err = client.Lock(context.Background(), "other."+strconv.Itoa(i%1000)); err == nil {
				took = append(took, time.Since(begun))
				err = unlock(context.Background())
			}
			time.Sleep(time.Millisecond)
		}
	})
	serve(os.Getpid())
	over.Store(true)
	all.Wait()
	if err == nil && len(took) <= warmUp {
		err = errors.New("it took no locks")
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(spreadOf(slices.Clone(took[warmUp:])))
	if err != nil {
		return err
	}
	client.Close()
	return os.WriteFile(otherResult(c.Dir), text, 0o600)
}
