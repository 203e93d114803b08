package page

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// pace is the time between updates.
	pace = 500 * time.Millisecond
	// beat is how long viewers go without an update before they are told that nothing has
	// changed.
	beat = 5 * time.Second
	// mostEvents limits the events in an update, and mostPending those waiting for the next
	// update.
	mostEvents, mostPending = 20, 4000
	// mostQueued limits the updates queued for a viewer.
	mostQueued = 4
	// recent is the number of past events in a viewer's first update.
	recent = 100
)

// MostViewers limits the number of browser tabs that can follow the page at a time.
const MostViewers = 32

// errFull is returned to viewers beyond [MostViewers].
var errFull = errors.New("too many browsers are following this page; close one, or try again later")

// Source provides the locks that a page shows. It is usually a [mirror.Mirror] that reports
// changed locks to [Hub.Changed].
type Source interface {
	// Lock returns one lock, and Below returns all locks whose names begin with a prefix, in any
	// order.
	Lock(mirror.ID) admin.Info
	Below(prefix string) []admin.Info
	// State returns the mirror's condition, which tells how far its locks can be trusted.
	State() mirror.State
	// Ahead returns how far the server's clock is ahead of the exporter's.
	Ahead() time.Duration
	// Client returns the client for reading histories, or nil if there is none.
	Client() *natslock.Client
}

// About tells viewers which locks a page shows.
type About struct {
	Bucket string `json:"bucket"`
	Names  string `json:"names"` // the pattern that the names match

	Shows  func(name string) bool `json:"-"`      // reports whether a name matches; nil if all do
	Server string                 `json:"server"` // without credentials
}

// health describes the state of the source and its bucket.
type health struct {
	State string `json:"state"`
	Since int64  `json:"since,omitempty"` // when the source stopped being live
	Why   string `json:"why,omitempty"`   // why it is not live
	AsOf  int64  `json:"asOf,omitempty"`  // when it was last live; 0 if never
}

// update is a message to a viewer.
type update struct {
	Now    int64      `json:"now"` // by the exporter's clock, like all times except those in Lines
	Ahead  int64      `json:"ahead,omitempty"`
	Health health     `json:"health"`
	All    bool       `json:"all,omitempty"` // replaces everything sent before
	About  *About     `json:"about,omitempty"`
	Rows   []row      `json:"rows,omitempty"`
	Due    [][2]int64 `json:"due,omitempty"`  // id and Expires of rows in which nothing else has changed
	Gone   []uint64   `json:"gone,omitempty"` // ids of deleted rows
	Lock   *detail    `json:"lock,omitempty"`
	Lines  []line     `json:"lines,omitempty"`
	Left   int        `json:"left,omitempty"` // number of events left out
	Bye    string     `json:"bye,omitempty"`  // why no more updates follow
}

// Hub produces the updates for all viewers.
type Hub struct {
	src   Source
	about About
	done  chan struct{}

	changing sync.Mutex // guards changed and nothing else
	changed  map[mirror.ID]struct{}

	mu      sync.Mutex
	bye     string // why no more updates follow; set under mu before done is closed
	viewers map[*viewer]struct{}
	rows    map[mirror.ID]row // what the viewers have; nil without viewers
	loaded  []admin.Info      // the locks read by the last reload, for viewers of single locks
	next    uint64            // the last row id that was assigned
	all     []byte            // a full update, encoded; nil if not encoded since the last update
	ahead   time.Duration
	health  health
	events  ring
	pending []admin.Event // events since the last update
	dropped int           // number of events dropped since the last update
	spoke   time.Time     // when the table was last updated
}

// NewHub returns a hub that produces no updates until Run is called.
func NewHub(src Source, about About) *Hub {
	return &Hub{src: src, about: about, done: make(chan struct{}), changed: make(map[mirror.ID]struct{}), viewers: make(map[*viewer]struct{})}
}

// Changed records that a lock has changed. It does not block.
func (h *Hub) Changed(id mirror.ID) {
	h.changing.Lock()
	defer h.changing.Unlock()
	h.changed[id] = struct{}{}
}

// takeChanged returns the locks that have changed since the last call.
func (h *Hub) takeChanged() map[mirror.ID]struct{} {
	h.changing.Lock()
	defer h.changing.Unlock()
	changed := h.changed
	h.changed = make(map[mirror.ID]struct{})
	return changed
}

