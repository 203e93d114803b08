package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

type watchCmd struct {
	Pattern string `arg:"" optional:"" default:">" help:"Names to watch: \"*\" stands for one token, a last \">\" for all that follow."`
	Verbose bool   `short:"v" help:"Print renewals too."`
	JSON    bool   `name:"json" help:"Print one object per line."`
}

func (*watchCmd) Help() string {
	return `Prints one line for each event. It has the time, the type, the lock, the holder or
waiter, the fencing token or the ticket in the queue, and the time waited or held.

  queued     a client began to wait
  granted    a client got the lock; a writer, the gate that lets no reader pass
  renewed    a lease continues (with -v)
  late       a lease continues, renewed more than two thirds of its TTL after the last
             time: one more such delay ends it
  released   the holder has unlocked
  expired    a lease ended: the holder is dead, or cut off
  broken     an operator ended a hold
  gave up    a waiter stopped waiting

Events are hints. Events during an outage of the server are missed. Standard error
says when that was, and when the watch begins: not before "watching" stands there.
A holder that was never seen has no name when it leaves. "idle" marks the event of a
lock that nobody was inside when its client last renewed it. When the bucket is
deleted, watch waits for the next one.

  lockctl watch 'orders.>'
  lockctl watch --json | jq 'select(.event == "expired") | .name'

With --json each line has the time, the event ("gave_up" with an underscore), kind
("mutex", "rw", "semaphore"), name and mode ("exclusive", "shared"). It has the token or the
ticket, and id, owner, host, pid and meta of the holder or waiter. The ttl and expires
are null when nobody holds or waits any more. Grants counts those that the event
reports. Waited and held are null if they do not apply or are not known. Broken is
null, or has by, reason and at. Unreadable, lingers and idle are true or false. Slot and
of are the permit of a semaphore and the number of permits. After is the time since the
last renewal of one that is late, or null. Times are RFC 3339,
durations seconds. Fields are added, never renamed.

When the watch begins again after an outage, a line has the event "gap": events between
its time and its until may be missing. Its remade is true if the bucket was deleted and
re-created. Its missed is null: the number is not known.

Exit code: 0 when it is ended by INT or TERM, or nobody reads any more.
  64 usage   69 no server   77 no permission   78 no bucket, or one not fit for locks`
}

// AfterApply checks what kong cannot.
func (c *watchCmd) AfterApply() error {
	if c.Pattern == "" { // an unset variable
		return errors.New("the pattern is empty")
	}
	return nil
}

func (c *watchCmd) Run(g *globals) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A reader that has gone ends the watch in order, not by a signal.
	signal.Ignore(syscall.SIGPIPE)
	s, err := g.connect()
	if err != nil {
		return err
	}
	defer s.close()
	g.checkPattern(c.Pattern)
	p := &watchPrinter{c: c, con: g.console, url: s.url, end: stop}
	f := &feed{g: g, s: s, pattern: c.Pattern, event: p.event, disconnected: p.disconnected, absent: p.absent}
	return f.run(ctx)
}

// watchPrinter prints events, and what interrupts them on standard error.
type watchPrinter struct {
	c   *watchCmd
	con *console
	url string
	end func() // when nobody reads any more

	mu      sync.Mutex
	began   bool
	missing string    // why there is nothing to watch
	remade  bool      // there was none meanwhile
	last    time.Time // of the last event
}

func (p *watchPrinter) event(ev natslock.Event) {
	switch {
	case ev.Type == natslock.EventWatching:
		p.watching(ev)
		return
	case ev.Type == natslock.EventRenewed && ev.Late == 0 && !p.c.Verbose:
		return
	}
	p.mu.Lock()
	p.last = ev.Time
	p.mu.Unlock()
	line := eventLine(ev, timeOfDay)
	if p.c.JSON {
		line = eventObject(ev)
	}
	p.print(line)
}

func (p *watchPrinter) print(line string) {
	if _, err := fmt.Fprintln(p.con.out, line); err != nil {
		p.end()
	}
}

// watching says that a watch begins, and marks the gap before it.
func (p *watchPrinter) watching(ev natslock.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := ""
	if p.began {
		again = " again; events in between were missed"
		gap := natslock.Event{Type: natslock.EventGap, Time: ev.Since, Until: ev.Time}
		if gap.Time.IsZero() { // another watch
			gap.Time = p.last
		}
		if p.remade {
			gap.Cause = kvstore.ErrRemade
		}
		if p.c.JSON {
			p.print(gapObject(gap))
		}
	}
	p.began, p.missing, p.remade, p.last = true, "", false, ev.Time
	p.con.complain("watching %s at %s%s", plain(p.c.Pattern), p.url, again)
}

func (p *watchPrinter) disconnected() {
	p.con.complain("lost the connection to %s, waiting for it", p.url)
}

func (p *watchPrinter) absent(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := why.Error()
	p.remade = p.remade || errors.Is(why, kvstore.ErrNotFound) || errors.Is(why, kvstore.ErrRemade)
	if errors.Is(why, kvstore.ErrNotFound) {
		text = "there is no such bucket"
	}
	if text != p.missing {
		p.missing = text
		p.con.complain("%s; waiting for it", text)
	}
}

const timeOfDay = "15:04:05.000"

