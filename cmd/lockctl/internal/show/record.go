package show

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock/admin"
)

// lockJSON is a lock in the output of --json. Scripts depend on it, so fields may be added but
// never renamed. Times are in RFC 3339 format, durations in seconds. The doc tags appear in the
// generated reference.
type lockJSON struct {
	Kind        string       `json:"kind" doc:"mutex, rw or semaphore"`
	Name        string       `json:"name" doc:"quoted as in Go if it is not UTF-8 or begins with a quote"`
	Mode        string       `json:"mode" doc:"exclusive, shared, or free"`
	Holder      *holderJSON  `json:"holder" doc:"the holder or the writer; null: none, or only readers"`
	Readers     []holderJSON `json:"readers" doc:"the readers, first come first"`
	Permits     []holderJSON `json:"permits" doc:"a semaphore's holders, by slot"`
	Queue       []waiterJSON `json:"queue" doc:"the waiters, first in line first"`
	WriterWaits bool         `json:"writer_waits" doc:"the writer in holder keeps out new readers, and waits for those in readers to leave"`
	BothKinds   bool         `json:"both_kinds" doc:"a lock of another kind has the same name"`
}

// client is the client of a holder or waiter in the output of --json.
type client struct {
	Owner string `json:"owner" doc:"the client's name"`
	Host  string `json:"host" doc:"its machine"`
	PID   int    `json:"pid" doc:"its process"`
}

// holderJSON is a holder in the output of --json.
type holderJSON struct {
	Token uint64 `json:"token" doc:"fencing token; below 2^53 until 2060, so that jq reads it exactly"`
	ID    string `json:"id" doc:"the claim's id, for break --id"`
	client
	Since      time.Time         `json:"since" doc:"when it took the lock, by its own clock"`
	Held       float64           `json:"held" doc:"the time since then, by the clocks of holder and this machine"`
	Waited     float64           `json:"waited" doc:"the time from the call to the grant; 0: no queueing"`
	Grants     uint64            `json:"grants" doc:"number of goroutines that have held the lock by this claim"`
	Waiting    int               `json:"waiting" doc:"number of goroutines of its client that wait behind it"`
	TTL        float64           `json:"ttl" doc:"its lease"`
	Expires    *time.Time        `json:"expires" doc:"when the lease ends unless it is renewed, by the server's clock; null: never"`
	Overdue    bool              `json:"overdue" doc:"the lease has ended: the lock is no longer held by this record"`
	Meta       map[string]string `json:"meta" doc:"the metadata of the lock"`
	Broken     *brokenJSON       `json:"broken" doc:"the break; null: not broken"`
	Revision   uint64            `json:"revision" doc:"the record's revision when read"`
	Unreadable bool              `json:"unreadable" doc:"held by an unknown owner: lockctl cannot read the record"`
	Lingers    bool              `json:"lingers" doc:"its client may keep the lock idle"`
	Idle       bool              `json:"idle" doc:"no goroutine was inside when the client last renewed the lock"`
	Purpose    string            `json:"purpose" doc:"election, member, partition, script, job (one that is done), or rest (of a minimum hold); empty: not given"`
	Slot       int               `json:"slot" doc:"a semaphore's permit, from 0"`
	Of         int               `json:"of" doc:"a semaphore's number of permits; 0 for other locks"`
}

// brokenJSON is a holder's break in the output of --json.
type brokenJSON struct {
	By     string    `json:"by" doc:"the operator"`
	Reason string    `json:"reason" doc:"why"`
	At     time.Time `json:"at" doc:"when, by the operator's clock"`
}

// waiterJSON is a waiter in the output of --json.
type waiterJSON struct {
	Ticket uint64 `json:"ticket" doc:"its place: lower ones come first"`
	ID     string `json:"id" doc:"the claim's id"`
	client
	Since      time.Time `json:"since" doc:"when its wait began, by its own clock"`
	Waited     float64   `json:"waited" doc:"the time since then, by the clocks of waiter and this machine"`
	Mode       string    `json:"mode" doc:"exclusive or shared"`
	Purpose    string    `json:"purpose" doc:"what it waits for: see the holder"`
	Goroutines int       `json:"goroutines" doc:"number of goroutines of its client at this place"`
	Of         int       `json:"of" doc:"a semaphore's number of permits; 0 for other locks"`
	Overdue    bool      `json:"overdue" doc:"the place has ended, and no longer blocks others"`
}

// Shape is a type of object in the output of --json. The doc tags of its fields describe it.
type Shape struct {
	Title string
	Of    any // the object's zero value
}

// Shapes returns the JSON objects that describe a lock, in the order of the reference, and the
// object that describes a gap.
func Shapes() (ofLocks []Shape, ofGap Shape) {
	return []Shape{
		{"A lock, of ls and info", lockJSON{}},
		{"A holder, a writer or a reader", holderJSON{}},
		{"A waiter", waiterJSON{}},
		{"A break", brokenJSON{}},
	}, Shape{"A gap, of watch and history", gapJSON{}}
}

