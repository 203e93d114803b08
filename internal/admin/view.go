package admin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// View holds the records of one lock as they were read.
type View struct {
	Kind    record.Kind
	Name    string
	Holder  record.Entry // zero if the lock is free
	Readers []record.Entry
	Slots   []record.Entry // a semaphore's taken slots, in order
	Queue   []record.Entry // in ticket order
}

// newest returns a revision that the bucket has reached, and the server's time. A read as of that revision
// shows every write that was acknowledged before the call, whichever replica answers. If this user is not
// allowed to query the leader, both are zero and a replica's answer has to do. If the leader does not
// answer, no server can prove that a record does not exist, and the error matches [bucket.ErrUnavailable].
func (a *Admin) newest(ctx context.Context) (revision uint64, server time.Time, err error) {
	st, err := a.b.Leader(ctx, bucket.AnswerTimeout)
	if bucket.IsAny(err, bucket.ErrPermission) {
		return 0, time.Time{}, nil
	}
	return st.LastRevision, st.Time, err
}

// reached waits until the leader has applied what a view shows, up to the revision seen. named is the
// revision that the leader reported before the view was read. Without this wait, the leader could refuse an
// acquire because of a holder that the view no longer shows. If the bucket has no leader, reached gives up,
// and the view may be ahead of the next leader. The only possible error is the context's.
func (a *Admin) reached(ctx context.Context, named, seen uint64) error {
	if named == 0 || seen <= named || a.b.Alone() { //safety:view-reached
		return nil
	}
	if err := a.b.Reached(ctx, seen); ctx.Err() != nil {
		return err
	}
	return nil
}

// named returns the options for a list as of a revision that the leader reported. A replica that is
// catching up would lack the records renewed since then, so the leader lists the keys as well.
func named(revision uint64) []kvstore.ListOption {
	if revision == 0 { //safety:view-named
		return nil
	}
	return []kvstore.ListOption{kvstore.Named()}
}

// entryAt decodes a record for a view. server is the server's time when the view was made.
func entryAt(r kvstore.Record, server time.Time) record.Entry {
	entry := record.Of(r)
	entry.Overdue = entry.OverdueAt(server)
	return entry
}

// Inspect reads one lock. A free lock has no holder and an empty queue.
func (a *Admin) Inspect(ctx context.Context, kind record.Kind, name string) (View, error) {
	encoded, err := record.EncodeName(name)
	if err != nil {
		return View{}, err
	}
	v := View{Kind: kind, Name: name}
	keys := record.KeysOf(kind, encoded)
	min, server, err := a.newest(ctx)
	if err != nil {
		return View{}, err
	}
	seen := uint64(0)
	if kind != record.Semaphore {
		entry, err := a.read(ctx, keys.Gate, min)
		if err != nil {
			return View{}, err
		}
		seen = entry.Revision
		if entry.Live() {
			v.Holder = entry
			v.Holder.Overdue = entry.OverdueAt(server)
		}
	}
	l, err := a.b.ListSoon(ctx, keys.Place("*"), min, named(min)...)
	if err != nil {
		return View{}, err
	}
	seen = max(seen, l.Revision)
	v.Queue = record.Queue(l.Records)
	for i := range v.Queue {
		v.Queue[i].Overdue = v.Queue[i].OverdueAt(server)
	}
	several := map[record.Kind]string{record.RW: keys.Reader("*"), record.Semaphore: keys.Slots()}
	if pattern := several[kind]; pattern != "" {
		l, err := a.b.List(ctx, pattern, min, named(min)...)
		if err != nil {
			return View{}, err
		}
		seen = max(seen, l.Revision)
		for _, r := range l.Records {
			if k, ok := record.ParseKey(r.Key); ok {
				v.Add(k, entryAt(r, server))
			}
		}
	}
	v.Sort()
	return v, a.reached(ctx, min, seen)
}

// Add adds the record with key k to the view.
func (v *View) Add(k record.Key, e record.Entry) {
	switch {
	case k.Waits():
		v.Queue = append(v.Queue, e)
	case k.Prefix == record.ReaderPrefix:
		v.Readers = append(v.Readers, e)
	case k.Prefix == record.SlotPrefix:
		v.Slots = append(v.Slots, e)
	default:
		v.Holder = e
	}
}

// Sort sorts the queue by ticket, the readers by token and the slots by number.
func (v *View) Sort() {
	record.SortByTicket(v.Queue)
	record.SortByTicket(v.Readers)
	slices.SortFunc(v.Slots, func(a, b record.Entry) int {
		return cmp.Or(cmp.Compare(len(a.Key), len(b.Key)), cmp.Compare(a.Key, b.Key))
	})
}

