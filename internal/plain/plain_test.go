package plain

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// FuzzText checks that whatever others wrote into a record is shown in visible characters
// only, and that different texts stay different.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "orders.42", "a b", "\x1b[2J", "\x9b2J", "\xff", "a\u202eb", "é🔒", "\u00a0", `"`, `"a"`, "\r\n", "\u200b", "\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := Text(s)
		if out == "" || !utf8.ValidString(out) || strings.ContainsFunc(out, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q is shown as %q", s, out)
		}
		if back, err := Parse(out); Quoted(out) != (out != s) || err != nil || back != s {
			t.Fatalf("%q is shown as %s", s, out)
		}
	})
}
