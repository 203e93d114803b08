//go:build unix

package main_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// TestForeignProtocol checks that every command refuses a bucket whose records follow another
// protocol, leaves it unchanged and says what to do.
func TestForeignProtocol(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		protocol, repair string
		remake           bool
	}{
		{"unset", "stop its users, delete it and let a client create it; or use another bucket", true},
		{"2", "as described in docs/operate/upgrading.md, section 2 to 3; or use another bucket", true},
		{"7", "use a release of this program that knows the bucket's protocol, or another bucket", false},
	} {
		t.Run(c.protocol, func(t *testing.T) {
			t.Parallel()
			s := testutil.RunServer(t)
			js := makeBucket(t, s, func(sc *jetstream.StreamConfig) {
				if sc.Metadata["natslock.protocol"], sc.RePublish = c.protocol, nil; c.protocol == "unset" { // no client knows the protocol
					delete(sc.Metadata, "natslock.protocol")
				}
			})
			before := bucketInfo(t, js)
			for _, args := range [][]string{
				{"ls"}, {"info", "x"}, {"run", "x", "--", "true"}, {"run", "--read", "x", "--", "true"}, {"break", "-f", "x"}, {"watch"}, {"elect", "x", "--", "true"}, {"acquire", "x"}, {"release", aHandle}, {"init", "-f"}, {"doctor"},
			} {
				code, out, errs := run(t, s, args...)
				require.Equal(t, 78, code, "%q: %s%s", args, out, errs)
				require.Contains(t, out+errs, "metadata.natslock.protocol", "%q", args)
				require.Contains(t, out+errs, c.protocol, "%q", args)
				if args[0] != "init" {
					require.Contains(t, strings.Join(strings.Fields(out+errs), " "), c.repair, "%q", args)
				} else {
					require.Equal(t, c.remake, strings.Contains(out, `"nats stream rm KV_natslock"`))
				}
			}
			_, out, _ := run(t, s, "doctor")
			repair := regexp.MustCompile(`metadata\.natslock\.protocol .*\n +repair: (.*)\n`).FindStringSubmatch(out)
			require.NotNil(t, repair, out)
			require.Contains(t, repair[1], c.repair)
			require.NotContains(t, repair[1], "lockctl init")
			after := bucketInfo(t, js)
			require.Equal(t, before.Config, after.Config)
			require.Equal(t, before.State.LastSeq, after.State.LastSeq)
		})
	}
}
