package page

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock/admin"
)

const (
	mostSpans = 400 // on a timeline
	mostLanes = 12  // on a timeline: concurrent holds and waits
	mostLines = 500 // events in a history
)

// span is a hold or a wait on a lock's timeline. Times are in milliseconds.
type span struct {
	From int64  `json:"from"`
	To   int64  `json:"to"`
	Lane int    `json:"lane"`
	Who  string `json:"who"`
	Mode string `json:"mode,omitempty"`
	How  string `json:"how"` // how it ended: an event's name, "waited" for a wait, or "" for a hold that has not ended
}

// gap is a period for which events are missing.
type gap struct {
	From int64  `json:"from,omitempty"` // 0 if no earlier events are kept
	To   int64  `json:"to"`
	Text string `json:"text"`
}

// story is what happened to a lock in a period.
type story struct {
	From    int64  `json:"from"`
	To      int64  `json:"to"`
	Lanes   int    `json:"lanes"`
	Spans   []span `json:"spans"`
	Lines   []line `json:"lines"` // oldest first
	Gaps    []gap  `json:"gaps"`
	Left    int    `json:"left,omitempty"`   // number of earlier events left out
	Missing uint64 `json:"missing"`          // number of missing writes to the bucket, for this lock or others
	Spare   int    `json:"spare,omitempty"`  // number of spans left out
	Why     string `json:"why,omitempty"`    // why there is no history
	Remedy  string `json:"remedy,omitempty"` // what to do about it
}

// teller builds a story from events, which must arrive oldest first.
type teller struct {
	from, to time.Time
	mutex    bool
	open     map[string]*admin.Event // the grants of holds that have not ended, or the events that stand in for them, by claim
	spans    []span
	latest   []admin.Event
	out      story
}

func newTeller(kind admin.Kind, from, to time.Time) *teller {
	return &teller{from: from, to: to, mutex: kind == admin.KindMutex, open: map[string]*admin.Event{}}
}

// add adds an event to the story.
func (t *teller) add(ev admin.Event) {
	if ev.Type == admin.EventGap {
		t.gap(ev)
		return
	}
	switch ev.Type {
	case admin.EventGranted:
		if t.mutex { // the end of any hold that is still open was missed
			for id := range t.open {
				t.end(id, ev.Time, "unknown")
			}
		}
		t.open[ev.ID] = &ev
		t.wait(ev, began(ev))
	case admin.EventRenewed:
		if t.open[ev.ID] == nil {
			t.open[ev.ID] = &ev
		}
	case admin.EventGaveUp:
		t.wait(ev, ev.Time)
	case admin.EventReleased, admin.EventExpired, admin.EventBroken:
		if t.open[ev.ID] == nil && ev.Holder != nil && !ev.Holder.Since.IsZero() {
			t.open[ev.ID] = &ev
		}
		if t.open[ev.ID] != nil {
			t.end(ev.ID, ev.Time, ev.Type.String())
		}
	}
	if !isShown(ev) {
		return
	}
	if t.latest = append(t.latest, ev); len(t.latest) == 2*mostLines {
		t.latest = slices.Delete(t.latest, 0, mostLines)
		t.out.Left += mostLines
	}
}

// began returns when the event's hold began.
func began(ev admin.Event) time.Time {
	if ev.Type != admin.EventGranted && ev.Holder != nil && !ev.Holder.Since.IsZero() {
		return ev.Holder.Since
	}
	return ev.Time
}

func (t *teller) end(id string, at time.Time, how string) {
	ev := t.open[id]
	delete(t.open, id)
	l := lineOf(*ev)
	t.span(span{From: began(*ev).UnixMilli(), To: at.UnixMilli(), Who: l.Who, Mode: l.Mode, How: how})
}

// wait adds the wait that ended with an event, if there was one.
func (t *teller) wait(ev admin.Event, until time.Time) {
	if ev.Waited > 0 {
		l := lineOf(ev)
		how := "waited"
		if ev.Type == admin.EventGaveUp {
			how = "gave up"
		}
		t.span(span{From: until.Add(-ev.Waited).UnixMilli(), To: until.UnixMilli(), Who: l.Who, Mode: l.Mode, How: how})
	}
}

func (t *teller) span(s span) {
	s.From, s.To = max(s.From, t.from.UnixMilli()), min(s.To, t.to.UnixMilli())
	if s.To < s.From {
		return
	}
	if t.spans = append(t.spans, s); len(t.spans) == 2*mostSpans {
		t.spans = slices.Delete(t.spans, 0, mostSpans)
		t.out.Spare += mostSpans
	}
}

// gap adds a gap. Gaps whose lock is unknown are only counted, because nearly all of them concern
// other locks.
func (t *teller) gap(ev admin.Event) {
	g := gap{From: millis(ev.Time), To: millis(ev.Until)}
	switch {
	case errors.Is(ev.Cause, kvstore.ErrRemade):
		g.Text = "the bucket was deleted and re-created"
	case ev.Name != "":
		g.Text = fmt.Sprintf("at least %d events of this lock are missing", ev.Missed)
	case ev.Missed > 0:
		t.out.Missing += ev.Missed
		return
	default:
		g.Text = "nothing earlier is kept"
	}
	if t.out.Gaps = append(t.out.Gaps, g); len(t.out.Gaps) > mostLines {
		t.out.Gaps = slices.Delete(t.out.Gaps, 0, 1)
	}
}

// story ends the open holds and returns the story.
func (t *teller) story() story {
	for id := range t.open {
		t.end(id, t.to, "")
	}
	slices.SortStableFunc(t.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Who, b.Who))
	})
	out := t.out
	if n := len(t.spans) - mostSpans; n > 0 {
		t.spans = t.spans[n:]
		out.Spare += n
	}
	if n := len(t.latest) - mostLines; n > 0 {
		t.latest = t.latest[n:]
		out.Left += n
	}
	var ends []int64 // end of the last span in each lane
	out.Spans = make([]span, 0, len(t.spans))
	for _, s := range t.spans {
		s.Lane = slices.IndexFunc(ends, func(end int64) bool { return end <= s.From })
		switch {
		case s.Lane >= 0:
			ends[s.Lane] = s.To
		case len(ends) < mostLanes:
			s.Lane = len(ends)
			ends = append(ends, s.To)
		default:
			out.Spare++
			continue
		}
		out.Spans = append(out.Spans, s)
	}
	out.From, out.To, out.Lanes = t.from.UnixMilli(), t.to.UnixMilli(), len(ends)
	out.Lines = lines(t.latest)
	if out.Gaps == nil {
		out.Gaps = []gap{}
	}
	return out
}
