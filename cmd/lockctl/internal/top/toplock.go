package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

// state describes a lock's state on the lock's own screen.
func (m *top) state(info admin.Info) string {
	state := show.StateOf(info, show.Holdings(info))
	if m.mode(info) == unknownMode {
		state = show.Alarm.Sprint("unknown, its lease has ended")
	}
	return state + m.asRead()
}

// asRead returns a note if the state may be out of date, and "" otherwise.
func (m *top) asRead() string {
	if m.outage() {
		return show.Alarm.Sprintf(" (as last read: %s)", condition(m.shot.state))
	}
	return ""
}

// lockLines returns what "lockctl info" prints about the open lock, followed by its
// latest events.
func (m *top) lockLines() []string {
	info := m.find(m.opened)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: ", info.Kind, show.Bold.Sprint(show.Plain(info.Name)))
	if show.IsFree(info) {
		b.WriteString("free" + m.asRead() + "\n")
	} else {
		var all strings.Builder
		show.PrintInfo(&all, info)
		_, rest, _ := strings.Cut(all.String(), "\n") // drop the line with the state
		b.WriteString(m.state(info) + "\n" + rest)
	}
	if m.shot.both[info.Name] {
		b.WriteString(show.Alarm.Sprint("a lock of another kind has this name: they do not exclude each other") + "\n")
	}
	now := time.Now()
	begun, _, _ := strings.Cut(show.ClockOn(m.begun, now), ".")
	b.WriteString("  events since " + begun + ", latest first\n")
	events := m.p.history(m.opened)
	for _, e := range events {
		b.WriteString("    " + show.Faint.Sprint(show.ClockOn(e.at, now)) + "  " + e.text + "\n")
	}
	if len(events) == 0 {
		b.WriteString("    none\n")
	}
	return strings.Split(ansi.Wrap(strings.TrimSuffix(b.String(), "\n"), m.width, ""), "\n")
}