// Event records an event of the bucket. It does not block.
func (h *Hub) Event(ev admin.Event) {
	if !isShown(ev) {
		return
	}
	if ev.Holder != nil && ev.Holder.Meta != nil { // metadata may be large, and is not shown
		holder := *ev.Holder
		holder.Meta = nil
		ev.Holder = &holder
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events.add(ev)
	switch {
	case len(h.viewers) == 0:
	case len(h.pending) < mostPending:
		h.pending = append(h.pending, ev)
	default:
		h.dropped++
	}
}

// Run produces updates until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.update(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// End tells all viewers why no more updates follow, and refuses new viewers.
func (h *Hub) End(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bye == "" {
		h.bye = why
		close(h.done)
	}
}

// update produces one update for all viewers.
func (h *Hub) update(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.check(now)
	if len(h.viewers) == 0 {
		h.rows, h.all, h.pending, h.dropped = nil, nil, nil, 0
		h.takeChanged()
		return
	}
	before := h.health
	h.all = nil // it contains the time
	infos, up := h.changes(now)
	h.check(now)
	events := h.pending
	picked, left := pick(events, mostEvents)
	up.Lines, up.Left = lines(picked), left+h.dropped
	dropped := h.dropped
	h.pending, h.dropped = nil, 0
	if len(up.Rows)+len(up.Due)+len(up.Gone)+len(up.Lines) > 0 || before.Why != h.health.Why || now.Sub(h.spoke) >= beat {
		h.spoke = now
		text := encode(up)
		for v := range h.viewers {
			if v.lock == nil {
				v.put(text)
			}
		}
	}
	h.updateLocks(now, infos, events, dropped)
}

// check records the state of the source. h.mu must be held.
func (h *Hub) check(now time.Time) {
	st := h.src.State()
	if st.Condition == mirror.Live {
		h.health = health{State: st.Condition.String(), AsOf: now.UnixMilli()}
		return
	}
	h.health.State, h.health.Since, h.health.Why = st.Condition.String(), millis(st.Since), st.Why.Error()
}

// changes reads the changed locks from the source, and updates the rows. h.mu must be held.
func (h *Hub) changes(now time.Time) (map[mirror.ID]admin.Info, update) {
	if h.rows == nil { // no viewer has any rows yet
		h.reload()
	}
	h.ahead = h.src.Ahead()
	up := h.head(now)
	changed := make(map[mirror.ID]admin.Info)
	for _, info := range h.loaded { // any of these may have changed before the reload
		changed[mirror.IDOf(info)] = info
	}
	h.loaded = nil
	for id := range h.takeChanged() {
		info := h.src.Lock(id)
		changed[id] = info
		old, known := h.rows[id]
		if isFree(info) {
			if known {
				delete(h.rows, id)
				up.Gone = append(up.Gone, old.ID)
			}
			continue
		}
		r := h.row(info)
		switch same := old; {
		case known && old == r:
			continue
		case known:
			same.Expires = r.Expires
			if same == r {
				up.Due = append(up.Due, [2]int64{int64(r.ID), r.Expires})
				break
			}
			fallthrough
		default:
			up.Rows = append(up.Rows, r)
		}
		h.rows[id] = r
	}
	return changed, up
}

// reload reads all rows. h.mu must be held.
func (h *Hub) reload() {
	changed := h.takeChanged()
	infos := h.src.Below("")
	h.ahead = h.src.Ahead()
	h.rows, h.all = make(map[mirror.ID]row, len(infos)), nil
	for _, info := range infos {
		h.rows[mirror.IDOf(info)] = h.row(info)
	}
	h.loaded = infos
	for id := range changed {
		if _, there := h.rows[id]; !there { // a free lock has no row
			h.loaded = append(h.loaded, h.src.Lock(id))
		}
	}
}

// row returns the row of a lock. The row keeps its id across updates. h.mu must be held.
func (h *Hub) row(info admin.Info) row {
	r := rowOf(info, h.ahead)
	if old, known := h.rows[mirror.IDOf(info)]; known {
		r.ID = old.ID
	} else {
		h.next++
		r.ID = h.next
	}
	return r
}

// updateLocks produces the updates for the viewers of single locks. h.mu must be held.
func (h *Hub) updateLocks(now time.Time, infos map[mirror.ID]admin.Info, events []admin.Event, dropped int) {
	made := make(map[mirror.ID][]byte)
	for v := range h.viewers {
		if v.lock == nil {
			continue
		}
		text, found := made[*v.lock]
		if !found {
			text = h.lockUpdate(now, *v.lock, infos, events, dropped)
			made[*v.lock] = text
		}
		switch {
		case text != nil:
			v.put(text)
			v.spoke = now
		case now.Sub(v.spoke) >= beat:
			v.put(encode(h.head(now)))
			v.spoke = now
		}
	}
}

// lockUpdate returns the update for one lock, or nil if nothing has changed. h.mu must be held.
func (h *Hub) lockUpdate(now time.Time, id mirror.ID, infos map[mirror.ID]admin.Info, events []admin.Event, dropped int) []byte {
	info, changed := infos[id]
	var own []admin.Event
	for _, ev := range events {
		if ev.Kind == id.Kind && ev.Name == id.Name {
			own = append(own, ev)
		}
	}
	if !changed && len(own) == 0 {
		return nil
	}
	if !changed {
		info = h.src.Lock(id)
	}
	up := h.head(now)
	d := detailOf(info, h.ahead)
	up.Lock = &d
	own, up.Left = pick(own, mostEvents)
	up.Lines, up.Left = lines(own), up.Left+dropped
	return encode(up)
}

// head returns an update without changes. h.mu must be held.
func (h *Hub) head(now time.Time) update {
	return update{Now: now.UnixMilli(), Ahead: h.ahead.Milliseconds(), Health: h.health}
}

// begin returns a full update, for a viewer that is new or has fallen behind. h.mu must be held.
func (h *Hub) begin(v *viewer, now time.Time) []byte {
	h.check(now)
	if v.lock != nil {
		h.ahead = h.src.Ahead()
		up := h.head(now)
		d := detailOf(h.src.Lock(*v.lock), h.ahead)
		up.All, up.About, up.Lock = true, &h.about, &d
		up.Lines = h.earlier(func(ev admin.Event) bool { return ev.Kind == v.lock.Kind && ev.Name == v.lock.Name })
		return encode(up)
	}
	if h.rows == nil {
		h.reload()
	}
	if h.all == nil {
		up := h.head(now)
		up.All, up.About, up.Rows = true, &h.about, make([]row, 0, len(h.rows))
		for _, r := range h.rows {
			up.Rows = append(up.Rows, r)
		}
		up.Lines = h.earlier(func(admin.Event) bool { return true })
		h.all = encode(up)
	}
	return h.all
}

// earlier returns the latest events that match, except those that the next update will contain.
// h.mu must be held.
func (h *Hub) earlier(match func(admin.Event) bool) []line {
	return lines(h.events.last(recent, len(h.pending)+h.dropped, match))
}

// seen returns the latest events of a lock after from.
func (h *Hub) seen(id mirror.ID, from time.Time) []admin.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events.last(mostLines, 0, func(ev admin.Event) bool {
		return ev.Kind == id.Kind && ev.Name == id.Name && ev.Time.After(from)
	})
}

