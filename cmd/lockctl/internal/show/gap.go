package show

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock/admin"
)

// gapJSON is the output of --json for missing events. Scripts depend on it, so fields may be
// added but never renamed. The doc tags appear in the generated reference.
type gapJSON struct {
	Time   *time.Time `json:"time" doc:"the gap's beginning, by the server's clock; null: there is nothing before it"`
	Event  string     `json:"event" doc:"gap"`
	Until  time.Time  `json:"until" doc:"its end"`
	Missed *uint64    `json:"missed" doc:"how many writes of any lock are missing; with a name, at least how many events of that lock; null: unknown"`
	Remade bool       `json:"remade" doc:"the bucket was deleted and re-created in the gap"`
	Kind   *string    `json:"kind" doc:"the kind of lock whose records show the gap; null: any locks"`
	Name   *string    `json:"name" doc:"its name, as ls prints it; null: any locks"`
}

// GapObject formats a gap as a line of JSON.
func GapObject(ev admin.Event) string {
	out := gapJSON{Event: ev.Type.String(), Until: ev.Until.UTC(), Remade: errors.Is(ev.Cause, kvstore.ErrRemade)}
	if !ev.Time.IsZero() {
		begin := ev.Time.UTC()
		out.Time = &begin
	}
	if ev.Missed > 0 {
		out.Missed = &ev.Missed
	}
	if ev.Name != "" {
		kind, name := ev.Kind.String(), Name(ev.Name)
		out.Kind, out.Name = &kind, &name
	}
	return OneLine(out)
}

// GapLine formats a gap as text.
func GapLine(ev admin.Event) string {
	until := clockMillis(ev.Until)
	text := "nothing before " + until + " is kept"
	switch {
	case errors.Is(ev.Cause, kvstore.ErrRemade):
		text = "the bucket was deleted and re-created; events until " + until + " may be missing"
	case ev.Name != "":
		kind := padded(ev.Kind.String(), 12)
		text = fmt.Sprintf("%s  %s  %s of it missing until %s", kind, Plain(ev.Name), atLeast(ev.Missed), until)
	case ev.Missed > 0:
		text = fmt.Sprintf("%s to the bucket missing until %s, for these locks or others", Count(int(ev.Missed), "write"), until)
	}
	if ev.Time.IsZero() {
		return Faint.Sprint(text)
	}
	return Faint.Sprintf("%s  %-8s  %s", clockMillis(ev.Time), ev.Type, text)
}

// atLeast formats the minimum number of events that are missing for a lock.
func atLeast(n uint64) string { return "at least " + Count(int(n), "event") }

// Gaps sums up the gaps that cannot be attributed to a lock. In the history of a single lock,
// most gaps belong to other locks.
type Gaps struct {
	from, until time.Time
	missed      uint64
	n           int
}

// Add adds a gap to the sum. It returns false, without adding the gap, if the gap says more
// than how many writes are missing.
func (g *Gaps) Add(ev admin.Event) bool {
	if ev.Name != "" || ev.Missed == 0 || ev.Cause != nil {
		return false
	}
	if g.n++; g.n == 1 {
		g.from = ev.Time
	}
	g.until, g.missed = ev.Until, g.missed+ev.Missed
	return true
}

// Line returns a line of text for the sum, or "" if there are no gaps.
func (g *Gaps) Line() string {
	if g.n == 0 {
		return ""
	}
	return Faint.Sprintf("%s to the bucket missing in %s from %s to %s, for other locks or events that left no trace here; -v shows where",
		Count(int(g.missed), "write"), Count(g.n, "gap"), clockMillis(g.from), clockMillis(g.until))
}
