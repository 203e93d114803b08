package core

import "github.com/natslock/locks/internal/record"

// Arrival is what a call that is not queued has read about a lock and its queue, all of it from a single state.
type Arrival struct {
	Keys    []record.Entry // of the lock, including tombstones, even those that replaced overdue records; zero for an empty key
	Waiting int            // number of places in the queue
	More    bool           // only part of the queue was read, so others may be waiting
	Own     string         // id of the current claim; "" if there is none
}

// KeyAt is a key of the lock and the revision that a claim on it expects.
type KeyAt struct {
	K      int
	Expect uint64
}

// Claims returns the keys to claim, in order. The key of an earlier attempt comes first, because the call adopts that
// attempt's record. The free keys follow from the highest down, which leaves the lower ones to waiters that know of
// fewer keys. If all keys are held, Claims returns none of them, and holder is one of their records. If others are
// waiting, Claims returns nothing, because they go first.
func (v Arrival) Claims() (claims []KeyAt, holder record.Entry) {
	held := 0
	for k := len(v.Keys) - 1; k >= 0; k-- {
		switch e := v.Keys[k]; {
		case isOwn(e, v.Own):
			claims = append([]KeyAt{{k, 0}}, claims...)
		// A claim at the revision of a live record would replace that record.
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
	// Waiters go first, and part of the queue does not show all of them.
	case v.Waiting > 0 || v.More: //safety:newcomer-queues
		return nil, record.Entry{}
	}
	return claims, holder
}
