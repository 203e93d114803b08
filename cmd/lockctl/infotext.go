package main

import (
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/natslock/locks/natslock"
)

func printInfo(w io.Writer, info natslock.Info) {
	held := holdings(info)
	fmt.Fprintf(w, "%s %s: %s\n", info.Kind, bold.Sprint(plain(info.Name)), stateOf(info, held))
	for _, h := range held {
		printHolder(w, h)
	}
	if len(info.Queue) == 0 {
		return
	}
	behind := 0
	if info.Holder != nil {
		behind = info.Holder.Waiting
	}
	fmt.Fprintf(w, "  queue of %d\n", info.Waiting()-behind)
	t := newTable(w)
	position := 1
	for _, q := range info.Queue {
		name := who(q.Owner, q.Host, q.PID)
		if q.Goroutines > 1 {
			name += fmt.Sprintf(", %d goroutines", q.Goroutines)
		}
		mode := q.Mode.String()
		if info.Kind == natslock.KindSemaphore {
			mode = fmt.Sprintf("one of %d", q.Of)
		}
		t.AppendRow(table.Row{"    ", position, name, mode, "waits " + brief(time.Since(q.Since)),
			faint.Sprintf("ticket %d", q.Ticket)})
		position += q.Goroutines
	}
	t.Render()
}

// stateOf is the lock's state in a few words.
func stateOf(info natslock.Info, held []holding) string {
	readers, idle := count(len(info.Readers), "reader"), ""
	if allIdle(held) {
		idle = ", idle when last renewed"
	}
	switch {
	case len(held) == 0:
		return "free, waited for"
	case info.Kind == natslock.KindSemaphore:
		return permitsOf(info) + " permits taken"
	case waitsForReaders(info):
		return "held by " + readers + ", a writer waits for them to leave"
	case info.Holder == nil:
		return "held by " + readers + idle
	case info.Holder.Overdue:
		return alarm.Sprint("overdue: nobody holds it, the next acquire gets it")
	case info.Holder.Broken != nil:
		return alarm.Sprintf("broken, its %s may still be stopping", held[0].role())
	case held[0].rests():
		return "resting: nobody holds it, and it keeps others out until its minimum hold is over"
	case held[0].left():
		return "handed over: nobody holds it until a client adopts it"
	case info.Kind == natslock.KindRW:
		return "held by a writer" + idle
	}
	return "held" + idle
}

// printHolder prints a holder's block.
func printHolder(w io.Writer, h holding) {
	t := newTable(w)
	row := func(label string, value any) { t.AppendRow(table.Row{"  " + faint.Sprint(label), value}) }
	row(h.title, holderName(h.Holder))
	if h.Of > 0 {
		row("permits", fmt.Sprintf("%d, as its client knows", h.Of))
	}
	row("token", h.Token)
	since := fmt.Sprintf("%s, since %s", brief(time.Since(h.Since)), h.Since.Local().Format("2006-01-02 15:04:05"))
	if h.waits {
		row("waits", since+", for the readers to leave")
	} else {
		row("held", since)
	}
	if h.Waited > 0 {
		row("waited", brief(h.Waited)+" for it")
	}
	if h.Grants > 1 {
		row("grants", fmt.Sprintf("%d, handed on inside its client", h.Grants))
	}
	switch {
	case h.wasIdle():
		row("lingers", "idle when last renewed: another client that asks gets it")
	case h.Lingers:
		row("lingers", "its client may keep it idle, until another client asks")
	}
	if h.Waiting > 0 {
		row("behind it", count(h.Waiting, "goroutine")+" of its client")
	}
	switch {
	case h.Expires.IsZero():
		row("expires", "never: it has no TTL, break it to free the lock")
	case h.Overdue:
		row("expires", alarm.Sprintf("%s ago: the server has not removed the record", brief(time.Since(h.Expires))))
	case time.Until(h.Expires) < 0:
		row("expires", fmt.Sprintf("%s ago, unless renewed since", brief(time.Since(h.Expires))))
	case h.Broken != nil:
		row(h.freed(), fmt.Sprintf("in %s at the latest", expiresIn(h.Holder)))
	case h.left():
		row(h.freed(), "in "+expiresIn(h.Holder)+", or at once by lockctl break")
	case h.Unreadable:
		row("expires", "in "+expiresIn(h.Holder))
	default:
		row("expires", fmt.Sprintf("in %s unless renewed, TTL %v", expiresIn(h.Holder), h.TTL))
	}
	if b := h.Broken; b != nil {
		row("broken", alarm.Sprintf("%s ago by %s: %s", brief(time.Since(b.At)), plain(b.By), plain(b.Reason)))
	}
	if len(h.Meta) > 0 {
		row("meta", metaList(h.Meta))
	}
	if h.ID != "" {
		row("id", faint.Sprint(plain(h.ID)))
	}
	row("revision", faint.Sprint(h.Revision))
	t.Render()
}