// encode returns an update as a server-sent event.
func encode(up update) []byte {
	text, err := json.Marshal(up) // a single line
	if err != nil {
		panic(err) // all types in an update can be encoded
	}
	return append(append([]byte("data: "), text...), "\n\n"...)
}

// viewer is a browser that follows the table or a single lock.
type viewer struct {
	hub  *Hub
	lock *mirror.ID // nil for the table
	wake chan struct{}

	// Guarded by the mutex of the hub.
	behind bool     // whether the viewer needs a full update
	queue  [][]byte // encoded updates, shared between viewers
	spoke  time.Time
}

// watch adds a viewer, which stays until its leave method is called. It returns an error if there
// are too many viewers or the hub has ended.
func (h *Hub) watch(lock *mirror.ID) (*viewer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bye != "" {
		return nil, errors.New(h.bye)
	}
	if len(h.viewers) >= MostViewers {
		return nil, errFull
	}
	v := &viewer{hub: h, lock: lock, wake: make(chan struct{}, 1), behind: true}
	h.viewers[v] = struct{}{}
	return v, nil
}

func (v *viewer) leave() {
	v.hub.mu.Lock()
	defer v.hub.mu.Unlock()
	delete(v.hub.viewers, v)
}

// put queues an update. A viewer with too many queued updates gets a full update instead. The
// hub's mu must be held.
func (v *viewer) put(text []byte) {
	switch {
	case v.behind:
	case len(v.queue) < mostQueued:
		v.queue = append(v.queue, text)
	default:
		v.behind, v.queue = true, nil
	}
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// take returns the next update, or nil if there is none.
func (v *viewer) take() []byte {
	v.hub.mu.Lock()
	defer v.hub.mu.Unlock()
	if v.behind {
		v.behind, v.spoke = false, time.Now()
		return v.hub.begin(v, v.spoke)
	}
	if len(v.queue) == 0 {
		return nil
	}
	text := v.queue[0]
	v.queue = v.queue[1:]
	return text
}

// receive waits for the next update. last reports whether no more updates follow.
func (v *viewer) receive(ctx context.Context) (text []byte, last bool) {
	for {
		select {
		case <-v.hub.done:
			return v.hub.farewell(), true
		default:
		}
		if text := v.take(); text != nil {
			return text, false
		}
		select {
		case <-v.wake:
		case <-v.hub.done:
		case <-ctx.Done():
			return nil, true
		}
	}
}

// farewell returns the last update, which says why no more updates follow.
func (h *Hub) farewell() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	up := h.head(time.Now())
	up.Bye = h.bye
	return encode(up)
}
