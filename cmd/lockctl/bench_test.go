//go:build unix

package main_test

import (
	"encoding/json"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

type measured struct {
	Server, Bucket        string
	Interrupted           bool
	Cycle, Bare, HandOver struct {
		N        int
		P50, P99 float64
	}
	Ratio float64
}

func benchmark(t *testing.T, out string) (m measured) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(out), &m), out)
	return m
}

func TestBench(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{"user": block(t, "orders.*.x")})))
	root := []string{"--user", "root", "--password", "p"}
	code, _, errs := run(t, s, append(root, "bench")...)
	require.Equal(t, 78, code, "it makes no bucket")
	require.Contains(t, errs, "lockctl init")
	code, _, errs = run(t, s, append(root, "init", "-f")...)
	require.Zero(t, code, errs)

	code, out, errs := run(t, s, append(root, "bench", "--count", "20", "--json")...)
	require.Zero(t, code, errs)
	require.Empty(t, errs, "no progress where there is no terminal")
	m := benchmark(t, out)
	require.False(t, m.Interrupted)
	require.Equal(t, "natslock", m.Bucket)
	for what, f := range map[string]struct {
		N        int
		P50, P99 float64
	}{"cycle": m.Cycle, "bare": m.Bare, "hand-over": m.HandOver} {
		require.Equal(t, 20, f.N, what)
		require.Positive(t, f.P50, what)
		require.GreaterOrEqual(t, f.P99, f.P50, what)
	}
	require.InDelta(t, m.Cycle.P50/m.Bare.P50, m.Ratio, 0.006)

	user := []string{"--user", "user", "--password", "p"}
	code, out, errs = run(t, s, append(user, "bench", "-d", "300ms", "orders.*.x")...)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^cycle +\S+s +\S+s +\d+$`, out)
	require.Regexp(t, `(?m)^hand-over +\S+s +\S+s +\d+$`, out)
	require.Regexp(t, `(?m)^a cycle takes \d+\.\d\d times its two bare publishes`, out)
	code, _, errs = run(t, s, append(user, "bench", "-d", "300ms")...)
	require.Equal(t, 77, code, errs)

	require.Empty(t, locks(t, s, append(root, "ls")...))
	js := jetStream(t, s, asRoot...)
	eventually(t, "the end of the tombstones", func() bool { return bucketInfo(t, js).State.Msgs == 0 })
	for _, args := range [][]string{{"-d", "0s"}, {"-c", "-1"}, {"orders.1"}} {
		code, _, errs := run(t, s, append(append(root, "bench"), args...)...)
		require.Equal(t, 64, code, errs)
	}
}

func TestBenchInterrupted(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	code, _, errs := run(t, s, "init", "-f")
	require.Zero(t, code, errs)
	js := jetStream(t, s)
	busy := func() {
		from := bucketInfo(t, js).State.LastSeq
		eventually(t, "a hundred writes", func() bool { return bucketInfo(t, js).State.LastSeq > from+100 })
	}
	p := start(t, s, "bench", "-d", "1h", "--json")
	busy()
	p.signal(syscall.SIGINT)
	require.Equal(t, 130, p.wait())
	m := benchmark(t, p.out.String())
	require.True(t, m.Interrupted)
	require.Positive(t, m.Cycle.N)
	require.Zero(t, m.HandOver.N)
	require.Empty(t, locks(t, s, "ls"))

	p = start(t, s, "bench", "-d", "1h", "--timeout", "1s")
	busy()
	s.Stop()
	require.Equal(t, 69, p.wait())
	require.Contains(t, p.err.String(), "lockctl: ")
}

func TestBenchShowsProgress(t *testing.T) {
	t.Parallel()
	s := serve(t)
	term := openTerminal(t, s)
	term.send("$lockctl init -f; $lockctl bench -d 1s; echo exit=$?\n")
	term.expect("measuring")
	term.expect("hand-over")
	term.expect("exit=0")
}
