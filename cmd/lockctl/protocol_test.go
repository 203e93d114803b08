//go:build unix

package main_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// A bucket whose records follow a protocol that this release does not know is
// refused by every command, and left as it is.
func TestForeignProtocol(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js := makeBucket(t, s, func(c *jetstream.StreamConfig) { c.Metadata["natslock.protocol"], c.RePublish = "7", nil })
	before := bucketInfo(t, js)
	for _, args := range [][]string{
		{"ls"}, {"info", "x"}, {"run", "x", "--", "true"}, {"run", "--read", "x", "--", "true"}, {"break", "-f", "x"}, {"watch"}, {"init", "-f"}, {"doctor"},
	} {
		code, out, errs := run(t, s, args...)
		require.Equal(t, 78, code, "%q: %s%s", args, out, errs)
		require.Contains(t, out+errs, "metadata.natslock.protocol", "%q", args)
		require.Contains(t, out+errs, `"7"`, "%q", args)
	}
	d := doctor(t, s)
	require.Contains(t, d.row(t, "metadata.natslock.protocol").Repair, "use a release of this program that knows the bucket's protocol")
	require.NotContains(t, d.row(t, "metadata.natslock.protocol").Repair, "lockctl init")
	after := bucketInfo(t, js)
	require.Equal(t, before.Config, after.Config)
	require.Equal(t, before.State.LastSeq, after.State.LastSeq)
}
