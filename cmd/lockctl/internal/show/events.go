package show

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/natslock/admin"
)

// EventLine formats an event as text.
func EventLine(ev admin.Event) string {
	kind := ev.Kind.String()
	if ev.Kind == admin.KindRW {
		kind += " " + ev.Mode.String()
	}
	number := "token"
	switch {
	case ev.Type == admin.EventQueued || ev.Type == admin.EventGaveUp:
		number = "ticket"
	case ev.Kind == admin.KindSemaphore && ev.Holder != nil:
		kind += fmt.Sprint(" ", ev.Holder.Slot)
	}
	parts := []string{
		paint(Faint, clockMillis(ev.Time)),
		EventType(ev.Type, eventName(ev)),
		padded(kind, 12),
		paint(Bold, Plain(ev.Name)),
		EventWho(ev),
		paint(Faint, number+" "+strconv.FormatUint(ev.Token, 10)),
	}
	if h := ev.Holder; h != nil && h.Idle {
		parts = append(parts, idleMode)
	}
	if ev.Late > 0 {
		parts = append(parts, Alarm.Sprintf("%s after the last renewal, TTL %v", Brief(ev.Late), ev.Holder.TTL))
	}
	if waited, held := EventTimes(ev); held != nil {
		parts = append(parts, "held "+Brief(*held))
	} else if waited != nil && *waited > 0 {
		parts = append(parts, "waited "+Brief(*waited))
	}
	if h := ev.Holder; h != nil && ev.Type == admin.EventBroken && h.Broken != nil {
		parts = append(parts, Alarm.Sprintf("by %s: %s", Plain(h.Broken.By), Plain(h.Broken.Reason)))
	}
	return strings.Join(parts, "  ")
}

// eventName returns the name of the event's type, or "late" for a late renewal.
func eventName(ev admin.Event) string {
	if ev.Late > 0 {
		return "late"
	}
	return ev.Type.String()
}

// EventWho returns a short name for an event's holder or waiter.
func EventWho(ev admin.Event) string {
	switch h := ev.Holder; {
	case h == nil || h.Owner == "" && h.Host == "" && !h.Unreadable:
		return "unknown"
	case h.Unreadable:
		return HolderName(*h)
	default:
		return Who(h.Owner, h.Host, h.PID)
	}
}

// EventTimes returns how long the holder waited for the lock and how long it has held the lock.
// Either is nil if it does not apply or is unknown.
func EventTimes(ev admin.Event) (waited, held *time.Duration) {
	h := ev.Holder
	if h == nil {
		return nil, nil
	}
	switch ev.Type {
	case admin.EventGranted:
		return &ev.Waited, nil
	case admin.EventGaveUp:
		if !h.Since.IsZero() {
			return &ev.Waited, nil
		}
	case admin.EventRenewed, admin.EventReleased, admin.EventExpired, admin.EventBroken:
		if !h.Since.IsZero() && !h.Unreadable && !h.Idle {
			d := max(ev.Time.Sub(h.Since), 0)
			return nil, &d
		}
	}
	return nil, nil
}

// eventJSON is an event in the output of watch --json. Scripts depend on it, so fields may be
// added but never renamed. Times are in RFC 3339 format, durations in seconds.
type eventJSON struct {
	Time       time.Time         `json:"time"` // by the server's clock
	Event      string            `json:"event"`
	Kind       string            `json:"kind"`
	Name       string            `json:"name"`
	Mode       string            `json:"mode"`
	Token      uint64            `json:"token,omitempty"`
	Ticket     uint64            `json:"ticket,omitempty"` // for "queued" and "gave_up", instead of the token
	ID         string            `json:"id"`
	client                       // Owner is "" if unknown
	Meta       map[string]string `json:"meta"`
	TTL        *float64          `json:"ttl"`
	Expires    *time.Time        `json:"expires"`
	Waited     *float64          `json:"waited"`
	Grants     uint64            `json:"grants"` // number of grants that the event reports
	Held       *float64          `json:"held"`
	Broken     *brokenJSON       `json:"broken"`
	Unreadable bool              `json:"unreadable"`
	Lingers    bool              `json:"lingers"`
	Idle       bool              `json:"idle"`  // when the record was written
	Slot       int               `json:"slot"`  // for a semaphore
	Of         int               `json:"of"`    // number of slots; 0 for other locks
	After      *float64          `json:"after"` // for "late": the time since the last renewal
}

// EventObject formats an event as a line of JSON.
func EventObject(ev admin.Event) string {
	out := eventJSON{
		Time: ev.Time.UTC(), Event: strings.ReplaceAll(eventName(ev), " ", "_"),
		Kind: ev.Kind.String(), Name: Name(ev.Name), Mode: ev.Mode.String(), ID: ev.ID, Token: ev.Token,
		Meta: map[string]string{}, Grants: ev.Grants,
	}
	if ev.Type == admin.EventQueued || ev.Type == admin.EventGaveUp {
		out.Token, out.Ticket = 0, ev.Token
	}
	if ev.Holder != nil {
		h := holderToJSON(*ev.Holder)
		out.client, out.Meta = h.client, h.Meta
		out.Broken, out.Unreadable, out.Lingers, out.Idle = h.Broken, h.Unreadable, h.Lingers, h.Idle
		out.Slot, out.Of = h.Slot, h.Of
		switch ev.Type {
		case admin.EventQueued, admin.EventGranted, admin.EventRenewed, admin.EventBroken:
			if h.Expires != nil {
				out.TTL, out.Expires = &h.TTL, h.Expires
			}
		}
	}
	waited, held := EventTimes(ev)
	if ev.Late > 0 {
		out.After = inSeconds(&ev.Late)
	}
	out.Waited, out.Held = inSeconds(waited), inSeconds(held)
	return OneLine(out)
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}
