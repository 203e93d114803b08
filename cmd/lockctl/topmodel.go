package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"

	"github.com/natslock/locks/natslock"
)

const (
	// topTick is how often top checks whether the picture has changed, and redraws.
	topTick = 250 * time.Millisecond
	// rateOver is the time that rates are averaged over.
	rateOver = 4 * time.Second
	// messageFor is how long a message stays.
	messageFor = 8 * time.Second
)

type topScreen uint8

const (
	screenList topScreen = iota
	screenLock
	screenChoose // which of several holders to break
	screenHelp
)

// top is the model of the live view. It only ever shows a shot of the picture:
// everything that takes time happens elsewhere.
type top struct {
	c      *topCmd
	url    string
	bucket string
	p      *picture
	said   *complaint

	width, height int
	screen        topScreen
	behind        topScreen // where help goes back to
	shot          shot
	rows          []natslock.Info // filtered and sorted
	cursor, first int             // of rows: chosen, and topmost shown
	chosen        lockID          // the lock under the cursor
	sort          int
	reverse       bool
	filter        textinput.Model
	filtering     bool // the filter is being typed
	help          help.Model

	opened  lockID    // the lock of screenLock
	scroll  int       // of screenLock
	chooser topScreen // where choosing goes back to
	options []breakOrder
	option  int // of options
	asked   *breakOrder
	message string
	alarmed bool // the message is a failure
	until   time.Time
	samples []sample
}

// breakOrder is a break that is asked about.
type breakOrder struct {
	name string
	h    holding
	now  bool
}

// sample is a state of the counts, to make rates of.
type sample struct {
	at time.Time
	rates
}

type (
	tickMsg   time.Time
	brokenMsg struct {
		order breakOrder
		err   error
	}
)

func newTop(c *topCmd, url, bucket string, p *picture, said *complaint) *top {
	m := &top{c: c, url: url, bucket: bucket, p: p, said: said, filter: textinput.New(), help: help.New()}
	m.filter.Prompt = "/"
	m.filter.SetVirtualCursor(false)
	m.shot.version = -1
	return m
}

func tick() tea.Cmd { return tea.Tick(topTick, func(t time.Time) tea.Msg { return tickMsg(t) }) }

func (m *top) Init() tea.Cmd { return tick() }

func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tickMsg:
		m.refresh()
		return m, tick()
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.help.SetWidth(msg.Width)
	case brokenMsg:
		m.broken(msg)
	case tea.KeyPressMsg:
		return m, m.press(msg)
	case tea.PasteMsg:
		if m.filtering {
			return m, m.typed(msg)
		}
	}
	return m, nil
}

// refresh takes a new shot if there is one.
func (m *top) refresh() {
	if s, changed := m.p.changed(m.shot.version); changed {
		m.shot = s
		m.arrange()
	}
	if text := m.said.take(); text != "" {
		m.say(true, "%s", text)
	}
	_, _, _, _, r := m.p.status()
	now := time.Now()
	m.samples = append(m.samples, sample{now, r})
	m.samples = slices.DeleteFunc(m.samples, func(s sample) bool { return now.Sub(s.at) > rateOver })
	if now.After(m.until) {
		m.message = ""
	}
}

// rate is what happens each second.
func (m *top) rate(count func(rates) int) float64 {
	if len(m.samples) < 2 {
		return 0
	}
	first, last := m.samples[0], m.samples[len(m.samples)-1]
	return float64(count(last.rates)-count(first.rates)) / last.at.Sub(first.at).Seconds()
}

func (m *top) say(failure bool, format string, args ...any) {
	m.message, m.alarmed, m.until = fmt.Sprintf(format, args...), failure, time.Now().Add(messageFor)
}

// arrange filters and sorts the shot, and keeps the cursor on its lock.
func (m *top) arrange() {
	m.rows = m.rows[:0]
	text := strings.ToLower(m.filter.Value())
	for _, info := range m.shot.locks {
		if text == "" || strings.Contains(strings.ToLower(info.Name), text) ||
			slices.ContainsFunc(holdings(info), func(h holding) bool { return strings.Contains(strings.ToLower(h.Owner), text) }) {
			m.rows = append(m.rows, info)
		}
	}
	if m.sort > 0 { // they are by name already
		slices.SortStableFunc(m.rows, sortOrders[m.sort].cmp)
	}
	if m.reverse {
		slices.Reverse(m.rows)
	}
	if i := slices.IndexFunc(m.rows, func(info natslock.Info) bool { return idOf(info) == m.chosen }); i >= 0 {
		m.cursor = i
	}
	m.move(0)
}

// move moves the cursor and what is shown with it.
func (m *top) move(by int) {
	m.cursor = max(min(m.cursor+by, len(m.rows)-1), 0)
	if len(m.rows) > 0 {
		m.chosen = idOf(m.rows[m.cursor])
	}
	height := m.listHeight()
	m.first = max(min(m.first, m.cursor, len(m.rows)-height), m.cursor-height+1, 0)
}

// find returns a lock of the shot; the zero Info of that name when it is free.
func (m *top) find(id lockID) natslock.Info {
	i, found := slices.BinarySearchFunc(m.shot.locks, natslock.Info{Name: id.name, Kind: id.kind}, byName)
	if !found {
		return natslock.Info{Name: id.name, Kind: id.kind}
	}
	return m.shot.locks[i]
}

