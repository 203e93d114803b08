package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// breakOrder is a break that awaits the user's confirmation.
type breakOrder struct {
	name string
	h    show.Holding
	now  bool
}

type brokenMsg struct {
	order breakOrder
	err   error
}

// ask starts a break. If the lock has several holders, the user chooses one of them first.
func (m *top) ask(info admin.Info, now bool) {
	held := show.Holdings(info)
	m.opened = mirror.IDOf(info)
	switch len(held) {
	case 0:
		m.say(false, "%s is free: nothing to break", show.Plain(info.Name))
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
		m.say(false, "already broken: %s when the %s has stopped, within %s", order.h.Freed(), order.h.Role(), show.ExpiresIn(order.h.Holder))
		return
	}
	m.asked = &order
}

// answered carries out the break that the user was asked about, if the answer was yes.
func (m *top) answered(yes bool) tea.Cmd {
	order := *m.asked
	m.asked = nil
	if !yes {
		m.say(false, "nothing was broken")
		return nil
	}
	return func() tea.Msg {
		client := m.p.mirror.Client()
		if client == nil {
			return brokenMsg{order, errors.New("the bucket does not exist")}
		}
		ctx, cancel := context.WithTimeout(context.Background(), m.timeout)
		defer cancel()
		return brokenMsg{order, admin.New(client).Break(ctx, admin.BreakRequest{Kind: order.h.Kind, Name: order.name, ID: order.h.ID, Reason: m.c.Reason, Immediately: order.now})}
	}
}

func (m *top) broken(msg brokenMsg) {
	h, name := msg.order.h, show.Plain(msg.order.name)
	switch {
	case errors.Is(msg.err, natslock.ErrReleased):
		m.say(false, "nothing was broken: the %s with token %d no longer holds it", h.Role(), h.Token)
	case msg.err != nil:
		m.say(true, "%s", show.Plain(msg.err.Error()))
	case msg.order.now:
		m.say(false, "%s broken: %s now; the %s is notified, but may still be working", name, h.Freed(), h.Role())
	default:
		m.say(false, "%s broken: %s when the %s has stopped, within %v", name, h.Freed(), h.Role(), h.TTL)
	}
}

func (m *top) chooseLines() []string {
	lines := []string{"Which one?", ""}
	for i, o := range m.options {
		line := fmt.Sprintf(" %-10s %s  token %d  held %s", o.h.Title, o.h.Name(), o.h.Token, show.Brief(time.Since(o.h.Since)))
		if mode := o.h.ModeName(); mode != o.h.Mode.String() {
			line += ", " + mode
		}
		lines = append(lines, mark(padRight(line, m.width-1), i == m.option))
	}
	if over := len(lines) - m.bodyHeight(); over > 0 {
		lines = slices.Delete(lines, 0, min(over, m.option+2)) // keep the selected line visible
	}
	return lines
}
