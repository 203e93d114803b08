package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/natslock"
)

// setupColors allows colours when standard output is a terminal that can show
// them and the user has not said otherwise (https://no-color.org).
func setupColors() {
	if isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		text.EnableColors()
	} else {
		text.DisableColors()
	}
}

var (
	alarm = text.Colors{text.FgRed}
	faint = text.Colors{text.Faint}
	bold  = text.Colors{text.Bold}
)

// newTable returns a table without frames: columns two blanks apart, which
// reads well and can be cut with awk.
func newTable(header ...any) table.Writer { return newTableOn(stdout, header...) }

func newTableOn(w io.Writer, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SuppressTrailingSpaces()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box = table.BoxStyle{PaddingRight: "  "}
	style.Format.Header = text.FormatUpper
	style.Color.Header = faint
	t.SetStyle(style)
	if len(header) > 0 {
		t.AppendHeader(header)
	}
	return t
}

// plain makes a string from a record fit for a terminal: what others wrote into
// a lock must not be able to steer it.
func plain(s string) string {
	// A byte that is no UTF-8 is printable to ContainsFunc, and can steer a terminal
	// all the same.
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// brief formats a duration for reading, to about two digits.
func brief(d time.Duration) string {
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

// eventColor tells kinds of events apart at a glance.
func eventColor(t natslock.EventType) text.Colors {
	switch t {
	case natslock.EventGranted:
		return text.Colors{text.FgGreen}
	case natslock.EventExpired, natslock.EventBroken:
		return alarm
	case natslock.EventQueued, natslock.EventGaveUp:
		return text.Colors{text.FgYellow}
	}
	return text.Colors{}
}