func (m *top) press(msg tea.KeyPressMsg) tea.Cmd {
	k := topKeys
	switch {
	case key.Matches(msg, k.Leave):
		return tea.Quit
	case key.Matches(msg, k.Suspend):
		return tea.Suspend
	case m.asked != nil:
		return m.answered(key.Matches(msg, k.Yes))
	case m.filtering:
		return m.typed(msg)
	case key.Matches(msg, k.Quit):
		return tea.Quit
	case m.screen == screenHelp:
		m.screen = m.behind
	case key.Matches(msg, k.Help):
		m.behind, m.screen = m.screen, screenHelp
	case m.screen == screenChoose:
		m.pressChoose(msg)
	case m.screen == screenLock:
		m.pressLock(msg)
	default:
		return m.pressList(msg)
	}
	return nil
}

func (m *top) pressList(msg tea.KeyPressMsg) tea.Cmd {
	k := topKeys
	switch {
	case key.Matches(msg, k.Filter):
		m.filtering = true
		return m.filter.Focus()
	case key.Matches(msg, k.Back):
		m.filter.Reset()
		m.arrange()
	case key.Matches(msg, k.Sort):
		m.sort = (m.sort + 1) % len(sortOrders)
		m.arrange()
	case key.Matches(msg, k.Reverse):
		m.reverse = !m.reverse
		m.arrange()
	case key.Matches(msg, k.Open) && len(m.rows) > 0:
		m.screen, m.opened, m.scroll = screenLock, m.chosen, 0
	case key.Matches(msg, k.Break, k.BreakNow) && len(m.rows) > 0:
		m.ask(m.rows[m.cursor], key.Matches(msg, k.BreakNow))
	default:
		m.move(m.step(msg, m.listHeight(), len(m.rows)))
	}
	return nil
}

// step is by how much a key moves among n things.
func (m *top) step(msg tea.KeyPressMsg, page, n int) int {
	k := topKeys
	switch {
	case key.Matches(msg, k.Up):
		return -1
	case key.Matches(msg, k.Down):
		return 1
	case key.Matches(msg, k.PageUp):
		return -page
	case key.Matches(msg, k.PageDown):
		return page
	case key.Matches(msg, k.Home):
		return -n
	case key.Matches(msg, k.End):
		return n
	}
	return 0
}

// typed is a key while the filter is typed.
func (m *top) typed(msg tea.Msg) (cmd tea.Cmd) {
	press, _ := msg.(tea.KeyPressMsg)
	switch {
	case key.Matches(press, topKeys.Back):
		m.filter.Reset()
		fallthrough
	case key.Matches(press, topKeys.Open):
		m.filtering = false
		m.filter.Blur()
	default:
		m.filter, cmd = m.filter.Update(msg)
	}
	m.arrange()
	return cmd
}

func (m *top) pressLock(msg tea.KeyPressMsg) {
	k := topKeys
	switch {
	case key.Matches(msg, k.Back, k.Open):
		m.screen = screenList
	case key.Matches(msg, k.Break, k.BreakNow):
		m.ask(m.find(m.opened), key.Matches(msg, k.BreakNow))
	default:
		lines := len(m.lockLines())
		m.scroll += m.step(msg, m.bodyHeight(), lines)
		m.scroll = max(min(m.scroll, lines-m.bodyHeight()), 0)
	}
}

// ask begins a break: of the holder, or of one of them that is chosen first.
func (m *top) ask(info natslock.Info, now bool) {
	held := holdings(info)
	m.opened = idOf(info)
	switch len(held) {
	case 0:
		m.say(false, "%s is free, there is nothing to break", plain(info.Name))
	case 1:
		m.confirm(breakOrder{info.Name, held[0], now})
	default:
		m.options, m.option = nil, 0
		for _, h := range held {
			m.options = append(m.options, breakOrder{info.Name, h, now})
		}
		m.chooser, m.screen = m.screen, screenChoose
	}
}

func (m *top) pressChoose(msg tea.KeyPressMsg) {
	switch {
	case key.Matches(msg, topKeys.Back):
		m.screen = m.chooser
	case key.Matches(msg, topKeys.Open):
		m.screen = m.chooser
		m.confirm(m.options[m.option])
	default:
		m.option += m.step(msg, len(m.options), len(m.options))
		m.option = max(min(m.option, len(m.options)-1), 0)
	}
}

func (m *top) confirm(order breakOrder) {
	if order.h.Broken != nil && !order.now {
		m.say(false, "broken already: %s when the %s has stopped, in %s at the latest", order.h.freed(), order.h.role(), expiresIn(order.h.Holder))
		return
	}
	m.asked = &order
}

// answered breaks what was asked about, or does not.
func (m *top) answered(yes bool) tea.Cmd {
	order := *m.asked
	m.asked = nil
	if !yes {
		m.say(false, "nothing was broken")
		return nil
	}
	return func() tea.Msg {
		return brokenMsg{order, m.p.f.with(m.p.f.g.Timeout, func(ctx context.Context, c *natslock.Client) error {
			return c.Break(ctx, natslock.BreakRequest{Kind: order.h.kind, Name: order.name, ID: order.h.ID, Reason: m.c.Reason, Immediately: order.now})
		})}
	}
}

func (m *top) broken(msg brokenMsg) {
	h, name := msg.order.h, plain(msg.order.name)
	switch {
	case errors.Is(msg.err, natslock.ErrReleased):
		m.say(false, "nothing was broken: the %s with token %d is gone", h.role(), h.Token)
	case msg.err != nil:
		m.say(true, "%s", plain(msg.err.Error()))
	case msg.order.now:
		m.say(false, "%s broken: %s now; the %s is notified, and may still be at work", name, h.freed(), h.role())
	default:
		m.say(false, "%s broken: %s when the %s has stopped, in %v at the latest", name, h.freed(), h.role(), h.TTL)
	}
}
