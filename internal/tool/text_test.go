package tool

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestWithoutCredentials: a URL that does not parse loses its credentials too.
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

// FuzzPlain: nothing that others wrote into a record reaches the terminal as
// anything but visible characters, and different things stay different.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"", "orders.42", "a b", "\x1b[2J", "\x9b2J", "\xff", "a\u202eb", "é🔒", "\u00a0", `"`, `"a"`, "\r\n", "\u200b", "\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := Plain(s)
		if out == "" || !utf8.ValidString(out) || strings.ContainsFunc(out, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q is shown as %q", s, out)
		}
		if back, err := strconv.Unquote(out); out != s && (err != nil || back != s) {
			t.Fatalf("%q is shown as %s", s, out)
		}
	})
}
