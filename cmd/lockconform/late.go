package main

import (
	"fmt"
	"strings"
	"time"
)

// lateAnswerWaiting answers the claim of a waiting program after its validity has ended, but
// before most programs give up waiting for the answer. No other claim gets through, so nothing
// else can lead to a grant.
func lateAnswerWaiting(t *trial) {
	t.open()
	late := t.validity() + t.margin/2
	t.wire.govern(func(w *write) fate {
		switch {
		case !strings.HasPrefix(w.key, "lock.") || w.deletes():
			return fate{}
		case w.n == 1:
			return fate{after: late}
		}
		return fate{drop: true}
	})
	a := t.ask(request{Do: "lock", Name: x, Wait: 2500})
	answered := time.Now()
	bound, _ := t.bound(x)
	// A program that reads its own record before the answer arrives may hold the lock until its
	// validity ends.
	t.expect(a.Result != "ok" || a.Left > 0 && answered.Before(bound),
		fmt.Sprintf("no grant: the answer came %v after the attempt was sent, and the validity was %v", late, t.validity()), "%s, with %d ms left", a, a.Left)
	t.notHeld(x, "not held: the answer came too late")
}
