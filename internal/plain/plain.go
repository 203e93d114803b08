// Package plain makes text from other clients, and the text of joined errors, fit for one line.
package plain

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes text written by others fit for an error, a log or a terminal: the result stays on one line, and controls
// nothing. Text that is empty, is not UTF-8, contains unprintable characters, or begins with a double quote is quoted
// as in Go. So a text in double quotes is always a quoted one: see [Quoted].
func Text(s string) string {
	// To ContainsFunc, a byte that is not UTF-8 is printable, but it can control a terminal all the same.
	if s == "" || Quoted(s) || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Quoted reports whether [Text] has quoted a text.
func Quoted(s string) bool { return strings.HasPrefix(s, `"`) }

// Parse returns the text that [Text] has turned into s.
func Parse(s string) (string, error) {
	if !Quoted(s) {
		return s, nil
	}
	return strconv.Unquote(s)
}
