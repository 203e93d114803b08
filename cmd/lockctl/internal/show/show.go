// Package show formats locks, holders and events. It provides the words, tables, JSON and
// durations that lockctl's commands share.
package show

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock/admin"
)

// SetupColors enables colors if standard output is a terminal that can show them and the user
// has not turned them off (https://no-color.org).
func SetupColors() {
	if console.IsTerminal(os.Stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		colored = true
		text.EnableColors()
	} else {
		text.DisableColors()
	}
}

// Text colors. While colors are disabled, their Sprint methods leave the text unchanged.
const (
	Alarm = text.FgRed // for what the user should notice
	Faint = text.Faint // for details
	Bold  = text.Bold  // for names and titles
)

// NewTable returns a table without borders. Its columns are separated by two spaces, which is
// easy to read and lets awk split them.
func NewTable(w io.Writer, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SuppressTrailingSpaces()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box = table.BoxStyle{PaddingRight: "  "}
	style.Format.Header = text.FormatUpper
	style.Color.Header = text.Colors{Faint}
	t.SetStyle(style)
	if len(header) > 0 {
		t.AppendHeader(header)
	}
	return t
}

// Plain makes a string from a record safe to print. Text that other users have written into a
// lock must not be able to control the terminal.
func Plain(s string) string {
	out := plain.Text(s)
	if ASCII && !isASCII(out) {
		return strconv.QuoteToASCII(s)
	}
	return out
}

// ASCII is set if the terminal can show only ASCII. top sets it before it draws.
var ASCII bool

// ASCIILocale reports whether the user's locale is limited to ASCII. POSIX defines the
// variables and their precedence. If none of them is set, the locale is "C".
func ASCIILocale(getenv func(string) string) bool {
	locale := cmp.Or(getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG"))
	if locale == "" && runtime.GOOS == "windows" { // has no such variables
		return false
	}
	locale = strings.ToLower(locale)
	return !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

// Ellipsis returns the mark for omitted text.
func Ellipsis() string {
	if ASCII {
		return "~"
	}
	return "…"
}

// Shown returns s with a "?" for each character that the terminal cannot show.
func Shown(s string) string {
	if !ASCII {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII {
			return '?'
		}
		return r
	}, s)
}

// Brief formats a duration for display, with about two significant digits.
func Brief(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Millisecond:
		return fmt.Sprintf("%.2fms", d.Seconds()*1000)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// EventType returns the table column for an event's type, colored so that grants, waits and
// lost locks stand out.
func EventType(t admin.EventType, name string) string {
	name = padded(name, 8)
	switch t {
	case admin.EventGranted:
		return paint(text.FgGreen, name)
	case admin.EventExpired, admin.EventBroken:
		return paint(Alarm, name)
	case admin.EventQueued, admin.EventGaveUp:
		return paint(text.FgYellow, name)
	}
	return name
}

// padded pads s with spaces on the right to the given width.
func padded(s string, width int) string {
	return s + strings.Repeat(" ", max(width-len(s), 0))
}

// paint is like color.Sprint, but costs nothing while colors are disabled.
func paint(color text.Color, s string) string {
	if !colored {
		return s
	}
	return color.Sprint(s)
}

// colored reports whether colors are enabled.
var colored bool
