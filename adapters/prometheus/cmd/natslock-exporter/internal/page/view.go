package page

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock/admin"
)

// row is a lock in the table. Times are in milliseconds by the exporter's clock, and 0 means
// none.
type row struct {
	ID      uint64 `json:"id"` // identifies the row
	Kind    string `json:"kind"`
	Name    string `json:"name"`          // for display
	Key     string `json:"key,omitempty"` // for a URL, if it differs from Name
	State   string `json:"state"`
	Alarm   bool   `json:"alarm,omitempty"` // the lock needs attention
	Holder  string `json:"holder,omitempty"`
	Since   int64  `json:"since,omitempty"`   // when the first of the current holders got the lock
	Expires int64  `json:"expires,omitempty"` // when the last lease would end if all holders were dead
	Queue   int    `json:"queue,omitempty"`   // number of waiting goroutines
	Wait    int64  `json:"wait,omitempty"`    // when the longest wait began, ignoring clients that wait by design
}

// isFree reports whether a lock has neither holders nor waiters.
func isFree(info admin.Info) bool {
	return info.Holder == nil && len(info.Readers) == 0 && len(info.Permits) == 0 && len(info.Queue) == 0
}

// rowOf returns a lock's row in the table. ahead is how far the server's clock is ahead of the
// exporter's.
func rowOf(info admin.Info, ahead time.Duration) row {
	r := row{Kind: info.Kind.String(), Name: plain.Text(info.Name), Queue: info.Waiting()}
	if r.Name != info.Name {
		r.Key = url.QueryEscape(info.Name)
	}
	r.State, r.Alarm = stateOf(info)
	held := holders(info)
	if len(held) > 0 {
		r.Holder = holderName(held[0])
		if len(held) > 1 {
			r.Holder += fmt.Sprintf(" and %d more", len(held)-1)
		}
	}
	never := false
	for _, h := range held {
		if t := millis(h.Since); r.Since == 0 || t != 0 && t < r.Since {
			r.Since = t
		}
		never = never || h.Expires.IsZero()
		r.Expires = max(r.Expires, serverMillis(h.Expires, ahead))
	}
	if never {
		r.Expires = 0
	}
	for _, w := range info.Queue {
		if t := millis(w.Since); w.Purpose == "" && (r.Wait == 0 || t != 0 && t < r.Wait) {
			r.Wait = t
		}
	}
	return r
}

// holders returns the holders of a lock. Current readers come before a writer that is waiting
// for them to leave.
func holders(info admin.Info) []admin.Holder {
	all := slices.Concat(info.Readers, info.Permits)
	if info.Holder != nil {
		all = append(all, *info.Holder)
	}
	return all
}

// stateOf describes a lock's state in the same words as lockctl top. alarm reports whether the
// lock needs attention.
func stateOf(info admin.Info) (state string, alarm bool) {
	held := holders(info)
	broken := slices.ContainsFunc(held, func(h admin.Holder) bool { return h.Broken != nil })
	unreadable := slices.ContainsFunc(held, func(h admin.Holder) bool { return h.Unreadable })
	alarm = broken || unreadable
	idle := !slices.ContainsFunc(held, func(h admin.Holder) bool { return !h.Idle || h.Broken != nil })
	switch {
	case len(held) == 0:
		return "free", false
	case info.Kind == admin.KindSemaphore:
		state = permitsOf(info)
	case len(info.Readers) > 0:
		state = fmt.Sprintf("shared %d", len(info.Readers))
		if info.Holder != nil {
			state += ", writer next"
		}
	case held[0].Broken != nil:
		return "broken", true
	case idle:
		return "idle", alarm
	default:
		return "exclusive", alarm
	}
	switch {
	case broken:
		state += ", broken"
	case idle:
		state += ", idle"
	}
	return state, alarm
}

// permitsOf describes how many permits are taken, and out of how many. If clients disagree about
// the total, it lists all totals.
func permitsOf(info admin.Info) string {
	var numbers []int
	for _, h := range info.Permits {
		numbers = append(numbers, h.Of)
	}
	for _, w := range info.Queue {
		numbers = append(numbers, w.Of)
	}
	slices.Sort(numbers)
	var of []string
	for _, n := range slices.Compact(numbers) {
		if n > 0 { // an unreadable record has no total
			of = append(of, strconv.Itoa(n))
		}
	}
	return fmt.Sprintf("%d of %s", len(info.Permits), cmp.Or(strings.Join(of, " or "), "?"))
}

// most limits the number of holders, and of waiters, on a lock's page.
const most = 200

// detail is the content of a lock's own page.
type detail struct {
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Group   string   `json:"group,omitempty"` // for a URL, if the lock is a member or partition of a group
	State   string   `json:"state"`           // a sentence
	Alarm   bool     `json:"alarm,omitempty"`
	Holders []holder `json:"holders"`
	Queue   []waiter `json:"queue"`
	Waiting int      `json:"waiting"`        // number of waiting goroutines, both in the queue and behind the holder in its own client
	More    [2]int   `json:"more,omitempty"` // number of holders and queue places left out
}

// holder is a holder on a lock's page.
type holder struct {
	Title   string      `json:"title"` // "holder", "writer", "reader 2" or "slot 2"
	Who     string      `json:"who"`
	Since   int64       `json:"since"`
	Expires int64       `json:"expires,omitempty"` // 0 if never
	Facts   [][2]string `json:"facts"`             // pairs of name and value
	Meta    [][2]string `json:"meta,omitempty"`    // sorted by key
	Broken  string      `json:"broken,omitempty"`  // who broke the lock, and why
}

