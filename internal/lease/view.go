package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/natslock/locks/kvstore"
)

// View is what is known of one lock.
type View struct {
	Kind    Kind
	Name    string
	Holder  Entry // zero when free
	Readers []Entry
	Queue   []Entry // in the order of their tickets
}

// newest returns a revision that the bucket has reached, and the server's time:
// what is read as of that revision shows every write that was acknowledged before
// the call, whichever replica answers. While nobody leads both are zero, and reads
// may be behind. The error is that of a context that has ended.
func (e *Engine) newest(parent context.Context) (revision uint64, server time.Time, err error) {
	ctx, cancel := answerIn(parent, answerTimeout)
	defer cancel()
	st, err := e.kv.State(ctx, "")
	switch {
	case parent.Err() != nil:
		return 0, time.Time{}, err
	case err != nil:
		return 0, time.Time{}, nil
	}
	return st.LastRevision, st.Time, nil
}

// entryAt is entryOf for a view that was made at a time of the server's.
func entryAt(r kvstore.Record, server time.Time) Entry {
	entry := entryOf(r)
	entry.Overdue = entry.overdue(server)
	return entry
}

// Inspect reads one lock. A free lock has no holder and nobody queued.
func (e *Engine) Inspect(ctx context.Context, kind Kind, name string) (View, error) {
	encoded, err := EncodeName(name)
	if err != nil {
		return View{}, err
	}
	v := View{Kind: kind, Name: name}
	holder, wait := lockPrefix, waitPrefix
	if kind == RW {
		holder, wait = gatePrefix, rwaitPrefix
	}
	min, server, err := e.newest(ctx)
	if err != nil {
		return View{}, err
	}
	entry, err := e.read(ctx, holder+encoded, min)
	if isAny(err, ErrPermission) {
		// The leader's read shows any key, so it may be withheld, or not be
		// imported: a replica's will do for a look, then.
		entry, err = e.read(ctx, holder+encoded, 0)
	}
	if err != nil {
		return View{}, err
	}
	if entry.Live() {
		v.Holder = entry
		v.Holder.Overdue = entry.overdue(server)
	}
	if v.Queue, err = e.waiters(ctx, wait+encoded+".*", min, 0); err != nil {
		return View{}, err
	}
	if kind == RW {
		l, err := e.kv.List(ctx, readerPrefix+encoded+".*", min)
		if err != nil {
			return View{}, err
		}
		for _, r := range l.Records {
			v.Readers = append(v.Readers, entryAt(r, server))
		}
	}
	return v, nil
}

// List reads all locks whose names match pattern, sorted by name.
func (e *Engine) List(ctx context.Context, pattern string) ([]View, error) {
	encoded, err := EncodePattern(pattern)
	if err != nil {
		return nil, err
	}
	type lock struct {
		kind Kind
		name string
	}
	min, server, err := e.newest(ctx)
	if err != nil {
		return nil, err
	}
	found := make(map[lock]*View)
	for _, prefix := range []string{lockPrefix, waitPrefix, gatePrefix, rwaitPrefix, readerPrefix} {
		l, err := e.kv.List(ctx, keysOf(prefix, encoded), min)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return nil, err
		}
		for _, r := range l.Records {
			k, ok := parseKey(r.Key)
			if !ok {
				continue
			}
			id := lock{Mutex, k.name}
			if prefix != lockPrefix && prefix != waitPrefix {
				id.kind = RW
			}
			entry := entryAt(r, server)
			waiting := prefix == waitPrefix || prefix == rwaitPrefix
			if waiting && (entry.Unreadable || entry.Status != StatusWaiting) {
				continue // nobody's place
			}
			v := found[id]
			if v == nil {
				v = &View{Kind: id.kind, Name: id.name}
				found[id] = v
			}
			switch {
			case waiting:
				v.Queue = append(v.Queue, entry)
			case prefix == readerPrefix:
				v.Readers = append(v.Readers, entry)
			default:
				v.Holder = entry
			}
		}
	}
	views := make([]View, 0, len(found))
	for _, v := range found {
		byTicket(v.Queue)
		views = append(views, *v)
	}
	slices.SortFunc(views, func(a, b View) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return int(a.Kind) - int(b.Kind)
	})
	return views, nil
}
