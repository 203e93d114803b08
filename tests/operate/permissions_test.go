package operate_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	lockadmin "github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

const users = `
authorization {
  users: [
    { user: admin, password: p }
    { user: reader, password: p, permissions: { publish: { deny: ["$KV.natslock.>"] } } }
    { user: orders, password: p, permissions: {
      publish: ["$KV.natslock.*.orders.>", "$JS.API.STREAM.INFO.KV_natslock", "$JS.API.DIRECT.GET.KV_natslock.>"]
      subscribe: ["natslock.natslock.*.*.orders.>", "_INBOX.>"]
    } }
    { user: deaf, password: p, permissions: { subscribe: { deny: ["natslock.>"] } } }
    { user: mute, password: p, permissions: { subscribe: { deny: ["_INBOX.>"] } } }
  ]
}`

func TestPermissionDenied(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		admin := kit.NewClient(t, s.Connect(kit.As("admin")...))
		l := kit.Must(t, admin.Lock, "l")
		c := kit.NewClient(t, s.Connect(kit.As("reader")...))
		ctx := t.Context()
		for _, name := range []string{"free", "l"} {
			err := kit.Quickly(t, time.Second, "TryLock", func() error { _, err := c.TryLock(ctx, name); return err })
			require.ErrorIs(t, err, natslock.ErrPermission)
			err = kit.Quickly(t, time.Second, "Lock", func() error { _, err := c.Lock(ctx, name); return err })
			require.ErrorIs(t, err, natslock.ErrPermission)
			require.ErrorContains(t, err, "$KV.natslock.lock."+name)
		}
		require.Equal(t, l.Token(), kit.Inspect(t, c, "l").Holder.Token, "it may read")
		err := kit.Quickly(t, time.Second, "Break", func() error {
			return lockadmin.New(c).Break(ctx, lockadmin.BreakRequest{Kind: lockadmin.KindMutex, Name: "l", ID: l.ID()})
		})
		require.ErrorIs(t, err, natslock.ErrPermission)
		kit.WantHeld(t, l)
	}, testutil.WithConfigText(users))
}

// TestPermissionForSomeNames checks that the documented permissions for a subset of the names
// suffice for those names and for no others.
func TestPermissionForSomeNames(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		admin := kit.NewClient(t, s.Connect(kit.As("admin")...))
		ctx := t.Context()
		c := &kit.Member{Events: kit.NewObserver()}
		c.NC = s.Connect(kit.As("orders")...)
		c.Client = kit.NewClient(t, c.NC, c.Events.Option(), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		l := kit.Must(t, admin.Lock, "orders.1")
		w := c.Await(t, "orders.1")
		begun := time.Now()
		kit.Unlock(t, l)
		w.Granted(t)
		require.Less(t, w.At.Sub(begun), time.Second)
		require.NotNil(t, kit.Inspect(t, c.Client, "orders.1").Holder)
		kit.Unlock(t, w.Value)
		err := kit.Quickly(t, time.Second, "Lock", func() error { _, err := c.Lock(ctx, "users.1"); return err })
		require.ErrorIs(t, err, natslock.ErrPermission)
		_, err = c.TryLock(ctx, "orders")
		require.ErrorIs(t, err, natslock.ErrPermission)
	}, testutil.WithConfigText(users))
}

// TestPermissionToInspectInBusyBucket checks that a user who may not request records from the
// leader can still inspect a lock after other clients have written to the bucket.
func TestPermissionToInspectInBusyBucket(t *testing.T) {
	s := testutil.RunServer(t, testutil.WithConfigText(users))
	admin := kit.NewClient(t, s.Connect(kit.As("admin")...))
	c := kit.NewClient(t, s.Connect(kit.As("orders")...))
	l := kit.Must(t, admin.Lock, "orders.1")
	kit.Must(t, admin.Lock, "users.1") // so that the bucket has a later revision
	require.Equal(t, l.Token(), kit.Inspect(t, c, "orders.1").Holder.Token)
}

// TestPermissionToListenDenied checks that a client that may not subscribe to notifications still
// gets the lock, through its timers.
func TestPermissionToListenDenied(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		admin := kit.NewClient(t, s.Connect(kit.As("admin")...))
		l := kit.Must(t, admin.Lock, "l")
		var deaf []*kit.Member
		for range 3 {
			c := &kit.Member{Events: kit.NewObserver()}
			c.NC = s.Connect(kit.As("deaf")...)
			c.Client = kit.NewClient(t, c.NC, c.Events.Option())
			deaf = append(deaf, c)
		}
		// They may get the lock in any order: once it has been free for more than a second,
		// whichever client reads it first takes it.
		var wg sync.WaitGroup
		for _, c := range append(deaf, deaf[0]) { // two goroutines use the first client
			w := c.Await(t, "l")
			wg.Go(func() {
				<-w.Done
				if w.Err == nil {
					w.Err = w.Value.Unlock(context.Background())
				}
				if w.Err != nil {
					t.Error(w.Err)
				}
			})
		}
		time.Sleep(10 * time.Second)
		begun := time.Now()
		kit.Unlock(t, l)
		wg.Wait()
		require.Less(t, time.Since(begun), 15*time.Second)
	}, testutil.WithConfigText(users))
}

