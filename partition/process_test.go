//go:build !windows

package partition_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/testutil"
)

const (
	workerID = "NATSLOCK_PARTITION_ID"
	// processTTL is the workers' lease.
	processTTL = 3 * time.Second
	processes  = 64 // partitions
)

func init() { beWorker = work }

// work is a worker process. It reads the commands cut, heal and leave from its standard input. On
// its standard output it writes "b" when it starts working on a partition, "s" for each step that
// was inside the validity both before and after, and "e" when its function returns, each with the
// partition, the token and the time.
func work(url string) {
	link := testutil.NewLink()
	nc, err := nats.Connect(url, nats.SetCustomDialer(link), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		panic(err)
	}
	locks, err := natslock.New(context.Background(), nc, natslock.WithTTL(processTTL))
	if err != nil {
		panic(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			switch in.Text() {
			case "cut":
				link.Cut()
			case "heal":
				link.Heal()
			case "leave":
				leave()
			}
		}
		os.Exit(3) // the test has ended
	}()
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	say := func(what string, p *partition.Partition, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, what, p.Number(), p.Token(), at.UnixNano())
		_ = out.Flush()
	}
	g := partition.New(locks, name, processes, partition.ID(os.Getenv(workerID)))
	_ = g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
		begun := time.Now()
		if p.Lock().Remaining() > 0 {
			say("b", p, begun)
		}
		for {
			select {
			case <-p.Leaving():
				say("e", p, time.Now())
				return nil
			case <-ctx.Done():
				return nil
			case <-time.After(25 * time.Millisecond):
			}
			if now := time.Now(); p.Lock().Remaining() > 0 { // the clock was read first
				say("s", p, now)
			}
		}
	})
	_ = locks.Close(context.Background())
	nc.Close()
}

// tenure is the time that a worker spent working on a partition, from its first step to its last.
type tenure struct {
	partition  int
	token      uint64
	worker     string
	begin, end time.Time
	left       bool // the worker left rather than losing the partition
}

// process is a worker process.
type process struct {
	id   string
	cmd  *exec.Cmd
	in   io.WriteCloser
	read chan struct{}
}

// plant runs workers as separate processes.
type plant struct {
	t   *testing.T
	url string

	mu      sync.Mutex
	tenures map[string]*tenure
	all     []*tenure
}

func (p *plant) start(id string) *process {
	exe, err := os.Executable()
	require.NoError(p.t, err)
	x := &process{id: id, cmd: exec.Command(exe), read: make(chan struct{})}
	x.cmd.Env = append(os.Environ(), workerURL+"="+p.url, workerID+"="+id)
	x.cmd.Stderr = io.Discard
	x.in, err = x.cmd.StdinPipe()
	require.NoError(p.t, err)
	out, err := x.cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, x.cmd.Start())
	go func() {
		defer close(x.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var what string
			var k int
			var token uint64
			var nanos int64
			if n, _ := fmt.Sscan(lines.Text(), &what, &k, &token, &nanos); n == 4 {
				p.note(id, what, k, token, time.Unix(0, nanos))
			}
		}
	}()
	p.t.Cleanup(func() { _ = x.cmd.Process.Kill(); x.wait() })
	return x
}

func (p *plant) note(id, what string, k int, token uint64, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := fmt.Sprint(id, k, token)
	t := p.tenures[key]
	if t == nil {
		t = &tenure{partition: k, token: token, worker: id, begin: at}
		p.tenures[key] = t
		p.all = append(p.all, t)
	}
	t.end, t.left = at, what == "e"
}

// working returns how many partitions each worker has been working on during the last moment.
func (p *plant) working() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := map[string]int{}
	for _, t := range p.all {
		if !t.left && time.Since(t.end) < 400*time.Millisecond {
			n[t.worker]++
		}
	}
	return n
}

func (x *process) say(command string) { fmt.Fprintln(x.in, command) }

func (x *process) wait() {
	<-x.read
	_ = x.cmd.Wait() // a killed process returns an error
}