// eventLine is an event for reading, with its time in a layout.
func eventLine(ev natslock.Event, layout string) string {
	kind := ev.Kind.String()
	if ev.Kind == natslock.KindRW {
		kind += " " + ev.Mode.String()
	}
	number := "token"
	switch {
	case ev.Type == natslock.EventQueued || ev.Type == natslock.EventGaveUp:
		number = "ticket"
	case ev.Kind == natslock.KindSemaphore && ev.Holder != nil:
		kind += fmt.Sprint(" ", ev.Holder.Slot)
	}
	parts := []string{
		paint(faint, ev.Time.Local().Format(layout)),
		eventType(ev.Type, eventName(ev)),
		padded(kind, 12),
		paint(bold, plain(ev.Name)),
		eventWho(ev),
		paint(faint, number+" "+strconv.FormatUint(ev.Token, 10)),
	}
	if h := ev.Holder; h != nil && h.Idle {
		parts = append(parts, idleMode)
	}
	if ev.Late > 0 {
		parts = append(parts, alarm.Sprintf("%s after the last time, TTL %v", brief(ev.Late), ev.Holder.TTL))
	}
	if waited, held := eventTimes(ev); held != nil {
		parts = append(parts, "held "+brief(*held))
	} else if waited != nil && *waited > 0 {
		parts = append(parts, "waited "+brief(*waited))
	}
	if h := ev.Holder; h != nil && ev.Type == natslock.EventBroken && h.Broken != nil {
		parts = append(parts, alarm.Sprintf("by %s: %s", plain(h.Broken.By), plain(h.Broken.Reason)))
	}
	return strings.Join(parts, "  ")
}

// eventName is the type of the event, and "late" for a late renewal.
func eventName(ev natslock.Event) string {
	if ev.Late > 0 {
		return "late"
	}
	return ev.Type.String()
}

func eventWho(ev natslock.Event) string {
	switch h := ev.Holder; {
	case h == nil || h.Owner == "" && h.Host == "" && !h.Unreadable:
		return "unknown"
	case h.Unreadable:
		return holderName(*h)
	default:
		return who(h.Owner, h.Host, h.PID)
	}
}

// eventTimes returns for how long the holder had waited and held the lock. A time is nil
// if it does not apply or is not known.
func eventTimes(ev natslock.Event) (waited, held *time.Duration) {
	h := ev.Holder
	if h == nil {
		return nil, nil
	}
	switch ev.Type {
	case natslock.EventGranted:
		return &ev.Waited, nil
	case natslock.EventGaveUp:
		if !h.Since.IsZero() {
			return &ev.Waited, nil
		}
	case natslock.EventRenewed, natslock.EventReleased, natslock.EventExpired, natslock.EventBroken:
		if !h.Since.IsZero() && !h.Unreadable && !h.Idle {
			d := max(ev.Time.Sub(h.Since), 0)
			return nil, &d
		}
	}
	return nil, nil
}

// eventJSON is what watch --json prints of an event. Scripts depend on it:
// fields are added, never renamed. Times are RFC 3339; durations are in seconds.
type eventJSON struct {
	Time       time.Time         `json:"time"` // by the server's clock
	Event      string            `json:"event"`
	Kind       string            `json:"kind"`
	Name       string            `json:"name"`
	Mode       string            `json:"mode"`
	Token      uint64            `json:"token,omitempty"`
	Ticket     uint64            `json:"ticket,omitempty"` // of "queued" and "gave_up", instead of the token
	ID         string            `json:"id"`
	Owner      string            `json:"owner"` // "": not known
	Host       string            `json:"host"`
	PID        int               `json:"pid"`
	Meta       map[string]string `json:"meta"`
	TTL        *float64          `json:"ttl"`
	Expires    *time.Time        `json:"expires"`
	Waited     *float64          `json:"waited"`
	Grants     uint64            `json:"grants"` // that the event reports
	Held       *float64          `json:"held"`
	Broken     *brokenJSON       `json:"broken"`
	Unreadable bool              `json:"unreadable"`
	Lingers    bool              `json:"lingers"`
	Idle       bool              `json:"idle"`  // when the record was last written
	Slot       int               `json:"slot"`  // of a semaphore
	Of         int               `json:"of"`    // how many slots there are; 0: another lock
	After      *float64          `json:"after"` // of "late": the time since the last renewal
}

func eventObject(ev natslock.Event) string {
	out := eventJSON{
		Time: ev.Time.UTC(), Event: strings.ReplaceAll(eventName(ev), " ", "_"),
		Kind: ev.Kind.String(), Name: ev.Name, Mode: ev.Mode.String(), ID: ev.ID, Token: ev.Token,
		Meta: map[string]string{}, Grants: ev.Grants,
	}
	if ev.Type == natslock.EventQueued || ev.Type == natslock.EventGaveUp {
		out.Token, out.Ticket = 0, ev.Token
	}
	if ev.Holder != nil {
		h := holderToJSON(*ev.Holder)
		out.Owner, out.Host, out.PID, out.Meta = h.Owner, h.Host, h.PID, h.Meta
		out.Broken, out.Unreadable, out.Lingers, out.Idle = h.Broken, h.Unreadable, h.Lingers, h.Idle
		out.Slot, out.Of = h.Slot, h.Of
		switch ev.Type {
		case natslock.EventQueued, natslock.EventGranted, natslock.EventRenewed, natslock.EventBroken:
			if h.Expires != nil {
				out.TTL, out.Expires = &h.TTL, h.Expires
			}
		}
	}
	waited, held := eventTimes(ev)
	if ev.Late > 0 {
		out.After = inSeconds(&ev.Late)
	}
	out.Waited, out.Held = inSeconds(waited), inSeconds(held)
	return oneLine(out)
}

// oneLine is v as JSON.
func oneLine(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // nothing in it can fail
	return strings.TrimSuffix(b.String(), "\n")
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}