// TestPermissionForInboxDenied checks that New fails quickly if the client cannot receive replies.
func TestPermissionForInboxDenied(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		kit.NewClient(t, s.Connect(kit.As("admin")...))
		err := kit.Quickly(t, time.Second, "New", func() error {
			_, err := natslock.New(t.Context(), s.Connect(kit.As("mute")...))
			return err
		})
		require.ErrorIs(t, err, natslock.ErrPermission)
	}, testutil.WithConfigText(users))
}

func TestPermissionWithoutJetStream(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		err := kit.Quickly(t, time.Second, "New", func() error {
			_, err := natslock.New(t.Context(), s.Connect())
			return err
		})
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "JetStream")
	}, testutil.WithoutJetStream())
}

func TestPermissionToCreate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		_, err := natslock.New(t.Context(), s.Connect(kit.As("admin")...), natslock.WithCreate(false))
		require.ErrorIs(t, err, kvstore.ErrNotFound)
		err = kit.Quickly(t, time.Second, "New", func() error {
			_, err := natslock.New(t.Context(), s.Connect(kit.As("orders")...))
			return err
		})
		require.ErrorIs(t, err, natslock.ErrPermission)
		kit.NewClient(t, s.Connect(kit.As("admin")...))
		kit.NewClient(t, s.Connect(kit.As("orders")...), natslock.WithCreate(false))
	}, testutil.WithConfigText(users))
}

// TestPermissionNoAnswer checks that calls to a silent server end with their context or, if it has
// no deadline, after five seconds.
func TestPermissionNoAnswer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink()
		link.Blackhole(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begun := time.Now()
		_, err := natslock.New(ctx, nc)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(begun).Round(10*time.Millisecond))

		c := kit.Join(t, s)
		c.Link.Blackhole(true)
		begun = time.Now()
		_, err = c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.LessOrEqual(t, time.Since(begun), 5100*time.Millisecond)
	})
}

// TestPermissionsOfNoRole checks that an unknown role gets no permissions at all, least of all
// those of a user.
func TestPermissionsOfNoRole(t *testing.T) {
	for _, role := range []lockadmin.Role{-1, lockadmin.RoleAdmin + 1} {
		p, err := lockadmin.Permissions(lockadmin.Access{Role: role})
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.Empty(t, p)
	}
	for _, role := range []lockadmin.Role{lockadmin.RoleUser, lockadmin.RoleObserver, lockadmin.RoleOperator, lockadmin.RoleAdmin} {
		_, err := lockadmin.Permissions(lockadmin.Access{Role: role})
		require.NoError(t, err)
	}
}

// TestPermissionsOfObserver checks that an observer may not write and, with OwnOnly, reads only the
// names that match its pattern.
func TestPermissionsOfObserver(t *testing.T) {
	const any, leader, history = "$JS.API.DIRECT.GET.KV_natslock", "$JS.API.STREAM.MSG.GET.KV_natslock", "$JS.API.DIRECT.GET.HISTORY_natslock"
	for _, c := range []struct {
		access lockadmin.Access
		wider  []string
	}{
		{lockadmin.Access{}, []string{any, leader, history}},
		{lockadmin.Access{Pattern: ">"}, []string{any, leader, history}},
		{lockadmin.Access{Pattern: "orders.>", OwnOnly: true}, nil},
		{lockadmin.Access{Pattern: "*", OwnOnly: true}, nil},
		{lockadmin.Access{Pattern: "orders.>"}, []string{any, leader}},
		{lockadmin.Access{Pattern: "orders.>", OwnOnly: true, History: true}, []string{history}},
		{lockadmin.Access{Domain: "hub"}, []string{"$JS.hub.API.DIRECT.GET.KV_natslock", "$JS.hub.API.STREAM.MSG.GET.KV_natslock", "$JS.hub.API.DIRECT.GET.HISTORY_natslock"}},
	} {
		c.access.Role = lockadmin.RoleObserver
		p, err := lockadmin.Permissions(c.access)
		require.NoError(t, err)
		var wider []string
		for _, perm := range p.Publish {
			require.Regexp(t, `^\$JS\.(hub\.)?API\.(STREAM\.INFO|DIRECT\.GET|STREAM\.MSG\.GET)\.`, perm.Subject, "%+v", c.access)
			if !strings.Contains(perm.Subject, "$KV.") && !strings.Contains(perm.Subject, ".INFO.") {
				wider = append(wider, perm.Subject)
			}
		}
		require.Equal(t, c.wider, wider, "%+v", c.access)
	}
	require.Equal(t, "observer", lockadmin.RoleObserver.String())
}
