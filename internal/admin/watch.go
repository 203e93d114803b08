package admin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// watchCheck is how often a watch checks that its bucket still exists. A re-created bucket has different notification
// subjects, so the watch would never receive another event.
const watchCheck = 10 * time.Second

// readTimeout limits the time spent reading the existing locks, because there can be many of them.
const readTimeout = time.Minute

// EventWatching marks the point from which the watch reports changes. Only a read can show the changes it missed
// before that point.
const EventWatching = session.EventAtRisk + 1

// Change describes an event on any client's lock.
type Change struct {
	Type session.EventType
	Kind record.Kind
	Mode record.Mode
	Name string
	Time time.Time // by the server's clock
	// Grants is the number of grants that the change reports, and Waited is how long their holders waited in total. A
	// client that passes a lock on among its goroutines writes both with its next renewal or with the release.
	Grants uint64
	Waited time.Duration
	// Late is set for a renewal that was stored later than planned: see [lateRenewal].
	Late time.Duration
	// Since is set for an [EventWatching] after an outage: changes between Since and Time may have been missed.
	Since time.Time
	// Until is the end of an [EventGap] that begins at Time. Missed is the number of missing writes to the bucket, or
	// 0 if unknown; if the gap has a name, Missed is a lower bound for that lock. Remade reports that the bucket was
	// re-created.
	Until  time.Time
	Missed uint64
	Remade bool
	// Entry is the record of the claim that changed. If a record was deleted before the watch saw it, Entry has only
	// its id and token.
	Entry record.Entry
}

// Step is an event on a key along with the changes to the lock that follow from it. Some events imply no change, such
// as the renewal of a place, or the end of a place whose client has the lock. For [EventWatching], Event is zero.
type Step struct {
	Event   kvstore.Event
	Changes []Change
}

// watcher follows the keys of all locks that match a pattern.
type watcher struct {
	a       *Admin
	deliver func(Step)
	watches []kvstore.Watch
	keys    []string      // patterns, one for each watch
	missed  chan struct{} // signaled after the connection was interrupted
	created time.Time     // when the bucket was created
	checked time.Time     // last check, by the server's clock; no change before it was missed

	mu      sync.Mutex
	ended   map[string]uint64 // revisions of notified tombstones, by key; nil unless the locks are being read
	dropped time.Time         // no change before this time was dropped; zero if no change was dropped at all
}

// Watch calls deliver for every change to a lock whose name matches pattern. It delivers an [EventWatching] when it
// starts reporting changes, and another whenever it may have missed some. Changes are hints. If the bucket is deleted
// or re-created, no more changes can arrive, and Watch calls fail once. The returned function stops the watch and
// waits for it to finish.
func (a *Admin) Watch(pattern string, deliver func(Change), fail func(error)) (stop func(), err error) {
	return a.Follow(pattern, eachOf(deliver), fail)
}

// eachOf returns a function that delivers each change of a step.
func eachOf(deliver func(Change)) func(Step) {
	return func(s Step) {
		for _, c := range s.Changes {
			deliver(c)
		}
	}
}

// Follow is like Watch, for callers that maintain a copy of the locks: it also delivers every event on a key.
func (a *Admin) Follow(pattern string, deliver func(Step), fail func(error)) (stop func(), err error) {
	encoded, err := record.EncodePattern(pattern)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, prefix := range record.Prefixes {
		keys = append(keys, record.Pattern(prefix, encoded))
	}
	return a.watch(keys, deliver, fail)
}

// WatchHolder is like Watch, for the holder of a single mutex, without its queue. It needs only one subscription.
func (a *Admin) WatchHolder(name string, deliver func(Change), fail func(error)) (stop func(), err error) {
	encoded, err := record.EncodeName(name)
	if err != nil {
		return nil, err
	}
	return a.watch([]string{record.KeysOf(record.Mutex, encoded).Gate}, eachOf(deliver), fail)
}

