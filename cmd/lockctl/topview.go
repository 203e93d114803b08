package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/natslock"
)

const (
	// aboveBody is how many lines there are above what a screen shows, and
	// below it.
	aboveBody, belowBody = 3, 2
	// wideScreen has room for whole tokens.
	wideScreen = 110
)

var reversed = text.Colors{text.ReverseVideo}

// bodyHeight is how many lines a screen has for what it shows.
func (m *top) bodyHeight() int { return max(m.height-aboveBody-belowBody, 1) }

// listHeight is the same for the list, which has a header.
func (m *top) listHeight() int { return max(m.bodyHeight()-1, 1) }

func (m *top) View() tea.View {
	if m.width == 0 {
		return tea.NewView("")
	}
	footer := m.footer()
	lines := append(m.header(), m.body()...)
	lines = append(fitted(lines, max(m.height-len(footer), 0)), footer...)
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "…")
	}
	v := tea.NewView(strings.Join(lines[:min(len(lines), m.height)], "\n"))
	v.AltScreen = true
	if m.filtering {
		if v.Cursor = m.filter.Cursor(); v.Cursor != nil {
			v.Cursor.Y = aboveBody - 1
		}
	}
	return v
}

// fitted is n lines.
func fitted(lines []string, n int) []string {
	for len(lines) < n {
		lines = append(lines, "")
	}
	return lines[:n]
}

func (m *top) header() []string {
	state, since, failure, listed, _ := m.p.status()
	switch {
	case state != "":
		state = alarm.Sprintf("%s for %v", state, time.Since(since).Truncate(time.Second))
	case failure != "":
		state = alarm.Sprint("cannot look: " + plain(failure))
	case !listed:
		state = "looking"
	default:
		state = text.Colors{text.FgGreen}.Sprint("connected")
	}
	what := m.bucket
	if m.c.Pattern != ">" {
		what += " " + m.c.Pattern
	}
	longest := "-"
	if !m.shot.longest.IsZero() {
		longest = brief(time.Since(m.shot.longest))
	}
	counts := fmt.Sprintf("locks %d  held %d  waiting %d  grants %.1f/s  hand-overs %.1f/s  longest wait %s",
		len(m.shot.locks), m.shot.held, m.shot.waiting,
		m.rate(func(r rates) int { return r.grants }), m.rate(func(r rates) int { return r.handovers }), longest)
	return []string{
		between(bold.Sprint("lockctl top")+"  "+plain(what)+faint.Sprint(" at "+m.url), state, m.width),
		counts,
		m.subtitle(),
	}
}

// between puts right at the end of the line, left before it as far as it goes.
func between(left, right string, width int) string {
	room := width - ansi.StringWidth(right) - 2
	return padRight(left, room) + "  " + right
}

// padRight makes s so wide.
func padRight(s string, width int) string {
	width = max(width, 0)
	s = ansi.Truncate(s, width, "…")
	return s + strings.Repeat(" ", width-ansi.StringWidth(s))
}

func padLeft(s string, width int) string {
	s = ansi.Truncate(s, width, "…")
	return strings.Repeat(" ", width-ansi.StringWidth(s)) + s
}

// subtitle says what of the locks is shown.
func (m *top) subtitle() string {
	switch {
	case m.filtering:
		return m.filter.View()
	case m.screen != screenList:
		return ""
	}
	s := "by " + sortOrders[m.sort].name
	if m.reverse {
		s += ", reversed"
	}
	if filter := m.filter.Value(); filter != "" {
		s += fmt.Sprintf("  with %s: %d", plain(filter), len(m.rows))
	}
	return faint.Sprint(s)
}

func (m *top) body() []string {
	switch m.screen {
	case screenHelp:
		return strings.Split(m.help.FullHelpView(allKeys()), "\n")
	case screenLock:
		lines := m.lockLines()
		return lines[min(m.scroll, len(lines)):]
	case screenChoose:
		return m.chooseLines()
	}
	return m.listLines()
}

// columnWidths are those of the columns of fixed width; name and holder share
// the rest.
type columns struct{ name, mode, holder, token int }

func (m *top) columns() columns {
	c := columns{token: 7, mode: 6}
	if m.width >= wideScreen {
		c.token, c.mode = 16, 9
	}
	const others = 5 + 5 + 7 + 4 + 5 + 5 // kind, held, expires, readers, queue, wait
	rest := max(m.width-others-c.token-c.mode-9*gap, 10)
	c.name = rest * 11 / 20
	c.holder = rest - c.name
	return c
}

// gap is how far columns are apart.
const gap = 1

func (m *top) row(cells [10]string) string {
	c := m.columns()
	return strings.Join([]string{
		padRight(cells[0], 5), padRight(cells[1], c.name), padRight(cells[2], c.mode), padRight(cells[3], c.holder), padRight(cells[4], c.token),
		padLeft(cells[5], 5), padLeft(cells[6], 7), padLeft(cells[7], 4), padLeft(cells[8], 5), padLeft(cells[9], 5),
	}, strings.Repeat(" ", gap))
}

