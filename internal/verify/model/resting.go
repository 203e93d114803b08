package model

// A lock with a minimum hold. Its holder may unlock early: the record then says that the
// lock rests, and its TTL is the rest of the minimum hold.

// resting is the kind of record that nobody holds and that keeps others out.
const resting int8 = 11

const keptOut = "nobody gets in before the minimum hold is over, by the server's clock"

// keeps begins the minimum hold of a grant. By the server's clock it began when the server
// stored the record.
func (c *lockScope) keeps(n *lockState, i, rev int8) {
	if c.least == 0 {
		return
	}
	n.c[i].due, n.c[i].rested = c.least, n.c[i].claim
	if n.rec.rev == rev {
		n.kept = max(c.least-n.rec.age, 0)
	}
}

// closing is the write that ends a lease.
func (c *lockScope) closing(x *client, broken bool) lockWrite {
	if x.due > 0 && !broken && c.weak != restForgotten {
		return lockWrite{verb: restLock, claim: x.claim, expect: x.last, ttl: x.due}
	}
	return lockWrite{verb: deleteLock, claim: x.claim, expect: x.last}
}
