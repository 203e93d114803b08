package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// watchCheck is how often a watch asks whether its bucket is still there: one
// that was made again has other notifications, and the watch would hear nothing
// for ever.
const watchCheck = 10 * time.Second

// lookTimeout bounds the look at the locks that are there: there may be many.
const lookTimeout = time.Minute

// EventWatching is a mark among the changes: from here on they are told. What
// was missed before, only a look can show.
const EventWatching = EventAtRisk + 1

// Change is something that happened to any client's lock.
type Change struct {
	Type EventType
	Kind Kind
	Mode Mode
	Name string
	Time time.Time // by the server's clock
	// Entry is who it happened to. Of a deletion whose record was not seen it
	// has the id and the token only.
	Entry Entry
}

// watcher follows all keys of the locks that match a pattern.
type watcher struct {
	e       *Engine
	deliver func(Change)
	watches []kvstore.Watch
	keys    []string      // patterns, one for each of watches
	missed  chan struct{} // the connection was away
	created time.Time     // the bucket's

	mu    sync.Mutex
	ended map[string]uint64 // while looking: the tombstones heard of, by key
}

// Watch calls deliver for every change of a lock whose name matches pattern,
// and with [EventWatching] when changes begin to be told: at first, and again
// when some may have been missed. Changes are hints. When the bucket was deleted
// or made again nothing more can be heard: fail is told, once. The returned
// function ends the watch and waits for it.
func (e *Engine) Watch(pattern string, deliver func(Change), fail func(error)) (stop func(), err error) {
	encoded, err := EncodePattern(pattern)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.hook()
	e.mu.Unlock()
	w := &watcher{e: e, deliver: deliver, missed: make(chan struct{}, 1)}
	for _, prefix := range []string{lockPrefix, waitPrefix, gatePrefix, rwaitPrefix, readerPrefix} {
		keys := keysOf(prefix, encoded)
		first := len(w.watches) == 0
		watch, err := e.kv.Watch(keys, func(ev kvstore.Event) {
			if ev.Kind != kvstore.Recheck {
				w.notified(ev)
			} else if first { // all are told
				w.recheck()
			}
		})
		if err != nil {
			w.stop()
			return nil, err
		}
		watch.Track(kvstore.Record{}) // the ends of all that is to come
		w.watches, w.keys = append(w.watches, watch), append(w.keys, keys)
	}
	ctx, cancel := context.WithCancel(e.life)
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.follow(ctx); err != nil {
			fail(err)
		}
	})
	return func() {
		cancel()
		w.stop()
		running.Wait()
	}, nil
}

func (w *watcher) stop() {
	for _, watch := range w.watches {
		watch.Stop()
	}
}

func (w *watcher) recheck() {
	select {
	case w.missed <- struct{}{}:
	default:
	}
}

func (w *watcher) notified(ev kvstore.Event) {
	if ev.Kind == kvstore.Deleted {
		w.mu.Lock()
		if w.ended != nil {
			w.ended[ev.Record.Key] = ev.Record.Revision
		}
		w.mu.Unlock()
	}
	if end, ok := endBefore(ev); ok {
		w.deliver(end)
	}
	if c, ok := changeOf(ev); ok {
		w.deliver(c)
	}
}

// endBefore is the end of the claim whose record ev shows as replaced by another
// claim's: the server removes a record without a word, and the next holder can be
// quicker than this client's clock. A record that had not expired by then has ended
// by a tombstone that was missed: its end is not known.
func endBefore(ev kvstore.Event) (Change, bool) {
	old := ev.Before
	if ev.Kind != kvstore.Put || old.Revision == 0 || old.TTL <= 0 {
		return Change{}, false
	}
	entry, before := entryOf(ev.Record), entryOf(old)
	if before.of(entry.ID) || before.Unreadable && entry.Status == StatusBroken {
		return Change{}, false // renewed or broken
	}
	if old.Time.Add(old.TTL).After(ev.Record.Time.Add(overdueSlack)) {
		return Change{}, false
	}
	return changeOf(kvstore.Event{Kind: kvstore.Expired, Record: old})
}

