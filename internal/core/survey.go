package core

import "github.com/natslock/locks/internal/record"

// Arrival is what a call that is not queued has read of a lock and its queue, in one state.
type Arrival struct {
	Keys    []record.Entry // of the lock; tombstones included, also in place of what was overdue; zero: nothing
	Waiting int            // places in the queue
	More    bool           // others may wait: only a part of the queue was read
	Own     string         // the id of the claim under way; "": there is none
}

// KeyAt is a key of the lock, and the revision that a claim of it expects.
type KeyAt struct {
	K      int
	Expect uint64
}

// Claims returns the keys to claim, in order: that of an earlier attempt, which is adopted, and then
// the highest free one, so that waiters that know of fewer keys find theirs. There is none if all are
// held, of which holder is one, or if others wait, who go first.
func (v Arrival) Claims() (claims []KeyAt, holder record.Entry) {
	held := 0
	for k := len(v.Keys) - 1; k >= 0; k-- {
		switch e := v.Keys[k]; {
		case isOwn(e, v.Own):
			claims = append([]KeyAt{{k, 0}}, claims...)
		// A claim at the revision of a live record would replace it.
		case e.Live(): //safety:newcomer-held
			holder = e
			held++
		default:
			claims = append(claims, KeyAt{k, e.Revision})
		}
	}
	switch {
	case held == len(v.Keys):
		return nil, holder
	// The waiters go first, and a part of the queue does not show all of them.
	case v.Waiting > 0 || v.More: //safety:newcomer-queues
		return nil, record.Entry{}
	}
	return claims, holder
}
