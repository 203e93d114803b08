package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/record"
)

// The status codes in a record's value.
const (
	statusHeld    = 1
	statusBroken  = 3
	statusGone    = 4
	statusGranted = 5
)

// index is a history prepared for queries.
type index struct {
	h      *History
	keys   map[string][]Entry // in revision order, including each remake
	claims map[string][]Entry // the records written under an id
	locks  map[string]*lockIndex
	holds  map[string][]*Hold // by lock, in the order of their grants
	ops    map[string][]*Op   // by lock
	victim map[string]exception
	forged map[string][]time.Duration // times of forged notifications about places, by client
	fouls  []Violation                // found while indexing
}

// lockIndex is what the stream shows about a lock.
type lockIndex struct {
	readers []string        // their keys
	places  []string        // the keys of its places in the queue
	written map[uint64]bool // tokens for which its records may stand
}

// exception is the removal of a record that lets others in while the record's owner may still
// believe in it.
type exception struct {
	at   time.Duration
	what Action
}

func newIndex(h *History) *index {
	x := &index{h: h, keys: map[string][]Entry{}, claims: map[string][]Entry{}, locks: map[string]*lockIndex{}, holds: map[string][]*Hold{}, ops: map[string][]*Op{}, victim: map[string]exception{}, forged: map[string][]time.Duration{}}
	for _, hold := range h.Holds {
		x.holds[hold.Lock] = append(x.holds[hold.Lock], hold)
	}
	for _, holds := range x.holds {
		slices.SortStableFunc(holds, func(a, b *Hold) int { return a.From.compare(b.From) })
	}
	for _, op := range h.Ops {
		if op.Lock != "" {
			x.ops[op.Lock] = append(x.ops[op.Lock], op)
		}
	}
	for _, d := range h.Disturbances {
		if d.What == PlaceForged {
			x.forged[d.Client] = append(x.forged[d.Client], d.From)
		}
	}
	for _, list := range x.forged {
		slices.Sort(list)
	}
	live := map[string]Entry{}
	waiter := map[string]string{} // the last waiter under each key of a queue
	for _, e := range h.Stream {
		if e.Remade {
			for _, was := range live {
				x.victim[was.ID] = exception{e.At, Remake}
				x.keys[was.Key] = append(x.keys[was.Key], Entry{Key: was.Key, Revision: e.Revision - 1, At: e.At, Deleted: true, Remade: true})
			}
			clear(live)
			continue
		}
		key, written := e.Key, e
		if lock, role := lockOf(key); role == "wait" || role == "rwait" || role == "swait" {
			// Several waiters may queue under the same key, one after another. Their ids
			// distinguish them, but a deletion by hand has no id.
			if e.ID != "" {
				waiter[key] = e.ID
			}
			e.Key = x.waitKey(lock, waiter[key])
		}
		if events := x.keys[e.Key]; len(events) > 0 && events[len(events)-1].Revision == e.Revision {
			continue // two taps have recorded it
		}
		if was, ok := live[key]; ok {
			x.succeeds(was, written)
		}
		x.keys[e.Key] = append(x.keys[e.Key], e)
		if e.Deleted {
			delete(live, key)
		} else {
			live[key] = e
			x.claims[e.ID] = append(x.claims[e.ID], e)
		}
		x.note(e)
	}
	return x
}

// note indexes an entry under its lock.
func (x *index) note(e Entry) {
	lock, role := lockOf(e.Key)
	l := x.written(lock, e)
	if role == "sem" { // a refusal may name any of the semaphore's holders
		x.written(semaphoreOf(lock), e)
	}
	if len(x.keys[e.Key]) > 1 {
		return
	}
	switch role {
	case "read":
		l.readers = append(l.readers, e.Key)
	case "wait", "rwait", "swait":
		l.places = append(l.places, e.Key)
	}
}

// written records a token of a lock.
func (x *index) written(lock string, e Entry) *lockIndex {
	l := x.locks[lock]
	if l == nil {
		l = &lockIndex{written: map[uint64]bool{}}
		x.locks[lock] = l
	}
	l.written[record.TokenOrTicket(e.Key, e.Revision)] = true
	if e.Token != 0 {
		l.written[e.Token] = true
	}
	return l
}

// succeeds judges a change to a record that was not deleted. Either the record's owner made the
// change, or the record had ended, or the change is an exception.
func (x *index) succeeds(was, e Entry) {
	if e.At >= was.ends() || (e.ID == was.ID && e.ID != "" && !(e.Deleted && e.Status == statusBroken)) {
		return
	}
	for _, op := range x.h.Ops {
		lock, _ := lockOf(e.Key)
		if !e.Deleted || op.Lock != lock || op.Call.At > e.At || op.end() < e.At && op.Outcome == OK {
			continue
		}
		if op.Do == Delete && op.Key == e.Key && (op.Revision == e.Revision || op.Outcome != OK) && e.ID == "" ||
			op.Do == BreakNow && e.Status == statusBroken && e.ID == was.ID && op.ID == e.ID {
			x.victim[was.ID] = exception{e.At, op.Do}
			return
		}
	}
	if x.h.Lossy {
		return // the notification of its deletion may have been lost
	}
	did := "overwrote"
	if e.Deleted {
		did = "deleted"
	}
	x.fouls = append(x.fouls, Violation{Check: 1, Lock: e.Key, At: e.At, What: fmt.Sprintf(
		"revision %d of %s %s the live record %d of %s", e.Revision, short(e.ID), did, was.Revision, short(was.ID))})
}

// before returns a key's last entry below a revision.
func (x *index) before(key string, revision uint64) (Entry, bool) {
	events := x.keys[key]
	i, _ := slices.BinarySearchFunc(events, revision, func(e Entry, r uint64) int { return cmp.Compare(e.Revision, r) })
	if i == 0 {
		return Entry{}, false
	}
	return events[i-1], true
}

// after returns a key's first entry above a revision.
func (x *index) after(key string, revision uint64) (Entry, bool) {
	events := x.keys[key]
	i, _ := slices.BinarySearchFunc(events, revision+1, func(e Entry, r uint64) int { return cmp.Compare(e.Revision, r) })
	if i == len(events) {
		return Entry{}, false
	}
	return events[i], true
}

// last returns a key's last entry up to a given time, and whether the stream has later entries
// for the key.
func (x *index) last(key string, at time.Duration) (e Entry, laterKnown, ok bool) {
	events := x.keys[key]
	i, _ := slices.BinarySearchFunc(events, at, func(e Entry, at time.Duration) int {
		if e.At <= at {
			return -1
		}
		return 1
	})
	if i == 0 {
		return Entry{}, false, false
	}
	return events[i-1], i < len(events), true
}

// excused reports whether one of two holders is the victim of an exception in favor of the
// other. The other holder has a higher token, and was granted the lock no earlier than the
// exception.
func (x *index) excused(a, b *Hold) bool { return x.lets(b, a) || x.lets(a, b) }

// lets reports whether an exception removed the victim in favor of in.
func (x *index) lets(in, victim *Hold) bool {
	e, ok := x.victim[victim.claim()]
	return ok && in.From.At >= e.at && in.Token > victim.Token
}

func short(id string) string {
	if id == "" {
		return "no client"
	}
	if len(id) > 6 {
		return id[:6]
	}
	return id
}

// encodedAs returns the encoded name in a lock's key, without the prefix.
func encodedAs(lock string) string {
	_, name, _ := strings.Cut(lock, ".")
	return name
}
