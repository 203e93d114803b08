package model

// The fencing tokens of a run. Its client serves the members one by one, without a
// message, and each grant has a token of its own.

const servedInTime = "a member is served inside the validity only"

// token orders grants. rev is the highest acknowledged revision of the lease's
// record. n counts the grants on it, from 1.
type token struct{ rev, n int8 }

func (t token) above(o token) bool { return t.rev > o.rev || t.rev == o.rev && t.n > o.n }

// count is a grant: its token is above those of all earlier grants.
func (c *lockScope) count(n *lockState, i int8, t token) {
	if c.grants == 0 {
		return
	}
	t.n++
	n.c[i].counted = t
	if !t.above(n.top) {
		n.wrong = 1
	}
	n.top = t
}

// recount takes the revision of a confirmed renewal. Only a higher revision begins the
// count again.
func (c *lockScope) recount(x *client, rev int8) {
	if c.grants == 0 {
		return
	}
	if rev > x.counted.rev || c.weak == tokenLatest && rev != x.counted.rev || c.weak == tokenRepeated {
		x.counted = token{rev: rev}
	}
}

// serves lets the next member of the run in. When the count is full it waits for a
// renewal.
func (c *lockScope) serves(s lockState, i int8, do func(kind, lockWrite, func(*lockState, *client), string)) {
	x := s.c[i]
	if c.grants == 0 || x.left <= 0 && c.weak != servedAfterEnd || x.counted.n >= c.grants && c.weak != tokenWraps {
		return
	}
	do(step, lockWrite{}, func(n *lockState, x *client) {
		t := x.counted
		if t.n >= c.grants {
			t.n = 0
		}
		c.count(n, i, t)
		if x.left <= 0 {
			n.wrong = 6
		}
	}, "serves the next member of its run")
}