// lockObject returns a lock as it is encoded for --json. both is set if a lock of another kind
// has the same name.
func lockObject(info admin.Info, both bool) lockJSON {
	out := lockJSON{
		Kind: info.Kind.String(), Name: Name(info.Name), Mode: modeOf(info), BothKinds: both,
		Readers: []holderJSON{}, Permits: []holderJSON{}, Queue: []waiterJSON{}, WriterWaits: waitsForReaders(info),
	}
	if info.Holder != nil {
		h := holderToJSON(*info.Holder)
		out.Holder = &h
	}
	for _, r := range info.Readers {
		out.Readers = append(out.Readers, holderToJSON(r))
	}
	for _, h := range info.Permits {
		out.Permits = append(out.Permits, holderToJSON(h))
	}
	for _, w := range info.Queue {
		out.Queue = append(out.Queue, waiterJSON{
			Ticket: w.Ticket, ID: w.ID, client: client{w.Owner, w.Host, w.PID}, Purpose: w.Purpose,
			Since: w.Since.UTC(), Waited: sinceSeconds(w.Since), Mode: w.Mode.String(), Goroutines: w.Goroutines, Of: w.Of, Overdue: w.Overdue,
		})
	}
	return out
}

func holderToJSON(h admin.Holder) holderJSON {
	out := holderJSON{
		Token: h.Token, ID: h.ID, client: client{h.Owner, h.Host, h.PID},
		Since: h.Since.UTC(), Held: sinceSeconds(h.Since), Waited: h.Waited.Seconds(), Grants: h.Grants, Waiting: h.Waiting, TTL: h.TTL.Seconds(), Overdue: h.Overdue, Meta: h.Meta,
		Revision: h.Revision, Unreadable: h.Unreadable, Lingers: h.Lingers, Idle: h.Idle,
		Purpose: h.Purpose, Slot: h.Slot, Of: h.Of,
	}
	if out.Meta == nil {
		out.Meta = map[string]string{}
	}
	if !h.Expires.IsZero() {
		e := h.Expires.UTC()
		out.Expires = &e
	}
	if b := h.Broken; b != nil {
		out.Broken = &brokenJSON{By: b.By, Reason: b.Reason, At: b.At.UTC()}
	}
	return out
}

// sinceSeconds returns the number of seconds since t, or 0 if t is in the future because of
// clock skew.
func sinceSeconds(t time.Time) float64 {
	return max(time.Since(t), 0).Round(time.Millisecond).Seconds()
}

// PrintJSON prints the locks as a single JSON array, which may be empty. It returns only errors
// from w.
func PrintJSON(w io.Writer, infos []admin.Info) error {
	both := BothKinds(infos)
	out := make([]lockJSON, 0, len(infos))
	for _, i := range infos {
		out = append(out, lockObject(i, both[i.Name]))
	}
	return WriteJSON(w, out)
}

// WriteJSON prints v as indented JSON. It returns only errors from w.
func WriteJSON(w io.Writer, v any) error {
	enc := newEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// OneLine returns v as a single line of JSON. v must be encodable.
func OneLine(v any) string {
	var b strings.Builder
	_ = newEncoder(&b).Encode(v)
	return strings.TrimSuffix(b.String(), "\n")
}

// visible escapes unprintable characters in JSON, which the encoder leaves unchanged. They
// could control a terminal, whereas their escapes mean the same thing to every JSON parser.
type visible struct{ io.Writer }

func (v visible) Write(p []byte) (int, error) {
	var b []byte
	for _, r := range string(p) {
		if r == '\n' || unicode.IsPrint(r) {
			b = utf8.AppendRune(b, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			b = fmt.Appendf(b, `\u%04x`, unit)
		}
	}
	_, err := v.Writer.Write(b)
	return len(p), err
}

// Name returns a lock's name in a form that scripts can pass back to lockctl. It quotes the
// name as [Plain] does if the name is not valid UTF-8 or begins with a double quote, and
// returns it unchanged otherwise.
func Name(name string) string {
	if utf8.ValidString(name) && !plain.Quoted(name) {
		return name
	}
	return plain.Text(name)
}

// newEncoder returns an encoder for the output of --json.
func newEncoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(visible{w})
	enc.SetEscapeHTML(false)
	return enc
}

// Who returns a short name for a holder or a waiter.
func Who(owner, host string, pid int) string {
	owner = cmp.Or(owner, "unnamed")
	switch {
	case strings.Contains(owner, host):
		return Plain(owner)
	case pid != 0:
		return Plain(owner + " on " + host + ":" + strconv.Itoa(pid))
	}
	return Plain(owner + " on " + host)
}

// HolderName returns a short name for a holder, or says why the name is unknown.
func HolderName(h admin.Holder) string {
	if h.Unreadable {
		return Alarm.Sprint("unknown (unreadable record)")
	}
	name := Who(h.Owner, h.Host, h.PID)
	if h.Broken != nil {
		name += Alarm.Sprint(" (broken)")
	}
	return name
}

// ExpiresIn returns the time until the lease ends, or "never" if it has no TTL.
func ExpiresIn(h admin.Holder) string {
	if h.Expires.IsZero() {
		return "never"
	}
	return Brief(time.Until(h.Expires))
}

// Expiry is ExpiresIn for a table cell. It returns "overdue" for a lease that has already
// ended.
func Expiry(h admin.Holder) string {
	if h.Overdue {
		return Alarm.Sprint("overdue")
	}
	return ExpiresIn(h)
}

// MetaList formats a lock's metadata as key=value pairs, sorted by key.
func MetaList(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, Plain(k)+"="+Plain(m[k]))
	}
	return strings.Join(parts, " ")
}
