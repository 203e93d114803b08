package main

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/testutil"
)

// TestWorker checks that a worker writes one result for each event, and the results of a key in
// order. If a later owner has fenced off the worker's token, its write is refused, and the worker
// continues with the next token where the results end.
func TestWorker(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	require.NoError(t, streams(t.Context(), js))
	publish := func(key string, n int) {
		_, err := js.Publish(t.Context(), "events."+key, []byte(strconv.Itoa(n)))
		require.NoError(t, err)
	}
	publish("ann", 1)
	publish("bob", 1)
	publish("ann", 2)

	patience, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, stop := context.WithCancel(patience)
	done := make(chan error, 1)
	go func() { done <- run(ctx, s.URL(), 15*time.Second, 0) }()
	defer func() {
		stop()
		require.NoError(t, <-done)
	}()
	c, err := js.OrderedConsumer(t.Context(), "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results.*.*"}})
	require.NoError(t, err)
	results, err := c.Messages()
	require.NoError(t, err)
	defer results.Stop()
	last := map[string]int{}
	next := func() (subject string, token uint64) {
		m, err := results.Next(jetstream.NextContext(patience))
		require.NoError(t, err)
		var k int
		var key string
		_, err = fmt.Sscanf(m.Subject(), "results.%d.%s", &k, &key)
		require.NoError(t, err)
		n, err := strconv.Atoi(string(m.Data()))
		require.NoError(t, err)
		require.Equal(t, last[key]+1, n, key)
		last[key] = n
		token, err = strconv.ParseUint(m.Headers().Get(tokenHeader), 10, 64)
		require.NoError(t, err)
		return fmt.Sprintf("fence.results.%d", k), token
	}
	for range 3 {
		next()
	}
	require.Equal(t, map[string]int{"ann": 2, "bob": 1}, last)

	publish("eve", 1)
	fenced, token := next()
	_, err = fence.Open(t.Context(), js, "RESULTS", fenced, token+1) // as a later owner would
	require.NoError(t, err)
	publish("eve", 2)
	_, after := next()
	require.Greater(t, after, token+1)
}