// Holder reads the holder of a mutex without its queue. The entry is zero if the mutex is free. The result
// reflects every change up to the returned revision. Holder needs one request if a single server stores the
// bucket, and two otherwise.
func (a *Admin) Holder(ctx context.Context, name string) (holder record.Entry, revision uint64, err error) {
	encoded, err := record.EncodeName(name)
	if err != nil {
		return record.Entry{}, 0, err
	}
	if !a.b.Alone() {
		if revision, _, err = a.newest(ctx); err != nil {
			return record.Entry{}, 0, err
		}
	}
	entry, err := a.read(ctx, record.KeysOf(record.Mutex, encoded).Gate, revision)
	if err == nil {
		err = a.reached(ctx, revision, entry.Revision)
	}
	revision = max(revision, entry.Revision)
	if err != nil || !entry.Live() {
		return record.Entry{}, revision, err
	}
	entry.Overdue, err = a.b.Overdue(ctx, entry) //safety:holder-overdue
	return entry, revision, err
}

// read reads the record of a gate from a state that contains revision.
func (a *Admin) read(ctx context.Context, gate string, revision uint64) (record.Entry, error) {
	entry, err := a.b.Read(ctx, gate, revision)
	if bucket.IsAny(err, kvstore.ErrWithheld) { // any replica's answer has to do
		entry, err = a.b.Read(ctx, gate, 0)
	}
	return entry, err
}

// partMax is how many records List reads at a time, which is the maximum for one request.
const partMax = 256

// stored is a record that List is about to show.
type stored struct {
	kind   record.Kind
	name   string
	key    string
	record kvstore.Record // zero until read
}

// List calls yield for each lock whose name matches pattern, sorted by name, until yield returns false.
// Each request reads the records of as many locks as it can.
func (a *Admin) List(ctx context.Context, pattern string, yield func(View) bool) error {
	encoded, err := record.EncodePattern(pattern)
	if err != nil {
		return err
	}
	min, server, err := a.newest(ctx)
	if err != nil {
		return err
	}
	var all []stored
	seen := uint64(0)
	add := func(key string, r kvstore.Record) {
		if k, ok := record.ParseKey(key); ok {
			all = append(all, stored{k.Kind(), k.Name, key, r})
		}
	}
	for _, prefix := range record.Prefixes {
		l, err := a.b.List(ctx, record.Pattern(prefix, encoded), min, append(named(min), kvstore.InParts())...)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return err
		}
		if len(l.Keys) == 0 { // otherwise the later read sets seen
			seen = max(seen, l.Revision)
		}
		for _, key := range l.Keys {
			add(key, kvstore.Record{})
		}
		for _, r := range l.Records {
			add(r.Key, r)
		}
	}
	slices.SortFunc(all, func(a, b stored) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.kind, b.kind)) })
	reached := min
	for len(all) > 0 {
		part, keys := 0, []string(nil)
		for i, s := range all { // never split a lock between parts
			if (i == 0 || s.name != all[i-1].name) && len(keys) >= partMax {
				break
			}
			if part = i + 1; s.record.Revision == 0 {
				keys = append(keys, s.key)
			}
		}
		read := make(map[string]kvstore.Record, len(keys))
		if len(keys) > 0 {
			l, err := a.b.List(ctx, record.Pattern("", ">"), min, kvstore.Named(keys...))
			if err != nil {
				return err
			}
			seen = max(seen, l.Revision)
			for _, r := range l.Records {
				read[r.Key] = r
			}
		}
		if err := a.reached(ctx, reached, seen); err != nil {
			return err
		}
		if reached > 0 {
			reached = max(reached, seen)
		}
		if !views(all[:part], read, server, yield) {
			return nil
		}
		clear(all[:part])
		all = all[part:]
	}
	return a.reached(ctx, reached, seen)
}

// views calls yield for each lock in all, and returns false if yield did. read holds the records that the
// list did not contain.
func views(all []stored, read map[string]kvstore.Record, server time.Time, yield func(View) bool) bool {
	for len(all) > 0 {
		v := View{Kind: all[0].kind, Name: all[0].name}
		some := false
		for len(all) > 0 && all[0].kind == v.Kind && all[0].name == v.Name {
			s := all[0]
			all = all[1:]
			if s.record.Revision == 0 {
				s.record = read[s.key]
			}
			entry := entryAt(s.record, server)
			k, _ := record.ParseKey(s.key)
			if s.record.Revision == 0 || k.Waits() && (entry.Unreadable || entry.Status != record.StatusWaiting) {
				continue // deleted, or not written by a waiter
			}
			v.Add(k, entry)
			some = true
		}
		if v.Sort(); some && !yield(v) {
			return false
		}
	}
	return true
}