func (m *top) listLines() []string {
	lines := []string{faint.Sprint(m.row([10]string{"KIND", "NAME", "MODE", "HOLDER", "TOKEN", "HELD", "EXPIRES", "READ", "QUEUE", "WAIT"}))}
	if len(m.rows) == 0 {
		none := "no locks"
		if m.filter.Value() != "" {
			none = "none of the locks"
		}
		return append(lines, faint.Sprint(none))
	}
	for i := m.first; i < min(m.first+m.listHeight(), len(m.rows)); i++ {
		line := m.row(m.cells(m.rows[i]))
		if i == m.cursor {
			line = reversed.Sprint(ansi.Strip(line))
		}
		lines = append(lines, line)
	}
	return lines
}

// cells are what the list says of a lock.
func (m *top) cells(info natslock.Info) [10]string {
	name := plain(info.Name)
	if m.shot.both[info.Name] {
		name = alarm.Sprint("!") + name
	}
	cells := [10]string{info.Kind.String(), name, modeOf(info), "-", "-", "-", "-", "-", fmt.Sprint(info.Waiting()), "-"}
	held := holdings(info)
	switch {
	case allIdle(held):
		cells[2] = idleMode
	case len(held) > 0 && held[0].left():
		cells[2] = held[0].modeName()
	case len(info.Permits) > 0:
		cells[2] = permitsOf(info)
	case m.width < wideScreen && cells[2] == natslock.Exclusive.String():
		cells[2] = "excl" // the holder's name needs the room
	}
	if since := heldSince(info); !since.IsZero() {
		cells[5] = brief(time.Since(since))
	}
	token := ""
	switch {
	case len(together(info)) > 0:
		all := together(info)
		cells[3], cells[6] = readerNames(all), lastEnd(all)
		if len(all) == 1 {
			token = fmt.Sprint(all[0].Token)
		}
		if info.Holder != nil {
			cells[3] += " (a writer waits)"
		}
	case info.Holder != nil:
		cells[3], token, cells[6] = holderName(*info.Holder), fmt.Sprint(info.Holder.Token), expiry(*info.Holder)
	}
	if width := m.columns().token; len(token) > width {
		token = "…" + token[len(token)-width+1:]
	}
	if token != "" {
		cells[4] = token
	}
	if info.Kind == natslock.KindRW {
		cells[7] = fmt.Sprint(len(info.Readers))
	}
	if since := waitsSince(info); !since.IsZero() {
		cells[9] = brief(time.Since(since))
	}
	return cells
}

// lockLines are what "lockctl info" prints of the lock that is open.
func (m *top) lockLines() []string {
	info := m.find(m.opened)
	if len(holdings(info)) == 0 && len(info.Queue) == 0 {
		return []string{fmt.Sprintf("%s %s: free", info.Kind, bold.Sprint(plain(info.Name)))}
	}
	var b strings.Builder
	printInfo(&b, info)
	if m.shot.both[info.Name] {
		b.WriteString(alarm.Sprint("there is a lock of another kind of this name: they do not exclude each other") + "\n")
	}
	return strings.Split(ansi.Hardwrap(strings.TrimSuffix(b.String(), "\n"), m.width, true), "\n")
}

func (m *top) chooseLines() []string {
	lines := []string{"Which one?", ""}
	for i, o := range m.options {
		line := fmt.Sprintf("  %-10s %s  token %d  held %s", o.h.title, o.h.name(), o.h.Token, brief(time.Since(o.h.Since)))
		if mode := o.h.modeName(); mode != o.h.mode.String() {
			line += ", " + mode
		}
		if i == m.option {
			line = reversed.Sprint(ansi.Strip(padRight(line, m.width)))
		}
		lines = append(lines, line)
	}
	if over := len(lines) - m.bodyHeight(); over > 0 {
		lines = slices.Delete(lines, 0, min(over, m.option+2)) // keeps the chosen one
	}
	return lines
}

// footer is a message, or what is asked, and the keys.
func (m *top) footer() []string {
	if o := m.asked; o != nil {
		held := fmt.Sprintf("%s %s, held by %s, token %d", o.h.kind, plain(o.name), o.h.name(), o.h.Token)
		lines := []string{bold.Sprint(held)}
		for line := range strings.Lines(ansi.Wrap(breakQuestion(o.h, o.now)+". [y/N]", m.width, "")) {
			lines = append(lines, alarm.Sprint(strings.TrimSuffix(line, "\n")))
		}
		return lines
	}
	message := m.message
	if m.alarmed {
		message = alarm.Sprint(message)
	}
	return []string{message, m.help.ShortHelpView(keysOf(m.screen))}
}
