// Package plain puts text from other clients, and the text of joined errors, on a single line.
package plain

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes text written by others safe for an error, a log or a terminal: the result stays on one line and controls
// nothing. Text that is empty, is not UTF-8, contains unprintable characters, or begins with a double quote is quoted
// as in Go. So text in double quotes has always been quoted: see [Quoted].
func Text(s string) string {
	// ContainsFunc treats a byte that is not UTF-8 as printable, but such a byte can still control a terminal.
	if s == "" || Quoted(s) || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Quoted reports whether s has been quoted by [Text].
func Quoted(s string) bool { return strings.HasPrefix(s, `"`) }

// Parse returns the text that [Text] turned into s.
func Parse(s string) (string, error) {
	if !Quoted(s) {
		return s, nil
	}
	return strconv.Unquote(s)
}
