package mirror

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	locks "github.com/natslock/locks/natslock/admin"
)

// ID identifies a lock. Locks of different kinds are different locks, even if they share a name.
type ID struct {
	Kind locks.Kind
	Name string
}

// Compare orders IDs by name, then by kind.
func (id ID) Compare(other ID) int {
	return cmp.Or(strings.Compare(id.Name, other.Name), cmp.Compare(id.Kind, other.Kind))
}

// IDOf returns the ID of a lock.
func IDOf(info locks.Info) ID { return ID{info.Kind, info.Name} }

// records is a copy of the lock records. Revisions order the changes to each key, so events and lists may arrive in
// any order.
type records struct {
	byKey map[string]*stored
	locks map[ID]*lock
	// touched holds the revision of each key's latest event while a list is being read, and is nil otherwise. Those
	// events are newer than the list.
	touched map[string]uint64
	changed func(ID)
}

// lock is a lock that is held or waited for.
type lock struct {
	entries []*stored
	info    *locks.Info // derived from entries; nil after they have changed
}

type stored struct {
	record.Entry
	id   ID
	role record.Key
}

func newRecords(changed func(ID)) records {
	return records{byKey: make(map[string]*stored), locks: make(map[ID]*lock), changed: changed}
}

func (r *records) apply(ev kvstore.Event) {
	known, key := r.byKey[ev.Record.Key], ev.Record.Key
	if r.touched != nil {
		r.touched[key] = max(r.touched[key], ev.Record.Revision)
	}
	switch {
	case known != nil && known.Revision > ev.Record.Revision:
	case ev.Kind == kvstore.Put:
		r.put(record.Of(ev.Record))
	case known == nil:
	case ev.Kind == kvstore.Deleted:
		r.drop(known)
	case ev.Kind == kvstore.Expired && !known.Overdue: // the server still has an overdue record
		r.drop(known)
	}
}

// put stores e. If e does not belong to a lock, it drops the key's record instead.
func (r *records) put(e record.Entry) {
	s := r.byKey[e.Key]
	key, ok := record.ParseKey(e.Key)
	if !ok || key.Waits() && (e.Unreadable || e.Status != record.StatusWaiting) { // not written by a waiter
		if s != nil {
			r.drop(s)
		}
		return
	}
	e.Value = nil // the Entry already has the decoded body
	if s == nil {
		s = &stored{id: ID{locks.Kind(key.Kind()), key.Name}, role: key}
		r.byKey[e.Key] = s
		l := r.locks[s.id]
		if l == nil {
			l = &lock{}
			r.locks[s.id] = l
		}
		l.entries = append(l.entries, s)
	}
	s.Entry = e
	r.change(s.id)
}

// drop removes a key's record.
func (r *records) drop(s *stored) {
	delete(r.byKey, s.Key)
	l := r.locks[s.id]
	l.entries = slices.DeleteFunc(l.entries, func(o *stored) bool { return o == s })
	r.change(s.id)
	if len(l.entries) == 0 {
		delete(r.locks, s.id)
	}
}

func (r *records) change(id ID) {
	r.locks[id].info = nil
	r.changed(id)
}

// listing marks the start of a list, which [records.listed] applies.
func (r *records) listing() { r.touched = make(map[string]uint64) }

// listed replaces the copy with a list, except for keys that have had events since [records.listing].
func (r *records) listed(list []record.Entry) {
	touched := r.touched
	r.touched = nil
	there := make(map[string]struct{}, len(list))
	for _, e := range list {
		there[e.Key] = struct{}{}
		known := r.byKey[e.Key]
		switch newer := touched[e.Key] >= e.Revision; {
		case newer && !(e.Overdue && touched[e.Key] == e.Revision): // but an overdue record outweighs an expiry event, which goes by this machine's clock
		case known != nil && (known.Revision > e.Revision || known.Revision == e.Revision && known.Overdue == e.Overdue):
		default:
			r.put(e)
		}
	}
	for key, s := range r.byKey {
		_, listed := there[key]
		if _, newer := touched[key]; !listed && !newer {
			r.drop(s)
		}
	}
}

func (r *records) clear() {
	for _, s := range r.byKey {
		r.drop(s)
	}
}

// info returns a lock, which is free if r has no record of it. The caller must not modify the result.
func (r *records) info(id ID) locks.Info {
	l := r.locks[id]
	if l == nil {
		return locks.Info{Kind: id.Kind, Name: id.Name}
	}
	if l.info == nil {
		v := admin.View{Kind: record.Kind(id.Kind), Name: id.Name}
		for _, s := range l.entries {
			v.Add(s.role, s.Entry)
		}
		v.Sort()
		info := shown.InfoOf(v)
		l.info = &info
	}
	return *l.info
}

// counts returns how many holders and how many places a lock has.
func (r *records) counts(id ID) (held, queued int) {
	if l := r.locks[id]; l != nil {
		for _, s := range l.entries {
			if s.role.Waits() {
				queued++
			} else {
				held++
			}
		}
	}
	return held, queued
}

// infos returns the locks whose IDs match.
func (r *records) infos(match func(ID) bool) (all []locks.Info) {
	for id := range maps.Keys(r.locks) {
		if match(id) {
			all = append(all, r.info(id))
		}
	}
	return all
}
