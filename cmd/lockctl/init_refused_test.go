//go:build unix

package main_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/testutil"
)

// TestInitChangedAndRefused checks that init does not report a successful update as refused. A
// replica that lacks resources may reply with an error although the leader has applied the update,
// so lockctl reads the configuration again.
func TestInitChangedAndRefused(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js := makeBucket(t, s, func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 })
	proxy.JetStream(t, s, func(nc *nats.Conn, m *nats.Msg) bool {
		if m.Subject != "proxy.API.STREAM.UPDATE.KV_natslock" {
			return false
		}
		return proxy.Rewrite(t, nc, m, func(answer map[string]any) {
			clear(answer)
			answer["error"] = map[string]any{"code": 500, "err_code": 10047, "description": "insufficient storage resources available"}
		})
	})
	code, out, errs := run(t, s, "init", "-f", "--js-api-prefix", "proxy.API")
	require.Zero(t, code, errs)
	require.Contains(t, out, "changed 1 setting of bucket natslock\n")
	require.Contains(t, errs, `a server answered "insufficient storage resources available"`)
	require.EqualValues(t, 1, bucketInfo(t, js).Config.MaxMsgsPerSubject)
}
