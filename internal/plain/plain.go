// Package plain makes text of other clients, and the text of joined errors, fit for one line.
package plain

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes text that others have written fit for an error, a log or a terminal: it stays in one
// line, and controls nothing. Text that is empty, that is not UTF-8, that has characters which are
// not printable, or that begins with a double quote is quoted as in Go. So a text in double quotes
// is always a quoted one: see [Quoted].
func Text(s string) string {
	// A byte that is no UTF-8 is printable to ContainsFunc, and can control a terminal
	// all the same.
	if s == "" || Quoted(s) || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Quoted reports whether a text is one that [Text] has quoted.
func Quoted(s string) bool { return strings.HasPrefix(s, `"`) }

// Parse returns the text that [Text] has shown as s.
func Parse(s string) (string, error) {
	if !Quoted(s) {
		return s, nil
	}
	return strconv.Unquote(s)
}
