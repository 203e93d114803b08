package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// topTick is how long top waits for an event before it redraws anyway, to update the
	// times.
	topTick = 250 * time.Millisecond
	// topFrames is the maximum number of redraws per second.
	topFrames = 30
	// drawShare limits drawing to 1/drawShare of the time.
	drawShare = 4
	// messageFor is how long a message stays on the screen.
	messageFor = 8 * time.Second
)

type topScreen uint8

const (
	screenList topScreen = iota
	screenLock
	screenChoose // which of several holders to break
	screenHelp
)

// top is the model of the live view. It only draws snapshots of the picture, and leaves
// anything slow to other goroutines.
type top struct {
	c       *Command
	url     string
	bucket  string
	timeout time.Duration // for a break
	p       *picture
	said    *complaint
	begun   time.Time

	width, height int
	screen        topScreen
	behind        topScreen // screen to return to from the help
	shot          shot
	totals        totals   // of the shot
	rows          []topRow // filtered and sorted
	ranks         map[mirror.ID]*rank
	ranked        time.Time // when ranks was filled
	nameWidth     int       // width of the widest name in ranks
	cursor, first int       // the selected row, and the topmost row on the screen
	pinned        bool      // the cursor follows chosen; otherwise it stays on the first line
	chosen        mirror.ID // the lock under the cursor
	sort          int
	reverse       bool
	filter        textinput.Model
	filtering     bool // the user is typing the filter
	help          help.Model

	opened  mirror.ID // lock shown on screenLock
	scroll  int       // first line shown on screenLock
	chooser topScreen // screen to return to from screenChoose
	options []breakOrder
	option  int // index in options
	asked   *breakOrder
	message string
	alarmed bool // the message reports a failure
	until   time.Time
}

// topRow is a lock in the list.
type topRow struct {
	admin.Info
	rank *rank
}

type tickMsg struct{}

func newTop(c *Command, url, bucket string, timeout time.Duration, p *picture, said *complaint) *top {
	m := &top{c: c, url: url, bucket: bucket, timeout: timeout, p: p, said: said, begun: time.Now(), filter: textinput.New(), help: help.New(), ranks: make(map[mirror.ID]*rank)}
	m.sort = slices.IndexFunc(sortOrders, func(o sortOrder) bool { return o.name == c.Sort })
	m.filter.Prompt = "/"
	m.filter.SetVirtualCursor(false)
	if show.ASCII {
		m.help.ShortSeparator, m.help.Ellipsis = " | ", show.Ellipsis()
	}
	m.shot.version = -1
	return m
}

// next waits for at least atLeast, and then until there is something to draw or topTick has
// passed.
func (m *top) next(atLeast time.Duration) tea.Cmd {
	return func() tea.Msg {
		time.Sleep(atLeast)
		select {
		case <-m.p.news:
		case <-time.After(topTick):
		}
		return tickMsg{}
	}
}

func (m *top) Init() tea.Cmd { return m.next(0) }

func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tickMsg:
		begun := time.Now()
		m.refresh()
		return m, m.next(max(time.Second/topFrames, (drawShare-1)*time.Since(begun)))
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

// refresh takes a new snapshot if the picture has changed.
func (m *top) refresh() {
	s, changed := m.p.shot(m.shot.version)
	if changed {
		m.shot = s
	}
	m.shot.state = m.p.mirror.State()
	m.totals = m.shot.totals() // leases end without an event
	if changed || time.Since(m.ranked) >= rankFor {
		m.arrange()
	}
	if text := m.said.take(); text != "" {
		m.say(true, "%s", text)
	}
	if time.Now().After(m.until) {
		m.message = ""
	}
}

func (m *top) say(failure bool, format string, args ...any) {
	m.message, m.alarmed, m.until = fmt.Sprintf(format, args...), failure, time.Now().Add(messageFor)
}

// rerank makes the next arrange compute new ranks.
func (m *top) rerank() { m.ranked = time.Time{} }

// rank returns a lock's rank, computing it if necessary.
func (m *top) rank(info admin.Info, now time.Time) *rank {
	id := mirror.IDOf(info)
	r, found := m.ranks[id]
	if !found {
		r = rankOf(info, m.shot.grants[id].rate(now))
		m.ranks[id] = r
		m.nameWidth = max(m.nameWidth, ansi.StringWidth(m.nameOf(info)))
	}
	return r
}

// arrange filters and sorts the locks of the snapshot. Once the user has moved the cursor, it
// follows its lock. Until then it stays on the first line and the view stays at the top, so
// that the user sees any locks that move ahead of the one that was first.
func (m *top) arrange() {
	now := time.Now()
	if now.Sub(m.ranked) >= rankFor {
		clear(m.ranks)
		m.ranked, m.nameWidth = now, 0
	}
	m.rows = m.rows[:0]
	text := strings.ToLower(m.filter.Value())
	for _, info := range m.shot.locks {
		if text == "" || strings.Contains(strings.ToLower(info.Name), text) ||
			slices.ContainsFunc(show.Holdings(info), func(h show.Holding) bool { return strings.Contains(strings.ToLower(h.Owner), text) }) {
			m.rows = append(m.rows, topRow{info, m.rank(info, now)})
		}
	}
	slices.SortFunc(m.rows, func(a, b topRow) int {
		if order := sortOrders[m.sort].cmp(a.rank, b.rank); order != 0 {
			return order
		}
		return moreContended(a.rank, b.rank)
	})
	if m.reverse {
		slices.Reverse(m.rows)
	}
	if !m.pinned {
		m.cursor = 0
	} else if i := slices.IndexFunc(m.rows, func(r topRow) bool { return r.rank.id == m.chosen }); i >= 0 {
		m.cursor = i
	}
	m.move(0)
}

// move moves the cursor, and scrolls the list with it.
func (m *top) move(by int) {
	m.cursor = max(min(m.cursor+by, len(m.rows)-1), 0)
	if len(m.rows) > 0 {
		m.chosen = m.rows[m.cursor].rank.id
	}
	height := m.listHeight()
	m.first = max(min(m.first, m.cursor, len(m.rows)-height), m.cursor-height+1, 0)
}

// find returns a lock from the snapshot, or a free lock if the snapshot does not have it.
func (m *top) find(id mirror.ID) admin.Info {
	i, found := slices.BinarySearchFunc(m.shot.locks, admin.Info{Name: id.Name, Kind: id.Kind}, byName)
	if !found {
		return admin.Info{Name: id.Name, Kind: id.Kind}
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
		m.rerank()
		m.arrange()
	case key.Matches(msg, k.Reverse):
		m.reverse = !m.reverse
		m.arrange()
	case key.Matches(msg, k.Open) && len(m.rows) > 0:
		m.screen, m.opened, m.scroll, m.pinned = screenLock, m.chosen, 0, true
	case key.Matches(msg, k.Break, k.BreakNow) && len(m.rows) > 0:
		m.pinned = true
		m.ask(m.rows[m.cursor].Info, key.Matches(msg, k.BreakNow))
	default:
		if by := m.step(msg, m.listHeight(), len(m.rows)); by != 0 {
			m.pinned = !key.Matches(msg, k.Home)
			m.move(by)
		}
	}
	return nil
}

// step returns how far a key moves the selection among n items.
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

// typed handles a key while the user is typing the filter.
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
