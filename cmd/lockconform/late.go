package main

import (
	"fmt"
	"strings"
	"time"
)

// lateAnswerWaiting answers the claim of a program that waits when its validity is over, and before the patience of
// most is. No other claim passes, so that nothing else can grant.
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
	// A program that reads its record sooner may have it, while the validity lasts.
	t.expect(a.Result != "ok" || a.Left > 0 && answered.Before(bound),
		fmt.Sprintf("no grant: the answer came %v after the sending, and the validity was %v", late, t.validity()), "%s, with %d ms left", a, a.Left)
	t.notHeld(x, "not held: the answer came too late")
}
