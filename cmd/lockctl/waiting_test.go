package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestWaitText checks that a waiter is told its place and who it is waiting for, for each kind of
// lock.
func TestWaitText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host, _ := os.Hostname()
		hold := func(owner string) admin.Holder {
			return admin.Holder{Holder: natslock.Holder{Owner: owner, Host: "\x00", PID: 1, Since: time.Now().Add(-90 * time.Second)}}
		}
		me, other := admin.Waiter{Host: host, PID: os.Getpid(), Goroutines: 1}, admin.Waiter{Host: host, PID: -1, Goroutines: 2}
		a, b := hold("web-1 on \x00:1"), hold("web-2 on \x00:1")
		gate := admin.Holder{Holder: natslock.Holder{Host: host, PID: os.Getpid()}}
		for name, c := range map[string]struct {
			info           admin.Info
			blocked, place string
		}{
			"first":        {admin.Info{Kind: admin.KindMutex, Holder: &a, Queue: []admin.Waiter{me, other}}, " has held it for 1m30s", "place 1 of 3"},
			"behind":       {admin.Info{Kind: admin.KindMutex, Holder: &a, Queue: []admin.Waiter{other, me}}, " has held it for 1m30s", "place 3 of 3"},
			"readers":      {admin.Info{Kind: admin.KindRW, Readers: []admin.Holder{a, b}, Queue: []admin.Waiter{me}}, " and 1 more hold it", "place 1 of 1"},
			"permits":      {admin.Info{Kind: admin.KindSemaphore, Permits: []admin.Holder{a, b}, Queue: []admin.Waiter{me}}, " and 1 more hold it", "place 1 of 1"},
			"free":         {admin.Info{Kind: admin.KindMutex, Queue: []admin.Waiter{other, me}}, "it is free, but the waiters ahead of this one have not taken it yet", "place 3 of 3"},
			"next":         {admin.Info{Kind: admin.KindRW, Holder: &gate, Readers: []admin.Holder{a}}, "next in line, waiting for 1 reader to leave", ""},
			"another next": {admin.Info{Kind: admin.KindRW, Holder: &a, Readers: []admin.Holder{b}, Queue: []admin.Waiter{me}}, " and 1 more hold it", "place 1 of 1"},
			"a full bucket": {admin.Info{Kind: admin.KindMutex, Holder: &a, Queue: []admin.Waiter{other}},
				`; this client has no place in the queue; run "lockctl doctor" to find out why`, ""},
		} {
			blocked, place := waitText(c.info, nil)
			require.True(t, strings.HasSuffix(blocked, c.blocked), "%s: %s", name, blocked)
			require.Equal(t, c.place, place, name)
		}
		blocked, place := waitText(admin.Info{}, context.DeadlineExceeded)
		require.Equal(t, context.DeadlineExceeded.Error(), blocked)
		require.Empty(t, place)
	})
}

// TestNoticed checks that a waiter prints who it is waiting for after a second, only once if there
// is no terminal, and that it prints nothing if the lock is granted sooner.
func TestNoticed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.NewClient(t, s.Connect(), natslock.WithOwner("web-1"))
		l, err := c.TryLock(t.Context(), "x")
		require.NoError(t, err)
		waits, end := context.WithCancel(t.Context())
		waiter := kit.NewClient(t, s.Connect())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = waiter.Lock(waits, "x")
		}()
		var said kit.Log
		begin := func() (stop func()) {
			return noticed(t.Context(), &session.Session{Client: waiter, Console: console.New(nil, nil, nil, &said)}, admin.KindMutex, "x")
		}
		stop := begin()
		time.Sleep(waitNotice - time.Millisecond)
		stop()
		require.Empty(t, said.String())

		stop = begin()
		time.Sleep(5 * waitNotice)
		stop()
		require.Regexp(t, fmt.Sprintf(`^lockctl: waiting for lock x: web-1 on \S+:%d has held it for 2\.0s; place 1 of 1 in the queue\n$`, os.Getpid()), said.String())
		end()
		<-ended
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestUnqueued checks that while the first waiter of a free lock is cut off, a try without waiting
// reports the queue, even when the tombstone of the last hold has expired and the server would
// accept the write.
func TestUnqueued(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, late := kit.NewClient(t, s.Connect()), kit.NewClient(t, s.Connect())
		nc, link := s.ConnectLink()
		first := kit.NewClient(t, nc)
		l, err := holder.TryLock(t.Context(), "x")
		require.NoError(t, err)
		waits, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = first.Lock(waits, "x")
		}()
		synctest.Wait()
		link.Blackhole(true)
		require.NoError(t, l.Unlock(t.Context()))
		try := unqueued(late, admin.KindMutex, late.TryLock)
		for range 3 {
			time.Sleep(2 * time.Second)
			_, err = try(t.Context(), "x")
			require.ErrorIs(t, err, natslock.ErrLocked)
			require.ErrorContains(t, err, `lock "x" has a queue, 1 waiting`)
		}
		end()
		link.Heal()
		<-ended
		time.Sleep(time.Minute) // the place expires
		l, err = try(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
