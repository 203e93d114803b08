package natslock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// Metadata for which the bucket has no room are refused. The lock keeps those that it had, and is not lost.
func TestSetMetaWithoutRoom(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, natslock.WithBucketConfig(kvstore.Config{MaxBytes: 64 << 10}))
		l := kit.Must(t, c.Lock, "l", natslock.TTL(5*time.Second), natslock.Meta(meta("small")))
		r := kit.NewRaw(t, s.Connect())
		for size := 4096; size > 0; size /= 2 {
			for i := 0; ; i++ {
				if _, err := r.JS.Publish(t.Context(), fmt.Sprintf("%slock.fill.%d.%d", kit.Subjects, size, i), make([]byte, size)); err != nil {
					break
				}
			}
		}
		err := l.SetMeta(t.Context(), meta(strings.Repeat("x", 2000)))
		require.ErrorIs(t, err, kvstore.ErrFull)
		require.ErrorContains(t, err, `lock "l"`)
		time.Sleep(time.Minute)
		kit.WantHeld(t, l)
		info, err := admin.New(c.Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Equal(t, meta("small"), info.Holder.Meta)
		kit.Unlock(t, l)
	})
}

// A lock whose renewals have become larger than a message may be is lost with that reason.
func TestLostTooLarge(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(5*time.Second))
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Refuse(kvstore.ErrTooLarge) })
		<-l.Context().Done()
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorContains(t, l.Err(), "record too large")
	})
}

// A lock whose handle was dropped ends by its TTL, and its cause blames nobody else.
func TestDroppedCause(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(5*time.Second))
		ctx := l.Context()
		kit.Drop(l)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), natslock.ErrLost)
		require.ErrorContains(t, context.Cause(ctx), "dropped without Unlock")
		require.NotContains(t, context.Cause(ctx).Error(), "server")
	})
}

// On a connection that was closed for good, nothing waits for a confirmation that cannot come.
func TestExtendOnClosedConnection(t *testing.T) {
	for name, early := range map[string]bool{"closed before": true, "closed meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				l := kit.Must(t, c.Lock, "l")
				if early {
					c.NC.Close()
				} else {
					c.Link.Blackhole(true)
					time.AfterFunc(time.Second, c.NC.Close)
				}
				begun := time.Now()
				err := l.Extend(t.Context(), time.Minute)
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.ErrorContains(t, err, "connection closed")
				require.LessOrEqual(t, time.Since(begun), 1100*time.Millisecond)
				require.NoError(t, l.Err(), "it holds until the end of its validity")
			})
		})
	}
}
