package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// TestNestingRefuse checks, on plain data for all kinds of locks, that a command is refused as
// waiting for itself only if the locks around it can never let it in.
func TestNestingRefuse(t *testing.T) {
	t.Parallel()
	holder := func(token uint64) *admin.Holder { return &admin.Holder{Holder: natslock.Holder{Token: token}} }
	slots := func(of int, tokens ...uint64) admin.Info {
		info := admin.Info{Kind: admin.KindSemaphore, Name: "x"}
		for i, token := range tokens {
			if token > 0 { // 0: a free slot
				info.Permits = append(info.Permits, admin.Holder{Holder: natslock.Holder{Token: token}, Slot: i, Of: of})
			}
		}
		return info
	}
	queued := func(info admin.Info, waiters ...admin.Waiter) admin.Info {
		info.Queue = waiters
		return info
	}
	readers := admin.Info{Kind: admin.KindRW, Name: "x", Readers: []admin.Holder{*holder(1), *holder(9)}}
	gated := readers
	gated.Holder = holder(7)
	left := readers
	left.Holder = &admin.Holder{Holder: natslock.Holder{Token: 7}, Overdue: true}
	mutex := admin.Info{Name: "x", Holder: holder(1)}
	for name, c := range map[string]struct {
		n       nesting
		info    admin.Info
		refused string
	}{
		"mutex":                       {nesting{around: []uint64{1}}, mutex, "LOCK_TOKEN=1"},
		"mutex, not the innermost":    {nesting{around: []uint64{5, 1, 6}}, mutex, "LOCK_TOKEN=1"},
		"mutex elsewhere":             {nesting{around: []uint64{2}}, mutex, ""},
		"mutex broken":                {nesting{around: []uint64{1}}, admin.Info{Holder: &admin.Holder{Holder: natslock.Holder{Token: 1}, Broken: &admin.Broken{}}}, ""},
		"mutex overdue":               {nesting{around: []uint64{1}}, admin.Info{Holder: &admin.Holder{Holder: natslock.Holder{Token: 1}, Overdue: true}}, ""},
		"free":                        {nesting{around: []uint64{1}}, admin.Info{}, ""},
		"write in write":              {nesting{around: []uint64{1}}, admin.Info{Kind: admin.KindRW, Holder: holder(1)}, "LOCK_TOKEN=1"},
		"read in write":               {nesting{around: []uint64{1}, shared: true}, admin.Info{Kind: admin.KindRW, Holder: holder(1)}, "LOCK_TOKEN=1"},
		"write in read":               {nesting{around: []uint64{1}}, readers, "LOCK_TOKEN=1"},
		"read in read":                {nesting{around: []uint64{1}, shared: true}, readers, ""},
		"read in read, a gate":        {nesting{around: []uint64{1}, shared: true}, gated, "a writer is waiting for it"},
		"read in read, an old gate":   {nesting{around: []uint64{1}, shared: true}, left, ""},
		"read in read, a writer":      {nesting{around: []uint64{1}, shared: true}, queued(readers, admin.Waiter{Mode: admin.Exclusive}), "a writer is waiting for it"},
		"read in read, a reader":      {nesting{around: []uint64{1}, shared: true}, queued(readers, admin.Waiter{Mode: admin.Shared}), ""},
		"read in read, a dead one":    {nesting{around: []uint64{1}, shared: true}, queued(readers, admin.Waiter{Mode: admin.Exclusive, Overdue: true}), ""},
		"read beside others":          {nesting{around: []uint64{2}, shared: true}, gated, ""},
		"the only permit":             {nesting{around: []uint64{1}, permits: 1}, slots(1, 1), "semaphore x has 1 permit"},
		"all permits":                 {nesting{around: []uint64{1, 2}, permits: 2}, slots(2, 2, 1), "semaphore x has 2 permits"},
		"one of two":                  {nesting{around: []uint64{1}, permits: 2}, slots(2, 1), ""},
		"one of two, another's":       {nesting{around: []uint64{1}, permits: 2}, slots(2, 1, 9), ""},
		"a slot beyond":               {nesting{around: []uint64{1}, permits: 1}, slots(2, 0, 1), ""},
		"fewer permits":               {nesting{around: []uint64{1}, permits: 1}, slots(2, 1), "semaphore x has 1 permit,"},
		"behind one who waits for it": {nesting{around: []uint64{1}, permits: 2}, queued(slots(2, 1), admin.Waiter{Of: 1}), "semaphore x has 1 permit,"},
		"behind one who does not":     {nesting{around: []uint64{1}, permits: 2}, queued(slots(2, 1, 9), admin.Waiter{Of: 2}), ""},
	} {
		err := c.n.refuse(c.info)
		if c.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.refused, name)
		}
	}
}

// TestTokensAround checks that the environment carries locks of any name to any depth.
func TestTokensAround(t *testing.T) {
	t.Parallel()
	con := func(env ...string) *console.Console {
		return console.New(env, strings.NewReader(""), io.Discard, io.Discard)
	}
	c := con()
	names := []string{"deploy", "a b:c%20\n=\x00ü", "\xff ", "", "deploy"}
	for i, name := range names {
		c = con(envHeld + "=" + withHeld(c, name, uint64(i+1)))
	}
	require.Equal(t, []uint64{1, 5}, tokensAround(c, "deploy"))
	for i, name := range names[1:4] {
		require.Equal(t, []uint64{uint64(i + 2)}, tokensAround(c, name), "%q", name)
	}
	require.Empty(t, tokensAround(c, "other"))
	require.NotContains(t, c.Getenv(envHeld), "\x00")
	// The environment comes from another program or is corrupt.
	require.Equal(t, []uint64{3, 7}, tokensAround(con("LOCK_NAME=x", "LOCK_TOKEN=7", envHeld+"=1 :x y:x 2:%zz  3:x"), "x"))
	require.Empty(t, tokensAround(con("LOCK_NAME=x"), "x"))
}

// TestNestingReads checks that a nested reader does not queue behind a writer that arrived after
// the check for nesting.
func TestNestingReads(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	var clients [3]*natslock.Client
	for i := range clients {
		c, err := natslock.New(t.Context(), s.Connect(), natslock.WithCreate(true))
		require.NoError(t, err)
		clients[i] = c
		t.Cleanup(func() { _ = c.Close(t.Context()) }) // t.Context is canceled by now, so Close leaves the locks held
	}
	around, err := rwlock.New(clients[0]).RLock(t.Context(), "x")
	require.NoError(t, err)
	n := &nesting{shared: true, around: []uint64{around.Token()}}
	inside := rwlock.New(clients[1])
	never := func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error) {
		t.Error("it waits for itself")
		return nil, context.Canceled
	}
	lock, err := n.reads(clients[1], inside.TryRLock, never)(t.Context(), "x")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(t.Context()))

	waiting, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	events := admin.New(clients[2]).Watch(waiting, "x")
	go func() {
		_, err := rwlock.New(clients[2]).Lock(waiting, "x")
		ended <- err
	}()
	for _, err := range events {
		require.NoError(t, err)
		info, err := admin.New(clients[1]).Inspect(t.Context(), admin.KindRW, "x")
		require.NoError(t, err)
		if info.Holder != nil || len(info.Queue) > 0 {
			break
		}
	}
	_, err = n.reads(clients[1], inside.TryRLock, never)(t.Context(), "x")
	require.ErrorContains(t, err, "a writer is waiting for it")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, around.Unlock(t.Context()))
}
