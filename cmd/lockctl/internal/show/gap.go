package show

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

// gapJSON is what --json prints where events are missing. Scripts depend on it: fields are
// added, never renamed. The reference prints what the tags say.
type gapJSON struct {
	Time   *time.Time `json:"time" doc:"the gap's begin, by the server's clock; null: there was nothing before"`
	Event  string     `json:"event" doc:"gap"`
	Until  time.Time  `json:"until" doc:"its end"`
	Missed *uint64    `json:"missed" doc:"how many writes to the bucket are missing, of any lock; null: not known"`
	Remade bool       `json:"remade" doc:"the bucket was deleted and re-created in the gap"`
}

// GapObject is a gap for scripts, in a line.
func GapObject(ev natslock.Event) string {
	out := gapJSON{Event: ev.Type.String(), Until: ev.Until.UTC(), Remade: errors.Is(ev.Cause, kvstore.ErrRemade)}
	if !ev.Time.IsZero() {
		begin := ev.Time.UTC()
		out.Time = &begin
	}
	if ev.Missed > 0 {
		out.Missed = &ev.Missed
	}
	return OneLine(out)
}

// GapLine is a gap for reading, with its times in a layout of package time.
func GapLine(ev natslock.Event, layout string) string {
	until := ev.Until.Local().Format(layout)
	text := "nothing before " + until + " is kept"
	switch {
	case errors.Is(ev.Cause, kvstore.ErrRemade):
		text = "the bucket was deleted and re-created; events until " + until + " may be missing"
	case ev.Missed > 0:
		text = fmt.Sprintf("%s to the bucket missing until %s, of these locks or others", Count(int(ev.Missed), "write"), until)
	}
	if ev.Time.IsZero() {
		return Faint.Sprint(text)
	}
	return Faint.Sprintf("%s  %-8s  %s", ev.Time.Local().Format(layout), ev.Type, text)
}
