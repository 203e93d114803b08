//go:build unix

// Package smoke_test builds the examples and runs each of them against a real server as its
// comments describe. Examples that share something run in several processes at once.
package smoke_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// smokes maps each example to its test.
var smokes = map[string]func(t *testing.T, s *testutil.Server){
	"accounts": accounts,
	"cache":    cache,
	"cron":     cron,
	"exports":  exports,
	"failover": failover,
	"mutex":    mutex,
	"orders":   orders,
	"worker":   worker,

	"partitions": partitions,
	"quickstart": quickstart,
	"singleton":  singleton,

	"distkit":   distkit,
	"gocell":    gocell,
	"grove":     grove,
	"machinery": machinery,
	"spindle":   spindle,
}

// binaries is the directory that the examples are built into.
var binaries string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if !tier.IsProof() {
		return m.Run() // which skips every test that runs the programs
	}
	var err error
	if binaries, err = os.MkdirTemp("", "examples-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binaries)
	if out, err := exec.Command("go", "build", "-o", binaries, "../...").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func TestExamples(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	built, err := os.ReadDir(binaries)
	require.NoError(t, err)
	require.Len(t, built, len(smokes))
	for _, b := range built {
		smoke := smokes[b.Name()]
		require.NotNil(t, smoke, "nothing tries %s", b.Name())
		t.Run(b.Name(), func(t *testing.T) {
			t.Parallel()
			smoke(t, testutil.RunServer(t))
		})
	}
}

// mutex checks that no deposit is lost, and that each deposit's token is greater than the previous
// one's.
func mutex(t *testing.T, s *testutil.Server) {
	const each = 5
	a, b := start(t, s, "mutex", "-times", strconv.Itoa(each)), start(t, s, "mutex", "-times", strconv.Itoa(each))
	a.mustEnd()
	b.mustEnd()
	type deposit struct{ balance, token int }
	var all []deposit
	for _, m := range append(a.find(`balance (\d+), token (\d+)`), b.find(`balance (\d+), token (\d+)`)...) {
		all = append(all, deposit{number(t, m[1]), number(t, m[2])})
	}
	slices.SortFunc(all, func(a, b deposit) int { return a.balance - b.balance })
	require.Len(t, all, 2*each)
	for i, d := range all {
		require.Equal(t, i+1, d.balance)
		require.True(t, i == 0 || d.token > all[i-1].token, "tokens in the order of the deposits: %v", all)
	}
}

// quickstart runs two processes that take turns, and checks that the later one has the greater
// token.
func quickstart(t *testing.T, s *testutil.Server) {
	a, b := start(t, s, "quickstart"), start(t, s, "quickstart")
	a.mustEnd()
	b.mustEnd()
	type step struct{ at, token string }
	var all []step
	for _, p := range []*process{a, b} {
		begin, end := p.find(`(?m)^(\S+) pid \d+: starting, token (\d+)`), p.find(`(?m)^(\S+) pid \d+: done`)
		require.Len(t, begin, 1)
		require.Len(t, end, 1)
		all = append(all, step{begin[0][1], begin[0][2]}, step{end[0][1], begin[0][2]})
	}
	slices.SortFunc(all, func(a, b step) int { return strings.Compare(a.at, b.at) })
	require.Equal(t, all[0].token, all[1].token, "one ends before the other begins: %v", all)
	require.Equal(t, all[2].token, all[3].token, "one ends before the other begins: %v", all)
	require.Greater(t, number(t, all[2].token), number(t, all[0].token))
}

// singleton pauses a worker past its term. The server must refuse what the worker then writes. The
// next worker has continued the numbering by then, and the first one later continues after it.
func singleton(t *testing.T, s *testutil.Server) {
	a := start(t, s, "singleton")
	a.await(`wrote order 1,`)
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	b := start(t, s, "singleton")
	b.await(`wrote order \d+,`)
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
	a.await(`order \d+: .*superseded`)
	b.terminate()
	a.await(`(?s)superseded.*wrote order`)
	a.terminate()

	// No number occurs twice. A number can be missing if a worker was stopped before it could report
	// it.
	token := map[int]int{}
	for _, m := range append(a.find(`wrote order (\d+), token (\d+)`), b.find(`wrote order (\d+), token (\d+)`)...) {
		order := number(t, m[1])
		require.Zero(t, token[order], "order %d is there twice", order)
		token[order] = number(t, m[2])
	}
	orders := slices.Sorted(maps.Keys(token))
	require.True(t, slices.IsSortedFunc(orders, func(x, y int) int { return token[x] - token[y] }), "%v", token)
	terms := slices.Compact(slices.Sorted(maps.Values(token)))
	require.GreaterOrEqual(t, len(terms), 3, "the first worker, the next one, and the first one again")
}

// failover checks that the other process takes over when the leader exits.
func failover(t *testing.T, s *testutil.Server) {
	a := start(t, s, "failover")
	first := a.await(`leading, token (\d+)`)
	b := start(t, s, "failover")
	b.await(`campaigning`)
	a.await(`still leading`)
	require.Empty(t, b.find(`leading, token`), "two leaders")
	a.terminate()
	second := b.await(`leading, token (\d+)`)
	require.Greater(t, number(t, second[1]), number(t, first[1]))
	require.Len(t, a.find(`shutting down`), 1)
	b.terminate()
}

// cron runs two processes, and checks that no period runs the job twice. The period is long enough
// that a busy machine does not miss one.
func cron(t *testing.T, s *testutil.Server) {
	const period, times = 4, 1
	a := start(t, s, "cron", "-period", fmt.Sprint(period, "s"), "-times", strconv.Itoa(times))
	b := start(t, s, "cron", "-period", fmt.Sprint(period, "s"), "-times", strconv.Itoa(times))
	a.mustEnd()
	b.mustEnd()
	// The period of each run, by the time of day in the log.
	const ran = `(?m) (\d+):(\d+):(\d+) pid \d+: creating \S+, token \d+`
	seen := map[int]bool{}
	for _, m := range append(a.find(ran), b.find(ran)...) {
		p := (number(t, m[1])*3600 + number(t, m[2])*60 + number(t, m[3])) / period
		require.False(t, seen[p], "twice in a period:\n%s%s", a.out, b.out)
		seen[p] = true
	}
	require.GreaterOrEqual(t, len(seen), times)
	left := len(a.find(`left to others`)) + len(b.find(`left to others`))
	require.Equal(t, 2*times, len(seen)+left, "each of them tried in each of its periods")
}

// patience bounds steps that should be instantaneous, so only a failing test ever waits that long.
const patience = 30 * time.Second

// process is a running example.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *kit.Log
	done chan struct{}
}

func start(t *testing.T, s *testutil.Server, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, name), args...)
	cmd.Env = append(os.Environ(), "NATS_URL="+s.URL())
	return startCommand(t, cmd)
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, out: &kit.Log{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s: %v\n%s", p.cmd, p.cmd.ProcessState, p.out)
		}
	})
	return p
}

// mustEnd waits for the process to exit successfully.
func (p *process) mustEnd() {
	p.t.Helper()
	select {
	case <-p.done:
		require.Zero(p.t, p.cmd.ProcessState.ExitCode())
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.cmd)
	}
}

func (p *process) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.mustEnd()
}

// find returns all matches of pattern in the output.
func (p *process) find(pattern string) [][]string {
	return regexp.MustCompile(pattern).FindAllStringSubmatch(p.out.String(), -1)
}

// await waits until pattern matches the output, and returns the first match.
func (p *process) await(pattern string) []string {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if m := p.find(pattern); len(m) > 0 {
			return m[0]
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s does not say %q", p.cmd, pattern)
		}
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