// waiter is a place in the queue on a lock's page.
type waiter struct {
	Position int    `json:"position"` // position of its first goroutine
	Who      string `json:"who"`
	Mode     string `json:"mode"`
	Since    int64  `json:"since"`
	Ticket   string `json:"ticket"`
}

// detailOf returns the content of a lock's page.
func detailOf(info admin.Info, ahead time.Duration) detail {
	d := detail{Kind: info.Kind.String(), Name: plain.Text(info.Name), State: sentence(info), Holders: []holder{}, Queue: []waiter{}, Waiting: info.Waiting()}
	d.Group = url.QueryEscape(groupOf(info))
	_, d.Alarm = stateOf(info)
	if info.Holder != nil {
		title := "holder"
		if info.Kind == admin.KindRW {
			title = "writer"
		}
		d.add(title, *info.Holder, ahead)
	}
	for i, r := range info.Readers {
		d.add(fmt.Sprintf("reader %d", i+1), r, ahead)
	}
	for _, h := range info.Permits {
		d.add(fmt.Sprintf("slot %d", h.Slot), h, ahead)
	}
	position := 1
	for _, w := range info.Queue {
		if len(d.Queue) == most {
			d.More[1]++
			continue
		}
		name := who(w.Owner, w.Host, w.PID)
		if w.Goroutines > 1 {
			name += fmt.Sprintf(" and %d more in that client", w.Goroutines-1)
		}
		mode := w.Mode.String()
		if info.Kind == admin.KindSemaphore {
			mode = fmt.Sprintf("one of %d", w.Of)
		}
		d.Queue = append(d.Queue, waiter{position, name, mode, millis(w.Since), strconv.FormatUint(w.Ticket, 10)})
		position += max(w.Goroutines, 1)
	}
	return d
}

// add adds a holder, or counts it as left out if the page is full.
func (d *detail) add(title string, h admin.Holder, ahead time.Duration) {
	if len(d.Holders) == most {
		d.More[0]++
		return
	}
	out := holder{Title: title, Who: holderName(h), Since: millis(h.Since), Expires: serverMillis(h.Expires, ahead)}
	fact := func(what, value string) { out.Facts = append(out.Facts, [2]string{what, value}) }
	fact("token", strconv.FormatUint(h.Token, 10))
	if h.Of > 0 {
		fact("permits", fmt.Sprintf("%d, according to its client", h.Of))
	}
	if h.TTL > 0 {
		fact("TTL", h.TTL.String())
	}
	if h.Waited > 0 {
		fact("waited", h.Waited.Round(time.Millisecond).String())
	}
	if h.Grants > 1 {
		fact("grants", fmt.Sprintf("%d, handed over within its client", h.Grants))
	}
	switch {
	case h.Idle && h.Broken == nil:
		fact("lingers", "idle when last renewed: another waiting client gets it")
	case h.Lingers:
		fact("lingers", "its client may keep it idle until another client waits")
	}
	if h.Purpose != "" {
		fact("for", plain.Text(h.Purpose))
	}
	if h.Fixed {
		fact("renewals", "none: the lease is fixed")
	}
	if h.Waiting > 0 {
		fact("waiting", fmt.Sprintf("%d more in that client", h.Waiting))
	}
	fact("id", plain.Text(h.ID))
	for _, k := range slices.Sorted(maps.Keys(h.Meta)) {
		out.Meta = append(out.Meta, [2]string{plain.Text(k), plain.Text(h.Meta[k])})
	}
	if b := h.Broken; b != nil {
		out.Broken = "by " + plain.Text(b.By) + ": " + plain.Text(b.Reason)
	}
	d.Holders = append(d.Holders, out)
}

// sentence describes a lock's state in the same words as lockctl info.
func sentence(info admin.Info) string {
	readers := "1 reader"
	if n := len(info.Readers); n != 1 {
		readers = fmt.Sprintf("%d readers", n)
	}
	h := info.Holder
	switch {
	case isFree(info):
		return "free"
	case len(holders(info)) == 0:
		return "free, with clients waiting"
	case info.Kind == admin.KindSemaphore:
		return permitsOf(info) + " permits taken"
	case len(info.Readers) > 0 && h != nil:
		return "held by " + readers + "; a writer is waiting for them to leave"
	case h == nil:
		return "held by " + readers
	case h.Broken != nil:
		return "broken; its holder may still be stopping"
	case h.Idle:
		return "held, idle when last renewed"
	case info.Kind == admin.KindRW:
		return "held by a writer"
	}
	return "held"
}

// holderName describes a holder in a few words, or says why it is unknown.
func holderName(h admin.Holder) string {
	switch {
	case h.Unreadable:
		return "unknown (unreadable record)"
	case h.Owner == "" && h.Host == "":
		return "unknown"
	}
	return who(h.Owner, h.Host, h.PID)
}

// who describes a holder or waiter in a few words, as lockctl does.
func who(owner, host string, pid int) string {
	owner = cmp.Or(owner, "unnamed")
	switch {
	case strings.Contains(owner, host):
		return plain.Text(owner)
	case pid != 0:
		return plain.Text(owner + " on " + host + ":" + strconv.Itoa(pid))
	}
	return plain.Text(owner + " on " + host)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// serverMillis converts a server time to the exporter's clock.
func serverMillis(t time.Time, ahead time.Duration) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Add(-ahead).UnixMilli()
}
