package tool

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithoutCredentials checks that even a URL that does not parse loses its
// credentials.
func TestWithoutCredentials(t *testing.T) {
	for list, want := range map[string]string{
		"nats://127.0.0.1:4222":                      "nats://127.0.0.1:4222",
		"nats://ada:s3cret@a:1, nats://t0ken@b:2,,c": "nats://a:1,nats://b:2,,c",
		"ada:s3cret@a:1":                             "a:1",
		"tls://ada:p/w@a:1":                          "tls://a:1",
		"nats://ada:p@ss/word@b:1":                   "nats://b:1",
	} {
		require.Equal(t, want, WithoutCredentials(list))
	}
}
