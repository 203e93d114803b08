package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

var columns = []struct {
	name  string
	width int // 0 for a share of the rest
	right bool
	wide  bool // only on a wide screen
}{
	{name: "KIND", width: 5}, {name: "NAME"}, {name: "MODE", width: 8}, {name: "HOLDER"}, {name: "TOKEN", width: 16, wide: true},
	{name: "HELD", width: 6, right: true}, {name: "EXPIRES", width: 7, right: true}, {name: "QUEUE", width: 5, right: true},
	{name: "WAIT", width: 6, right: true}, {name: "GRANTS", width: 6, right: true},
}

// minHolder is the width that a long name must leave for the holder.
const minHolder = 12

// widths returns the widths of the columns, with -1 for a hidden column. The name column is as
// wide as the longest name if there is room.
func (m *top) widths() []int {
	rest := m.width - 1 // for the mark
	widths := make([]int, len(columns))
	for i, c := range columns {
		if c.wide && m.width < wideScreen {
			widths[i] = -1
			continue
		}
		widths[i] = c.width
		rest -= c.width + 1
	}
	name := max(min(m.nameWidth, rest+1-minHolder), len("NAME"))
	for i, c := range columns {
		switch c.name {
		case "NAME":
			widths[i] = name
		case "HOLDER":
			widths[i] = max(rest+1-name, len("HOLDER"))
		}
	}
	return widths
}

// row joins cells into a line of the list.
func row(cells []string, widths []int) string {
	var parts []string
	for i, cell := range cells {
		switch {
		case widths[i] < 0:
		case columns[i].right:
			parts = append(parts, padLeft(cell, widths[i]))
		default:
			parts = append(parts, padRight(cell, widths[i]))
		}
	}
	return strings.Join(parts, " ")
}

func (m *top) listLines() []string {
	widths := m.widths()
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	lines := []string{" " + show.Faint.Sprint(row(names, widths))}
	if len(m.rows) == 0 {
		none := "no locks"
		switch {
		case m.shot.state.Condition != mirror.Live: // unknown whether there are any
			none = ""
		case m.filter.Value() != "":
			none = "none of the locks"
		}
		return append(lines, " "+show.Faint.Sprint(none))
	}
	for i := m.first; i < min(m.first+m.listHeight(), len(m.rows)); i++ {
		lines = append(lines, mark(row(m.cells(m.rows[i].Info), widths), i == m.cursor))
	}
	return lines
}

// mark marks the selected line so that it is visible even on a terminal without colors.
func mark(line string, selected bool) string {
	if !selected {
		return " " + line
	}
	return reversed.Sprint(ansi.Strip(">" + line))
}

// nameOf returns the name of a lock as shown in the list.
func (m *top) nameOf(info admin.Info) string {
	name := show.Plain(info.Name)
	if m.shot.both[info.Name] {
		name = show.Alarm.Sprint("!") + name
	}
	return name
}

// kinds contains short names for the kinds that need them.
var kinds = map[admin.Kind]string{admin.KindSemaphore: "sem"}

// cells returns a lock's cells in the list, one per column.
func (m *top) cells(info admin.Info) []string {
	kind, held, expires, wait, grants := cmp.Or(kinds[info.Kind], info.Kind.String()), "-", "-", "-", "-"
	if since := show.HeldSince(info); m.shot.held(info) {
		held = show.Brief(time.Since(since))
	}
	holder, token := "-", "-"
	switch all := show.Together(info); {
	case len(all) > 0:
		holder, expires = show.ReaderNames(all), show.LastEnd(all)
		if len(all) == 1 {
			token = fmt.Sprint(all[0].Token)
		}
		if info.Holder != nil {
			holder += " (a writer waits)"
		}
	case info.Holder != nil:
		holder, token, expires = show.HolderName(*info.Holder), fmt.Sprint(info.Holder.Token), show.Expiry(*info.Holder)
	}
	if since := show.WaitsSince(info); !since.IsZero() {
		wait = show.Brief(time.Since(since))
	}
	if rate := m.shot.grants[mirror.IDOf(info)].rate(time.Now()); rate >= minRate {
		grants = perSecond(rate)
	}
	mode := m.mode(info)
	if mode == unknownMode {
		expires = "ended"
	}
	return []string{kind, m.nameOf(info), mode, holder, token, held, expires, fmt.Sprint(info.Waiting()), wait, grants}
}

const (
	// unknownMode is the mode of a lock whose leases have ended as far as top knows. They may
	// have been renewed since top last read them.
	unknownMode = "unknown"
	overdueMode = "overdue"
)

// mode returns the mode that the list shows for a lock.
func (m *top) mode(info admin.Info) string {
	held := show.Holdings(info)
	overdue := func(h show.Holding) bool { return h.Overdue }
	switch {
	case len(held) == 0:
	case !slices.ContainsFunc(held, func(h show.Holding) bool { return !overdue(h) }):
		return overdueMode
	case !m.shot.held(info):
		return unknownMode
	case show.AllIdle(held):
		return held[0].ModeName()
	case len(info.Permits) > 0:
		return show.PermitsOf(info)
	case len(info.Readers) > 0:
		return fmt.Sprintf("shared %d", len(info.Readers))
	case info.Holder != nil:
		return "excl" // leaves room for the names
	}
	return "free"
}
