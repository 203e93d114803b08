package page

import (
	"net/url"
	"slices"
	"strconv"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock/admin"
)

// line is an event in readable form. Times are in milliseconds by the server's clock.
type line struct {
	Time  int64  `json:"time"`
	Event string `json:"event"` // as lockctl watch names it
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Key   string `json:"key,omitempty"` // for a URL, if it differs from Name
	Who   string `json:"who"`
	Mode  string `json:"mode,omitempty"` // for a reader-writer lock, or the slot of a semaphore
	Token string `json:"token,omitempty"`
	Note  string `json:"note,omitempty"` // who broke the lock, and why
	// Waited, Held and Late are in milliseconds: how long a client had waited, how long a hold
	// lasted, and how long after the previous write a late renewal came.
	Waited int64 `json:"waited,omitempty"`
	Held   int64 `json:"held,omitempty"`
	Late   int64 `json:"late,omitempty"`
}

// isShown reports whether the page shows an event. It shows a renewal only if the renewal was
// late.
func isShown(ev admin.Event) bool {
	return ev.Type != admin.EventRenewed && ev.Type != admin.EventWatching || ev.Late > 0
}

// lineOf formats an event.
func lineOf(ev admin.Event) line {
	l := line{Time: millis(ev.Time), Event: ev.Type.String(), Kind: ev.Kind.String(), Name: plain.Text(ev.Name), Who: "unknown"}
	if l.Name != ev.Name {
		l.Key = url.QueryEscape(ev.Name)
	}
	if ev.Late > 0 {
		l.Event, l.Late = "late", ev.Late.Milliseconds()
	}
	if ev.Kind == admin.KindRW {
		l.Mode = ev.Mode.String()
	}
	l.Token = strconv.FormatUint(ev.Token, 10)
	h := ev.Holder
	if h == nil {
		return l
	}
	l.Who = holderName(*h)
	switch ev.Type {
	case admin.EventGranted, admin.EventGaveUp:
		l.Waited = ev.Waited.Milliseconds()
	case admin.EventReleased, admin.EventExpired, admin.EventBroken:
		if !h.Since.IsZero() && !h.Unreadable && !h.Idle {
			l.Held = max(ev.Time.Sub(h.Since), 0).Milliseconds()
		}
	}
	if ev.Kind == admin.KindSemaphore && ev.Type != admin.EventQueued && ev.Type != admin.EventGaveUp {
		l.Mode = "slot " + strconv.Itoa(h.Slot)
	}
	if h.Broken != nil && ev.Type == admin.EventBroken {
		l.Note = "by " + plain.Text(h.Broken.By) + ": " + plain.Text(h.Broken.Reason)
	}
	return l
}

// weight ranks events by importance.
func weight(ev admin.Event) int {
	switch {
	case ev.Type == admin.EventExpired, ev.Type == admin.EventBroken:
		return 0
	case ev.Late > 0, ev.Type == admin.EventGaveUp:
		return 1
	}
	return 2
}

// pick returns the n most important events in their original order, preferring later events among
// equally important ones. left is the number of events left out.
func pick(events []admin.Event, n int) (kept []admin.Event, left int) {
	if len(events) <= n {
		return events, 0
	}
	order := make([]int, len(events))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if d := weight(events[a]) - weight(events[b]); d != 0 {
			return d
		}
		return b - a
	})
	order = order[:n]
	slices.Sort(order)
	for _, i := range order {
		kept = append(kept, events[i])
	}
	return kept, len(events) - n
}

// ring holds the latest events.
type ring struct {
	events []admin.Event
	next   int // index of the oldest event once the ring is full
}

// kept is the capacity of a ring.
const kept = 2000

func (r *ring) add(ev admin.Event) {
	if len(r.events) < kept {
		r.events = append(r.events, ev)
		return
	}
	r.events[r.next] = ev
	r.next = (r.next + 1) % kept
}

// last returns the last n events that match, oldest first. without is the number of newest events
// to skip.
func (r *ring) last(n, without int, match func(admin.Event) bool) (found []admin.Event) {
	for i := len(r.events) - 1 - without; i >= 0 && len(found) < n; i-- {
		if ev := r.events[(r.next+i)%len(r.events)]; match(ev) {
			found = append(found, ev)
		}
	}
	slices.Reverse(found)
	return found
}

// lines formats events.
func lines(events []admin.Event) []line {
	out := make([]line, 0, len(events))
	for _, ev := range events {
		out = append(out, lineOf(ev))
	}
	return out
}
