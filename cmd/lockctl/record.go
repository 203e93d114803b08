package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/natslock"
)

// lockJSON is what --json prints of a lock. Scripts depend on it: fields are
// added, never renamed. Times are RFC 3339; durations are in seconds.
type lockJSON struct {
	Kind string `json:"kind"` // "mutex" or "rw"
	Name string `json:"name"`
	// Mode is how it is held: "read", "write", or "free".
	Mode    string       `json:"mode"`
	Holder  *holderJSON  `json:"holder"` // or the writer; null: nobody, or readers
	Readers []holderJSON `json:"readers"`
	Queue   []waiterJSON `json:"queue"` // first in line first
	// WriterWaits: the writer in "holder" is not in yet. It lets no more readers
	// in, and waits for those in "readers" to leave.
	WriterWaits bool `json:"writer_waits"`
	// BothKinds: there is a lock of the other kind of the same name. The two do
	// not exclude each other.
	BothKinds bool `json:"both_kinds"`
}

type holderJSON struct {
	Token      uint64            `json:"token"`
	ID         string            `json:"id"`
	Owner      string            `json:"owner"`
	Host       string            `json:"host"`
	PID        int               `json:"pid"`
	Since      time.Time         `json:"since"`
	TTL        float64           `json:"ttl"`
	Expires    *time.Time        `json:"expires"` // null: never
	Meta       map[string]string `json:"meta"`
	Broken     *brokenJSON       `json:"broken"` // null: not broken
	Revision   uint64            `json:"revision"`
	Unreadable bool              `json:"unreadable"`
}

type brokenJSON struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

type waiterJSON struct {
	Ticket uint64    `json:"ticket"`
	ID     string    `json:"id"`
	Owner  string    `json:"owner"`
	Host   string    `json:"host"`
	PID    int       `json:"pid"`
	Since  time.Time `json:"since"`
	Mode   string    `json:"mode"` // "write" or "read"
}

func toJSON(info natslock.Info) lockJSON {
	out := lockJSON{
		Kind: info.Kind.String(), Name: info.Name, Mode: modeOf(info),
		Readers: []holderJSON{}, Queue: []waiterJSON{}, WriterWaits: waitsForReaders(info),
	}
	if info.Holder != nil {
		h := holderToJSON(*info.Holder)
		out.Holder = &h
	}
	for _, r := range info.Readers {
		out.Readers = append(out.Readers, holderToJSON(r))
	}
	for _, w := range info.Queue {
		out.Queue = append(out.Queue, waiterJSON{
			Ticket: w.Ticket, ID: w.ID, Owner: w.Owner, Host: w.Host, PID: w.PID,
			Since: w.Since.UTC(), Mode: w.Mode.String(),
		})
	}
	return out
}

func holderToJSON(h natslock.Holder) holderJSON {
	out := holderJSON{
		Token: h.Token, ID: h.ID, Owner: h.Owner, Host: h.Host, PID: h.PID,
		Since: h.Since.UTC(), TTL: h.TTL.Seconds(), Meta: h.Meta,
		Revision: h.Revision, Unreadable: h.Unreadable,
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

// printJSON prints the locks as one array, also when there are none.
func printJSON(infos []natslock.Info) error {
	both := bothKinds(infos)
	out := make([]lockJSON, 0, len(infos))
	for _, i := range infos {
		l := toJSON(i)
		l.BothKinds = both[i.Name]
		out = append(out, l)
	}
	enc := newEncoder()
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func newEncoder() *json.Encoder {
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	return enc
}

// who names a holder or a waiter in a few words.
func who(owner, host string, pid int) string {
	owner = cmp.Or(owner, "unnamed")
	switch {
	case strings.Contains(owner, host):
		return plain(owner)
	case pid != 0:
		return plain(fmt.Sprintf("%s on %s:%d", owner, host, pid))
	}
	return plain(owner + " on " + host)
}

func holderName(h natslock.Holder) string {
	if h.Unreadable {
		return alarm.Sprint("unknown (unreadable record)")
	}
	name := who(h.Owner, h.Host, h.PID)
	if h.Broken != nil {
		name += alarm.Sprint(" (broken)")
	}
	return name
}

func expiresIn(h natslock.Holder) string {
	if h.Expires.IsZero() {
		return "never"
	}
	return brief(time.Until(h.Expires))
}

func metaList(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, plain(k)+"="+plain(m[k]))
	}
	return strings.Join(parts, " ")
}