// follow looks at the bucket at first, whenever the connection was away, and
// now and then. It returns nil when ctx has ended.
func (w *watcher) follow(ctx context.Context) error {
	look, try := true, 0
	for {
		pause := watchCheck
		switch err := w.check(ctx, look); {
		case ctx.Err() != nil:
			return nil
		case isAny(err, kvstore.ErrNotFound, kvstore.ErrRemade):
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		case err == nil:
			look, try = false, 0
		default: // no answer: try again, at once when the connection is back
			w.e.log.Debug("watch locks", "error", err)
			pause = min(outagePause(try), watchCheck)
			try++
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-w.missed:
			look = true
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// settling is how long a watch waits for its subscriptions to reach every server of
// a cluster. Only a write would prove that (see [kvstore.NoRevision]), and a user
// that watches need not be allowed to write.
const settling = 100 * time.Millisecond

// check asks for the bucket. With look it waits until the subscriptions, which were
// sent before, are in place, says so, and reads the locks.
func (w *watcher) check(ctx context.Context, look bool) error {
	asking, cancel := context.WithTimeout(ctx, DefaultReleaseTimeout)
	defer cancel()
	st, err := w.e.kv.State(asking, "")
	if err != nil {
		return err
	}
	if !w.created.IsZero() && !w.created.Equal(st.Created) {
		w.e.verify(asking) // whoever watches next has to hear the new one
		return kvstore.ErrRemade
	}
	w.created = st.Created
	if !look {
		return nil
	}
	if !w.e.kv.Alone() { // where only one server answers, its answer is a proof
		if err := sleep(ctx, settling); err != nil {
			return err
		}
	}
	w.deliver(Change{Type: EventWatching, Time: st.Time})
	w.look(ctx)
	return nil
}

// look has the ends of the leases that are there told, and who they are of.
func (w *watcher) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	w.mu.Lock()
	w.ended = make(map[string]uint64)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.ended = nil
		w.mu.Unlock()
	}()
	for i, watch := range w.watches {
		l, err := w.e.kv.List(ctx, w.keys[i], 0)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			// Not allowed to read, most likely: notifications need no more.
			w.e.log.Debug("watch locks: look at those held", "error", err)
			return
		}
		w.mu.Lock()
		for _, r := range l.Records {
			if w.ended[r.Key] < r.Revision {
				watch.Track(r)
			}
		}
		w.mu.Unlock()
	}
}

// changeOf says what an event on a key means for a lock.
func changeOf(ev kvstore.Event) (Change, bool) {
	k, ok := parseKey(ev.Record.Key)
	if !ok {
		return Change{}, false
	}
	entry := entryOf(ev.Record)
	c := Change{Name: k.name, Time: entry.Time, Entry: entry}
	waiting := k.prefix == waitPrefix || k.prefix == rwaitPrefix
	if k.prefix == gatePrefix || k.prefix == rwaitPrefix || k.prefix == readerPrefix {
		c.Kind = RW
	}
	if ev.Kind == kvstore.Deleted && ev.Before.Revision != 0 && entry.Status != StatusBroken {
		// A tombstone names the claim at most. Without a body it is a deletion
		// by hand.
		if before := entryOf(ev.Before); entry.Unreadable || before.of(entry.ID) {
			c.Entry = before
		}
	}
	c.Mode = Mode(c.Entry.Mode)
	if k.prefix == readerPrefix {
		c.Mode = Shared
	}
	switch {
	case ev.Kind == kvstore.Put && waiting && entry.Renewal > 0:
		return Change{}, false // it still waits
	case ev.Kind == kvstore.Put && waiting:
		c.Type = EventQueued
	case ev.Kind == kvstore.Put && entry.Status == StatusBroken:
		c.Type = EventBroken
	case ev.Kind == kvstore.Put && !waiting && entry.Renewal == 0:
		c.Type = EventGranted
	case ev.Kind == kvstore.Put:
		c.Type = EventRenewed
	case ev.Kind == kvstore.Deleted && waiting && entry.Status == StatusGranted:
		return Change{}, false // the grant itself is told
	case ev.Kind == kvstore.Deleted && waiting && !entry.Unreadable && entry.Body.Token == 0 && ev.Before.Revision == 0:
		return Change{}, false // another waiter has deleted an overdue place, whose end was told
	case ev.Kind == kvstore.Deleted && waiting:
		c.Type = EventGaveUp
	case ev.Kind == kvstore.Deleted && entry.Status == StatusBroken:
		c.Type = EventBroken
	case ev.Kind == kvstore.Deleted && !entry.Unreadable && entry.Body.Token == 0:
		return Change{}, false // the clean-up of an attempt that was never granted
	case ev.Kind == kvstore.Deleted:
		c.Type = EventReleased
	case ev.Kind == kvstore.Expired && waiting:
		c.Type, c.Time = EventGaveUp, entry.Time.Add(entry.Record.TTL)
	case ev.Kind == kvstore.Expired:
		c.Type, c.Time = EventLost, entry.Time.Add(entry.Record.TTL)
	default:
		return Change{}, false
	}
	return c, true
}
