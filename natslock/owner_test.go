package natslock_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// The owner says which service holds the lock: the one that was given, or the connection's name.
func TestOwner(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	host, _ := os.Hostname()
	process := fmt.Sprintf("%s:%d", host, os.Getpid())
	for want, c := range map[string]struct {
		name string
		opts []natslock.Option
	}{
		"billing@" + process: {name: "billing"},
		process:              {},
		"web-1":              {"billing", []natslock.Option{natslock.WithOwner("web-1")}},
	} {
		client := kit.NewClient(t, s.Connect(nats.Name(c.name)), c.opts...)
		kit.Must(t, client.TryLock, want)
		require.Equal(t, want, kit.Inspect(t, client, want).Holder.Owner)
	}
	client := kit.NewClient(t, s.Connect(nats.Name(strings.Repeat("x", 2000))))
	kit.Must(t, client.TryLock, "long")
	require.Equal(t, process, kit.Inspect(t, client, "long").Holder.Owner)
}