func (a *Admin) watch(patterns []string, deliver func(Step), fail func(error)) (stop func(), err error) {
	a.b.Listen()
	w := &watcher{a: a, deliver: deliver, missed: make(chan struct{}, 1)}
	for _, keys := range patterns {
		first := len(w.watches) == 0
		watch, err := a.b.Watch(keys, func(ev kvstore.Event) {
			if ev.Kind != kvstore.Recheck {
				w.notified(ev)
			} else if first { // all watches get it, but one is enough
				w.recheck(ev.Since)
			}
		})
		if err != nil {
			w.stop()
			return nil, err
		}
		watch.Track(kvstore.Record{}) // reports the ends of all future records
		w.watches, w.keys = append(w.watches, watch), append(w.keys, keys)
	}
	ctx, cancel := context.WithCancel(a.b.Life())
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

func (w *watcher) recheck(since time.Time) {
	w.mu.Lock()
	if !since.IsZero() && (w.dropped.IsZero() || since.Before(w.dropped)) {
		w.dropped = since
	}
	w.mu.Unlock()
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
	read := step{kind: ev.Kind, entry: record.Of(ev.Record)}
	if ev.Before.Revision != 0 {
		read.before = record.Of(ev.Before)
	}
	var changes []Change
	if end, ok := endBefore(read); ok {
		changes = append(changes, end)
	}
	if c, ok := changeOf(read); ok {
		changes = append(changes, c)
	}
	w.deliver(Step{ev, changes})
}

// step is a decoded event on a key. before is the record that entry replaced. It is the zero Entry if there was none
// or if it is unknown.
type step struct {
	kind          kvstore.EventKind
	entry, before record.Entry
}

// endBefore returns the end of a claim whose record was replaced by another claim's, according to s. The server
// removes an expired record without a notification, and the next holder can be faster than this client's clock. If
// the old record had not expired by then, the watch has missed its tombstone, and it is unknown how the claim ended.
func endBefore(s step) (Change, bool) {
	entry, before := s.entry, s.before
	if s.kind != kvstore.Put || before.Zero() || before.Record.TTL <= 0 {
		return Change{}, false
	}
	if before.From(entry.ID) || before.Unreadable && entry.Status == record.StatusBroken {
		return Change{}, false // renewed or broken
	}
	if entry.Adopts(before) {
		c, ok := changeOf(step{kind: kvstore.Expired, entry: before})
		c.Time = entry.Time
		return c, ok
	}
	if before.Time.Add(before.Record.TTL).After(entry.Time.Add(record.OverdueSlack)) {
		return Change{}, false
	}
	return changeOf(step{kind: kvstore.Expired, entry: before})
}

// follow checks the bucket at the start, after each interruption of the connection, and at regular intervals. It
// returns nil once ctx has ended.
func (w *watcher) follow(ctx context.Context) error {
	read, try := true, 0
	for {
		pause := watchCheck
		switch err := w.check(ctx, read); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kvstore.ErrNoWatch):
			return err
		case bucket.IsAny(err, kvstore.ErrNotFound, kvstore.ErrRemade):
			return fmt.Errorf("%w: %w", bucket.ErrUnavailable, err)
		case err == nil:
			read, try = false, 0
		default: // no answer: try again, immediately if the connection comes back
			w.a.s.Logger.Debug("watching locks failed", "error", err)
			pause = min(clock.OutageBackoff(try), watchCheck)
			try++
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-w.missed:
			read = true
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// settling is how long a watch's subscriptions may take to reach every server of a cluster. Only a write could prove
// that they have (see [kvstore.NoRevision]), and a user who watches need not be allowed to write.
const settling = 100 * time.Millisecond

// check asks the server about the bucket. If read is true, it also waits until the subscriptions already sent are in
// place, delivers [EventWatching], and reads the locks.
func (w *watcher) check(ctx context.Context, read bool) error {
	asking, cancel := context.WithTimeout(ctx, session.DefaultReleaseTimeout)
	defer cancel()
	st, err := w.a.b.State(asking, "")
	if err != nil {
		return err
	}
	if !w.created.IsZero() && !w.created.Equal(st.Created) {
		w.a.s.Verify(asking) // the next watch has to subscribe to the new bucket
		return kvstore.ErrRemade
	}
	w.created = st.Created
	if !st.Notifies { // it no longer does, and without an error the watch would stay silent
		return kvstore.ErrNoWatch
	}
	since := w.checked
	w.checked = st.Time
	if !read {
		return nil
	}
	if !w.a.b.Alone() { // a single server's answer is proof enough
		if err := clock.Sleep(ctx, settling); err != nil {
			return err
		}
	}
	w.mu.Lock()
	if !w.dropped.IsZero() && w.dropped.Before(since) {
		since = w.dropped
	}
	w.dropped = time.Time{}
	w.mu.Unlock()
	w.deliver(Step{Changes: []Change{{Type: EventWatching, Time: st.Time, Since: since}}})
	w.read(ctx)
	return nil
}

// read tracks the existing leases, so that their ends are reported.
func (w *watcher) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
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
		l, err := w.a.b.List(ctx, w.keys[i], 0)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			// This user is probably not allowed to read. Notifications do not require it.
			w.a.s.Logger.Debug("watching locks: reading the held ones failed", "error", err)
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

// lateRenewal returns the time between a renewal and the preceding write if that is more than two thirds of the TTL,
// and 0 otherwise. By default, a client renews its leases after a third of the TTL.
func lateRenewal(entry, before record.Entry) time.Duration {
	apart := entry.Time.Sub(before.Time)
	if entry.Fixed || !before.From(entry.ID) || apart <= before.Record.TTL*2/3 {
		return 0
	}
	return apart
}

// meaning is what an event on a key means for the record's claim.
type meaning uint8

const (
	written meaning = iota // first record of the claim
	renewed                // a later record
	broken                 // ended by an operator
	removed                // ended as planned, by a tombstone or by the TTL of its last renewal
	served                 // place removed after a grant, in turn or out of turn
	cleaned                // never granted
	buried                 // like cleaned, but the record was not seen
	expired                // its TTL is over
)

// reports maps each meaning to the type of change to report for a holder's record and for a waiter's; 0 means no
// report.
var reports = [...]struct{ holder, waiter session.EventType }{
	written: {session.EventGranted, session.EventQueued},
	renewed: {session.EventRenewed, 0}, // still waiting
	broken:  {session.EventBroken, session.EventGaveUp},
	removed: {session.EventReleased, session.EventGaveUp},
	served:  {0, 0}, // the grant is reported instead
	cleaned: {0, session.EventGaveUp},
	buried:  {0, 0}, // another waiter deleted an overdue place, whose end was already reported
	expired: {session.EventLost, session.EventGaveUp},
}

func (s step) meaning() meaning {
	tokenless := !s.entry.Unreadable && s.entry.Body.Token == 0
	switch status := s.entry.Status; {
	case s.kind == kvstore.Expired && s.entry.Left():
		return removed
	case s.kind == kvstore.Expired:
		return expired
	case status == record.StatusBroken:
		return broken
	case s.kind == kvstore.Put && s.entry.Renewal == 0:
		return written
	case s.kind == kvstore.Put:
		return renewed
	case status == record.StatusGranted || status == record.StatusPassed:
		return served
	case tokenless && s.before.Zero():
		return buried
	case tokenless:
		return cleaned
	}
	return removed
}

// subject returns the record of the claim that the event is about. A tombstone at most names the claim, and a
// tombstone without a body is a manual deletion, so the preceding record is returned if it belongs to the claim.
func (s step) subject() record.Entry {
	named := s.entry.Unreadable || s.before.From(s.entry.ID)
	if s.kind == kvstore.Deleted && !s.before.Zero() && s.entry.Status != record.StatusBroken && named {
		return s.before
	}
	return s.entry
}

// time returns the time of the step, by the server's clock.
func (s step) time() time.Time {
	if s.kind == kvstore.Expired {
		return s.entry.Time.Add(s.entry.Record.TTL)
	}
	return s.entry.Time
}

// grants returns how many goroutines have been granted the lock through this claim since the preceding record, and
// their total wait.
func (s step) grants() (n uint64, waited time.Duration) {
	if !s.before.From(s.entry.ID) || s.entry.Granted() <= s.before.Granted() {
		return 0, 0
	}
	return s.entry.Granted() - s.before.Granted(), time.Duration(max(s.entry.Waits-s.before.Waits, 0)) * time.Millisecond
}

// changeOf returns the change to a lock that an event on its key implies, if any.
func changeOf(s step) (Change, bool) {
	k, ok := record.ParseKey(s.entry.Key)
	if !ok {
		return Change{}, false
	}
	c := Change{Kind: k.Kind(), Name: k.Name, Time: s.time(), Entry: s.subject(), Type: reports[s.meaning()].holder}
	if c.Mode = record.Mode(c.Entry.Mode); k.Prefix == record.ReaderPrefix {
		c.Mode = record.Shared
	}
	switch {
	case k.Waits():
		c.Type = reports[s.meaning()].waiter
	case c.Type == session.EventGranted:
		c.Grants, c.Waited = 1, time.Duration(s.entry.Waited)*time.Millisecond
	default:
		c.Grants, c.Waited = s.grants()
	}
	if c.Type == session.EventRenewed {
		c.Late = lateRenewal(s.entry, s.before)
	}
	if c.Type == 0 {
		return Change{}, false
	}
	return c, true
}
