package tool

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConnectError checks that no message contains a password, whatever is wrong with the
// URL.
func TestConnectError(t *testing.T) {
	const password = "s3cret"
	context := filepath.Join(t.TempDir(), "proxied.json")
	require.NoError(t, os.WriteFile(context, []byte(`{"url": "nats://127.0.0.1:1", "socks_proxy": "socks5://ada:s3cret#@a:1"}`), 0o600))
	for _, c := range []struct {
		connection Connection
		code       int
		says       string
	}{
		{Connection{Server: "nats://ada:s3cret@127.0.0.1:1"}, ExitUnavailable, "no server at nats://127.0.0.1:1; the address comes from NATS_URL: start that server, or name another"},
		{Connection{Server: "nats://ada:s3cret%zz@a:1"}, ExitUsage, "NATS_URL: not a valid URL; write"},
		{Connection{Server: "nats://ada:s3cret/@a:1"}, ExitUsage, "not a valid URL; write"},
		{Connection{Server: "nats://ada:s3cret@a:port"}, ExitUsage, "not a valid URL; write"},
		{Connection{Server: "nats://ada:p@s3cret/word@a:1"}, ExitUsage, "not a valid URL; write"},
		{Connection{Server: "nats://ada:s3cret,word@a:1"}, ExitUsage, "not a valid URL; write"},
		{Connection{Server: "nats://a:1,nats://s3cret:1234,5@b:1"}, ExitUsage, "not a valid URL; write"},
		{Connection{Server: "nats://[::1:4222"}, ExitUsage, "NATS_URL: nats://[::1:4222: missing ']' in host"},
		{Connection{Server: "a:port"}, ExitUsage, `NATS_URL: a:port: invalid port ":port" after host`},
		{Connection{Server: "a:1\x1b[2J"}, ExitUsage, `NATS_URL: "a:1\x1b[2J": net/url: invalid control character in URL`},
		{Connection{SocksProxy: "socks5://ada:s3cret#@a:1"}, ExitUsage, "--socks-proxy: not a valid URL"},
		{Connection{Context: context}, ExitUsage, "proxied.json: socks_proxy: not a valid URL"},
	} {
		c.connection.NoContext, c.connection.Timeout = c.connection.Context == "", 5*time.Second
		_, servers, _, err := c.connection.Dial()
		err = c.connection.ConnectError(servers, err, "start one")
		require.ErrorContains(t, err, c.says)
		require.Equal(t, c.code, CodeOf(err))
		require.NotContains(t, err.Error(), password)
	}
}
