//go:build unix

package main_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// After a second a waiter says for whom it waits, and at which place: once, and for each
// kind of lock. A lock that is free at once has nothing to say.
func TestRunSaysThatItWaits(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, kind := range [][]string{nil, {"--write"}, {"--permits", "1"}} {
		free := strings.Trim(fmt.Sprint(kind), "[]")
		p, _ := hold(t, s, "x", kind...)
		args := append(append([]string{"run"}, kind...), "x", "--", "true")
		first := start(t, s, args...)
		awaitQueue(t, s, "x", 1)
		second := start(t, s, args...)
		said(t, first, "place 1 of ")
		said(t, second, "place 2 of 2 in the queue\n")
		holder := fmt.Sprintf(":%d has it since ", p.cmd.Process.Pid)
		require.Contains(t, first.err.String(), "lockctl: waiting for lock x: ", free)
		require.Contains(t, first.err.String(), holder, free)
		p.signal(syscall.SIGTERM)
		p.wait()
		require.Zero(t, first.wait())
		require.Zero(t, second.wait())
		require.Equal(t, 1, strings.Count(second.err.String(), "\n"), "said once: %s", second.err)
		require.Empty(t, p.err.String(), free)
	}
}

// A bucket that takes no more writes: a waiter says that it has no place.
func TestRunSaysThatTheBucketIsFull(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "x")
	js := jetStream(t, s)
	stream, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxBytes, config.Discard = 1, jetstream.DiscardNew
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	p := start(t, s, "run", "x", "--", "true")
	said(t, p, `the bucket has not stored a place in the queue for this one, "lockctl doctor" finds out why`)
}
