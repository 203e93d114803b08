package show

import (
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/natslock/locks/natslock/admin"
)

// PrintInfo prints everything about a lock, as text.
func PrintInfo(w io.Writer, info admin.Info) {
	held := Holdings(info)
	fmt.Fprintf(w, "%s %s: %s\n", info.Kind, Bold.Sprint(Plain(info.Name)), StateOf(info, held))
	for _, h := range held {
		PrintHolder(w, h)
	}
	if len(info.Queue) == 0 {
		return
	}
	behind := 0
	if info.Holder != nil {
		behind = info.Holder.Waiting
	}
	fmt.Fprintf(w, "  queue of %d\n", info.Waiting()-behind)
	t := NewTable(w)
	position := 1
	for _, q := range info.Queue {
		name := Who(q.Owner, q.Host, q.PID)
		if q.Goroutines > 1 {
			name += fmt.Sprintf(" and %d more in that client", q.Goroutines-1)
		}
		mode := q.Mode.String()
		if info.Kind == admin.KindSemaphore {
			mode = fmt.Sprintf("one of %d", q.Of)
		}
		t.AppendRow(table.Row{"    ", position, name, mode, "waits " + Brief(time.Since(q.Since)),
			Faint.Sprintf("ticket %d", q.Ticket)})
		position += q.Goroutines
	}
	t.Render()
}

// StateOf returns the lock's state in a few words.
func StateOf(info admin.Info, held []Holding) string {
	readers, idle := Count(len(info.Readers), "reader"), ""
	if AllIdle(held) {
		idle = ", idle when last renewed"
	}
	switch {
	case len(held) == 0:
		return "free, with clients waiting"
	case info.Kind == admin.KindSemaphore:
		return PermitsOf(info) + " permits taken"
	case waitsForReaders(info):
		return "held by " + readers + "; a writer is waiting for them to leave"
	case info.Holder == nil:
		return "held by " + readers + idle
	case info.Holder.Overdue:
		return Alarm.Sprint("overdue: no longer held, the next acquire gets it")
	case info.Holder.Broken != nil:
		return Alarm.Sprintf("broken, its %s may still be stopping", held[0].Role())
	case info.Kind == admin.KindRW:
		return "held by a writer" + idle
	}
	return "held" + idle
}

// PrintHolder prints the details of one holder.
func PrintHolder(w io.Writer, h Holding) {
	t := NewTable(w)
	row := func(label string, value any) { t.AppendRow(table.Row{"  " + Faint.Sprint(label), value}) }
	row(h.Title, HolderName(h.Holder))
	if h.Of > 0 {
		row("permits", fmt.Sprintf("%d, according to its client", h.Of))
	}
	row("token", h.Token)
	since := fmt.Sprintf("%s, since %s", Brief(time.Since(h.Since)), Clock(h.Since))
	if h.Waits {
		row("waits", since+", for the readers to leave")
	} else {
		row("held", since)
	}
	if h.Waited > 0 {
		row("waited", Brief(h.Waited)+" for it")
	}
	if h.Grants > 1 {
		row("grants", fmt.Sprintf("%d, handed over within its client", h.Grants))
	}
	switch {
	case h.wasIdle():
		row("lingers", "idle when last renewed: another waiting client gets it")
	case h.Lingers:
		row("lingers", "its client may keep it idle until another client waits")
	}
	if h.Waiting > 0 {
		row("waiting", fmt.Sprintf("%d more in that client", h.Waiting))
	}
	switch {
	case h.Expires.IsZero():
		row("expires", "never: it has no TTL; break it to free the lock")
	case h.Overdue:
		row("expires", Alarm.Sprintf("%s ago: the server has not removed the record", Brief(time.Since(h.Expires))))
	case time.Until(h.Expires) < 0:
		row("expires", fmt.Sprintf("%s ago, unless renewed since", Brief(time.Since(h.Expires))))
	case h.Broken != nil:
		row(h.Freed(), fmt.Sprintf("within %s", ExpiresIn(h.Holder)))
	case h.Fixed:
		row("expires", fmt.Sprintf("in %s, TTL %v: its holder does not renew it", ExpiresIn(h.Holder), h.TTL))
	case h.Unreadable:
		row("expires", "in "+ExpiresIn(h.Holder))
	default:
		row("expires", fmt.Sprintf("in %s unless renewed, TTL %v", ExpiresIn(h.Holder), h.TTL))
	}
	if b := h.Broken; b != nil {
		row("broken", Alarm.Sprintf("%s ago by %s: %s", Brief(time.Since(b.At)), Plain(b.By), Plain(b.Reason)))
	}
	if h.Purpose != "" {
		row("for", Plain(h.Purpose))
	}
	if len(h.Meta) > 0 {
		row("meta", MetaList(h.Meta))
	}
	if h.ID != "" {
		row("id", Faint.Sprint(Plain(h.ID)))
	}
	row("revision", Faint.Sprint(h.Revision))
	t.Render()
}
