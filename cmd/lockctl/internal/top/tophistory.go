package top

import (
	"container/list"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// historyEach is the maximum number of events kept per lock.
	historyEach = 200
	// historyAll is the maximum number of events kept for all locks. Beyond that, the locks
	// whose latest events are the oldest lose theirs.
	historyAll = 20_000
	// historyGaps is the maximum number of outages kept.
	historyGaps = 20
	// rateOver is the period that rates are averaged over.
	rateOver = 4 * time.Second
	// minRate is the lowest rate shown, per second.
	minRate = 0.05
)

// past is a line in the history of a lock.
type past struct {
	at   time.Time // by the server's clock
	text string
}

// history keeps the latest events of each lock.
type history struct {
	locks  map[mirror.ID]*list.Element // elements of recent
	recent list.List                   // of *pasts, the lock with the latest event first
	size   int                         // number of events
	gaps   []past
}

// pasts are the events of a lock, oldest first.
type pasts struct {
	id     mirror.ID
	events []past
}

func newHistory() *history { return &history{locks: make(map[mirror.ID]*list.Element)} }

func (h *history) add(id mirror.ID, ev admin.Event) {
	e, found := h.locks[id]
	if !found {
		e = h.recent.PushFront(&pasts{id: id})
		h.locks[id] = e
	}
	h.recent.MoveToFront(e)
	p := e.Value.(*pasts)
	if len(p.events) == historyEach {
		p.events = slices.Delete(p.events, 0, 1)
		h.size--
	}
	p.events = append(p.events, past{ev.Time, pastText(ev)})
	for h.size++; h.size > historyAll; {
		oldest := h.recent.Remove(h.recent.Back()).(*pasts)
		delete(h.locks, oldest.id)
		h.size -= len(oldest.events)
	}
}

// missed records an outage, during which events may have been missed.
func (h *history) missed(from, until time.Time) {
	if len(h.gaps) == historyGaps {
		h.gaps = slices.Delete(h.gaps, 0, 1)
	}
	h.gaps = append(h.gaps, past{until, show.Alarm.Sprintf("events since %s were missed", show.ClockOn(from, until))})
}

// of returns the events of a lock and the outages, latest first.
func (h *history) of(id mirror.ID) []past {
	all := slices.Clone(h.gaps)
	if e, found := h.locks[id]; found {
		all = append(all, e.Value.(*pasts).events...)
	}
	slices.SortStableFunc(all, func(a, b past) int { return a.at.Compare(b.at) })
	slices.Reverse(all) // including events with the same time
	return all
}

// pastText formats an event for its lock's screen.
func pastText(ev admin.Event) string {
	parts := []string{show.EventType(ev.Type, ev.Type.String()), show.EventWho(ev)}
	if ev.Kind == admin.KindRW {
		parts = append(parts, ev.Mode.String())
	}
	if ev.Type != admin.EventQueued && ev.Type != admin.EventGaveUp {
		parts = append(parts, show.Faint.Sprintf("token %d", ev.Token))
	}
	switch waited, held := show.EventTimes(ev); {
	case held != nil:
		parts = append(parts, "held "+show.Brief(*held))
	case waited != nil && *waited > 0:
		parts = append(parts, "waited "+show.Brief(*waited))
	}
	if h := ev.Holder; h != nil && ev.Type == admin.EventBroken && h.Broken != nil {
		parts = append(parts, show.Alarm.Sprintf("by %s: %s", show.Plain(h.Broken.By), show.Plain(h.Broken.Reason)))
	}
	return strings.Join(parts, "  ")
}

// meter is an exponentially decaying average of how often something happens.
type meter struct {
	perSecond float64
	at        time.Time
}

// rate returns the number of events per second.
func (m meter) rate(now time.Time) float64 {
	return m.perSecond * math.Exp(-max(now.Sub(m.at), 0).Seconds()/rateOver.Seconds())
}

func (m meter) add(n uint64, now time.Time) meter {
	return meter{m.rate(now) + float64(n)/rateOver.Seconds(), now}
}
