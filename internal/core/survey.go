package core

import "github.com/natslock/locks/internal/record"

// Arrival is what a call that is not queued has read of a lock and its queue, in one state.
type Arrival struct {
	Keys    []record.Entry // of the lock; tombstones included, even those that replaced overdue records; zero for an empty key
	Waiting int            // the number of places in the queue
	More    bool           // others may wait: only part of the queue was read
	Own     string         // the id of the claim under way; "" if there is none
}

// KeyAt is a key of the lock, and the revision that a claim of it expects.
type KeyAt struct {
	K      int
	Expect uint64
}

// Claims returns the keys to claim, in order: first that of an earlier attempt, which is adopted, then the free ones
// from the highest down, to leave the lower ones to waiters that know of fewer keys. Claims returns none if all keys
// are held, and then holder is one of their records; also if others are waiting, since they go first.
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
	// The waiters go first, and part of the queue does not show all of them.
	case v.Waiting > 0 || v.More: //safety:newcomer-queues
		return nil, record.Entry{}
	}
	return claims, holder
}
