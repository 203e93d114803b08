package top

import (
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/mirror"
)

const (
	// aboveBody and belowBody are the numbers of lines above and below the body of a screen.
	aboveBody, belowBody = 3, 2
	// wideScreen is the minimum width of a screen that shows whole tokens.
	wideScreen = 110
)

const reversed = text.ReverseVideo

// bodyHeight returns the number of lines in a screen's body.
func (m *top) bodyHeight() int { return max(m.height-aboveBody-belowBody, 1) }

// listHeight is bodyHeight without the header of the list.
func (m *top) listHeight() int { return max(m.bodyHeight()-1, 1) }

func (m *top) View() tea.View {
	if m.width == 0 {
		return tea.NewView("")
	}
	footer := m.footer()
	lines := append(m.header(), m.body()...)
	lines = append(fitted(lines, max(m.height-len(footer), 0)), footer...)
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, show.Ellipsis())
	}
	v := tea.NewView(show.Shown(strings.Join(lines[:min(len(lines), m.height)], "\n")))
	v.AltScreen = true
	if m.filtering {
		if v.Cursor = m.filter.Cursor(); v.Cursor != nil {
			v.Cursor.Y = aboveBody - 1
		}
	}
	return v
}

// fitted truncates or pads lines to n lines.
func fitted(lines []string, n int) []string {
	for len(lines) < n {
		lines = append(lines, "")
	}
	return lines[:n]
}

func (m *top) header() []string {
	now := time.Now()
	state := condition(m.shot.state)
	switch {
	case m.shot.state.Condition == mirror.Live:
		state = text.FgGreen.Sprint(state)
	case m.outage():
		state = show.Alarm.Sprintf("%s for %v", state, now.Sub(m.shot.state.Since).Truncate(time.Second))
	}
	title := m.bucket
	if m.c.Pattern != ">" {
		title += " " + m.c.Pattern
	}
	return []string{
		between(show.Bold.Sprint("lockctl top")+"  "+show.Plain(title)+show.Faint.Sprint(" at "+m.url), state, m.width),
		m.counts(now),
		m.subtitle(),
	}
}

// condition describes the state of a mirror in a word or two.
func condition(s mirror.State) string {
	switch {
	case s.Condition == mirror.Live:
		return "connected"
	case errors.Is(s.Why, mirror.ErrReading):
		return "reading"
	case s.Condition == mirror.Stale:
		return "disconnected"
	case errors.Is(s.Why, kvstore.ErrNotFound):
		return "no bucket"
	}
	return s.Condition.String()
}

// outage reports whether the locks on the screen may be out of date.
func (m *top) outage() bool {
	return m.shot.state.Condition != mirror.Live && !errors.Is(m.shot.state.Why, mirror.ErrReading)
}

// counts returns the line with the totals of all locks.
func (m *top) counts(now time.Time) string {
	longest := "-"
	if !m.totals.waits.IsZero() {
		longest = show.Brief(now.Sub(m.totals.waits))
	}
	return fmt.Sprintf("locks %d  held %d  waiting %d  longest wait %s  grants %s  hand-overs %s",
		m.totals.locks, m.totals.held, m.totals.waiting, longest, perSecond(m.shot.rates.grants.rate(now)), perSecond(m.shot.rates.handovers.rate(now)))
}

// perSecond formats a rate, without decimals if it is large, so that all counts fit into
// 80 columns.
func perSecond(rate float64) string {
	if rate >= 10 {
		return fmt.Sprintf("%.0f/s", rate)
	}
	return fmt.Sprintf("%.1f/s", rate)
}

// between returns a line with right at its end, preceded by as much of left as fits.
func between(left, right string, width int) string {
	room := width - ansi.StringWidth(right) - 2
	return padRight(left, room) + "  " + right
}

// padRight cuts or pads s to width.
func padRight(s string, width int) string {
	s = cut(s, max(width, 0))
	return s + strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
}

func padLeft(s string, width int) string {
	s = cut(s, width)
	return strings.Repeat(" ", width-ansi.StringWidth(s)) + s
}

// cut shortens s to width by leaving out the middle. It keeps more of the end than of the
// beginning, because names tend to differ at the end.
func cut(s string, width int) string {
	all := ansi.StringWidth(s)
	if all <= width || width < 1 {
		return ansi.Truncate(s, width, "")
	}
	head := (width - 1) / 3
	tail := width - 1 - head
	return ansi.Truncate(s, head, "") + show.Ellipsis() + ansi.TruncateLeft(s, all-tail, "")
}

// subtitle returns a line about the filter and the sort order, or about an outage.
func (m *top) subtitle() string {
	switch {
	case m.filtering:
		return m.filter.View()
	case m.outage() && m.shot.state.Condition == mirror.NoLeader:
		return show.Alarm.Sprint("No client can get a lock, and this list is as last read. See \"lockctl doctor\".")
	case m.outage() && m.shot.state.Condition == mirror.Unfit:
		return show.Alarm.Sprint(show.Plain(m.shot.state.Why.Error()))
	case m.outage():
		return show.Alarm.Sprint("As last read. A lock whose lease has ended since is \"unknown\".")
	}
	if m.screen != screenList {
		return ""
	}
	s := "by " + sortOrders[m.sort].name
	if m.reverse {
		s += ", reversed"
	}
	if filter := m.filter.Value(); filter != "" {
		s += fmt.Sprintf("  with %s: %d", show.Plain(filter), len(m.rows))
	}
	return show.Faint.Sprint(s)
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

// footer returns a message or a question, followed by the keys.
func (m *top) footer() []string {
	if o := m.asked; o != nil {
		held := fmt.Sprintf("%s %s, held by %s, token %d", o.h.Kind, show.Plain(o.name), o.h.Name(), o.h.Token)
		lines := []string{show.Bold.Sprint(held)}
		for line := range strings.Lines(ansi.Wrap(show.BreakQuestion(o.h, o.now)+". [y/N]", m.width, "")) {
			lines = append(lines, show.Alarm.Sprint(strings.TrimSuffix(line, "\n")))
		}
		return lines
	}
	message := m.message
	if m.alarmed {
		message = show.Alarm.Sprint(message)
	}
	return []string{message, m.help.ShortHelpView(keysOf(m.screen))}
}
