//go:build unix

package main

import (
	"bytes"
	"context"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"go.uber.org/goleak"

	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds steps that should be instantaneous, so only a failing test ever waits that long.
const patience = 60 * time.Second

func TestReplicas(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "asynq")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Run("killed", func(t *testing.T) { killed(t, binary) })
	t.Run("stopped", func(t *testing.T) { stopped(t, binary) })
}

// killed runs two replicas, of which one enqueues. When the leader is killed, the other takes over
// and skips no tick, and a worker receives each tick exactly once.
func killed(t *testing.T, binary string) {
	t.Parallel()
	r := newRig(t)
	handled := r.work()
	first, next := r.pair(binary)
	first.await(`enqueued tick`, 61) // those of the last minute, and one later
	require.Empty(t, next.find(`leading, token`), "two leaders")
	require.NoError(t, first.cmd.Process.Kill())
	<-first.done
	next.await(`enqueued tick`, 2)
	next.terminate()

	stored := r.stored()
	inOrder(t, stored)
	require.Empty(t, shared(first, next), "both have enqueued a tick")
	// Ticks that Redis had when the next leader began.
	require.NotEmpty(t, next.find(`was already enqueued`))
	require.Eventually(t, func() bool { return len(handled()) >= len(stored) }, patience, 5*time.Millisecond)
	require.Equal(t, stored, handled(), "the worker got each tick once")
}

// stopped pauses a leader past its lease and then lets it continue. Redis must never store a tick
// twice.
func stopped(t *testing.T, binary string) {
	t.Parallel()
	r := newRig(t)
	first, next := r.pair(binary)
	first.await(`enqueued tick`, 61)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	next.await(`enqueued tick`, 2)
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGCONT))
	first.await(`no longer leading`, 1)

	// When the leader exits, the other replica takes over immediately.
	next.terminate()
	require.Len(t, next.find(`no longer leading`), 1)
	first.await(`leading, token`, 2)
	first.terminate()
	inOrder(t, r.stored())
	require.Empty(t, shared(first, next), "both have enqueued a tick")
}

// TestSecondLine checks that Redis refuses a tick it already has, even if the tick's task is done.
func TestSecondLine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	queue := asynq.NewClient(r.redis())
	t.Cleanup(func() { require.NoError(t, queue.Close()) })
	tick := time.Now().UTC().Truncate(time.Minute)
	require.NoError(t, enqueue(t.Context(), queue, tick))
	require.NoError(t, enqueue(t.Context(), queue, tick))
	require.Len(t, r.stored(), 1)
	handled := r.work()
	require.Eventually(t, func() bool {
		done, err := r.inspect.ListCompletedTasks("default")
		return err == nil && len(done) == 1
	}, patience, 5*time.Millisecond)
	require.NoError(t, enqueue(t.Context(), queue, tick))
	require.NoError(t, enqueue(t.Context(), queue, tick.Add(time.Minute)))
	require.Eventually(t, func() bool { return len(handled()) == 2 }, patience, 5*time.Millisecond)
	require.Len(t, r.stored(), 2)

	// Without Redis the leader gives up, because another replica may still be able to reach it.
	r.mini.Close()
	every, err := parse("* * * * * *")
	require.NoError(t, err)
	require.Error(t, schedule(t.Context(), queue, every))
}

// TestSchedules checks that the ticks of a schedule do not depend on when a replica starts.
func TestSchedules(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"@every 5s", "* * * *", ""} {
		_, err := parse(bad)
		require.Error(t, err, bad)
	}
	every, err := parse("0 3 * * *")
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), every.Next(time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)))
}

// rig is a NATS server together with a Redis server.
type rig struct {
	t       *testing.T
	nats    *testutil.Server
	mini    *miniredis.Miniredis
	inspect *asynq.Inspector
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, nats: testutil.RunServer(t), mini: miniredis.RunT(t)}
	r.inspect = asynq.NewInspector(r.redis())
	t.Cleanup(func() { require.NoError(t, r.inspect.Close()) })
	return r
}

func (r *rig) redis() asynq.RedisClientOpt { return asynq.RedisClientOpt{Addr: r.mini.Addr()} }

// pair starts two replicas, the first of which leads.
func (r *rig) pair(binary string) (first, next *replica) {
	first = r.start(binary)
	first.await(`leading, token`, 1)
	next = r.start(binary)
	next.await(`campaigning`, 1)
	return first, next
}

// work starts a worker that processes the tasks. handled returns their ticks in order.
func (r *rig) work() (handled func() []string) {
	var mu sync.Mutex
	var ticks []string
	server := asynq.NewServer(r.redis(), asynq.Config{LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond})
	require.NoError(r.t, server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		mu.Lock()
		defer mu.Unlock()
		ticks = append(ticks, string(task.Payload()))
		return nil
	})))
	r.t.Cleanup(server.Shutdown)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(ticks))
	}
}

// stored returns, in order, the ticks for which Redis has a task.
func (r *rig) stored() []string {
	seen := map[string]bool{} // a task that moves between the calls can be in two lists
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		r.inspect.ListPendingTasks, r.inspect.ListActiveTasks, r.inspect.ListCompletedTasks,
	} {
		tasks, err := list("default", asynq.PageSize(1000))
		require.NoError(r.t, err)
		for _, task := range tasks {
			seen[string(task.Payload)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// inOrder requires that every second occurs exactly once, without gaps.
func inOrder(t *testing.T, ticks []string) {
	t.Helper()
	require.Greater(t, len(ticks), 60)
	begin, err := time.Parse(time.RFC3339, ticks[0])
	require.NoError(t, err)
	for i, tick := range ticks {
		require.Equal(t, begin.Add(time.Duration(i)*time.Second).Format(time.RFC3339), tick)
	}
}

// shared returns the ticks that were enqueued twice, whether by two replicas or by one.
func shared(replicas ...*replica) (twice []string) {
	seen := map[string]bool{}
	for _, r := range replicas {
		for _, m := range r.find(`enqueued tick (\S+)`) {
			if seen[m[1]] {
				twice = append(twice, m[1])
			}
			seen[m[1]] = true
		}
	}
	return twice
}

// replica is a running process of the program.
type replica struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (r *rig) start(binary string) *replica {
	p := &replica{t: r.t, done: make(chan struct{})}
	p.cmd = exec.Command(binary, "-server", r.nats.URL(), "-redis", "redis://"+r.mini.Addr(), "-cron", "* * * * * *", "-ttl", "2s")
	p.cmd.Stdout, p.cmd.Stderr = p, p
	require.NoError(r.t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	r.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if r.t.Failed() {
			r.t.Logf("pid %d: %v\n%s", p.cmd.Process.Pid, p.cmd.ProcessState, p.out.Bytes())
		}
	})
	return p
}

func (p *replica) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// find returns all matches of pattern in the output.
func (p *replica) find(pattern string) [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return regexp.MustCompile(pattern).FindAllStringSubmatch(p.out.String(), -1)
}

// await waits until pattern matches the output n times.
func (p *replica) await(pattern string, n int) {
	p.t.Helper()
	for end := time.Now().Add(patience); len(p.find(pattern)) < n; time.Sleep(5 * time.Millisecond) {
		require.True(p.t, time.Now().Before(end), "no %d times %q", n, pattern)
	}
}

// terminate shuts the replica down gracefully.
func (p *replica) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
		require.Zero(p.t, p.cmd.ProcessState.ExitCode())
	case <-time.After(patience):
		p.t.Fatal("the replica does not end")
	}
}