// balance waits until the given workers share the partitions.
func (p *plant) balance(what string, within time.Duration, workers map[string]*process) {
	begun := time.Now()
	for {
		n, ok := p.working(), true
		total := 0
		for id := range workers {
			total += n[id]
			ok = ok && (n[id] == processes/len(workers) || n[id] == (processes+len(workers)-1)/len(workers))
		}
		if ok && total == processes {
			p.t.Logf("%s: balanced after %v", what, time.Since(begun).Round(time.Millisecond))
			return
		}
		require.Less(p.t, time.Since(begun), within, "%s: %v", what, n)
		time.Sleep(5 * time.Millisecond)
	}
}

// TestProcesses runs workers as processes. The fleet grows from 1 to 8 and shrinks to 3, workers
// join while others leave, get killed, are stopped past the TTL or are cut off, and finally half of
// the fleet is cut off.
func TestProcesses(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	p := &plant{t: t, url: s.Server().ClientURL(), tenures: map[string]*tenure{}}
	workers := map[string]*process{}
	join := func(id string) { workers[id] = p.start(id) }
	leave := func(id string) *process {
		x := workers[id]
		delete(workers, id)
		x.say("leave")
		return x
	}
	crashed := processTTL + 2*time.Second // the paper requires TTL + 1 s, but the processes report with a delay
	for i := 1; i <= 8; i++ {
		join(fmt.Sprintf("w%d", i))
		p.balance(fmt.Sprintf("join of %d", i), 5*time.Second, workers)
	}
	for i := 8; i > 3; i-- {
		x := leave(fmt.Sprintf("w%d", i))
		p.balance(fmt.Sprintf("leave of %d", i), 5*time.Second, workers)
		x.wait()
	}
	x, y := leave("w1"), leave("w2")
	join("w4")
	join("w5")
	join("w6")
	p.balance("three join while two leave", 8*time.Second, workers)
	x.wait()
	y.wait()

	require.NoError(t, workers["w4"].cmd.Process.Kill())
	delete(workers, "w4")
	p.balance("kill", crashed, workers)
	join("w4")
	p.balance("back", 5*time.Second, workers)

	stopped := workers["w5"]
	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
	delete(workers, "w5")
	p.balance("stop", crashed, workers)
	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	workers["w5"] = stopped
	p.balance("continue", 5*time.Second, workers)

	away := map[string]*process{}
	for _, id := range []string{"w5", "w6"} {
		away[id] = workers[id]
		delete(workers, id)
		away[id].say("cut")
	}
	p.balance("half of the fleet is cut off", crashed, workers)
	for id, x := range away {
		x.say("heal")
		workers[id] = x
	}
	p.balance("heal", 8*time.Second, workers)

	// Everything happens at the same time.
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		id := fmt.Sprintf("w%d", 1+rng.IntN(8))
		switch x, there := workers[id]; {
		case !there:
			join(id)
		case rng.IntN(4) == 0 && len(workers) > 2:
			leave(id)
		case rng.IntN(4) == 0 && len(workers) > 2:
			require.NoError(t, x.cmd.Process.Kill())
			delete(workers, id)
		case rng.IntN(2) == 0:
			require.NoError(t, x.cmd.Process.Signal(syscall.SIGSTOP))
			time.AfterFunc(time.Duration(rng.IntN(5000))*time.Millisecond, func() { _ = x.cmd.Process.Signal(syscall.SIGCONT) })
		default:
			x.say("cut")
			time.AfterFunc(time.Duration(rng.IntN(5000))*time.Millisecond, func() { x.say("heal") })
		}
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)

	}
	time.Sleep(5 * time.Second)
	p.balance("after the storm", processTTL+10*time.Second, workers)
	for id := range workers {
		x := leave(id)
		defer x.wait()
	}
	time.Sleep(time.Second)
	p.judge()
}

// judge looks for two workers inside the same partition and for tokens out of order.
func (p *plant) judge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortFunc(p.all, func(a, b *tenure) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.token, b.token))
	})
	var gaps []time.Duration
	for i, t := range p.all[1:] {
		before := p.all[i]
		if before.partition != t.partition {
			continue
		}
		require.True(p.t, before.end.Before(t.begin), "partition %d: %s worked until %v, and %s from %v on", t.partition, before.worker, before.end, t.worker, t.begin)
		if before.left {
			gaps = append(gaps, t.begin.Sub(before.end))
		}
	}
	slices.Sort(gaps)
	p.t.Logf("%d tenures, none overlap; %d hand-overs, half of them within %v, all within %v", len(p.all), len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
	require.Greater(p.t, len(gaps), processes)
}
