package main

import (
	"fmt"
	"time"

	"github.com/natslock/locks/natslock/admin"
)

// breaks makes an operator break a record's claim.
func (t *trial) breaks(s stored, more func(*admin.BreakRequest)) {
	r := admin.BreakRequest{Kind: admin.KindMutex, Name: x, ID: text(s.fields["id"]), Reason: "conform"}
	if more != nil {
		more(&r)
	}
	t.need(t.operator().Break(t.ctx, r))
}

// deleted waits until the program deletes key at the given revision.
func (t *trial) deleted(key string, revision uint64, expected string) {
	t.eventually(fmt.Sprintf("%s: a deletion that expects %d", expected, revision), "none", func() bool {
		for _, w := range t.wire.seen(key) {
			if w.deletes() && w.expects(revision) {
				return true
			}
		}
		return false
	})
}

// releaseBroken breaks a lease that is then released before its next renewal.
func releaseBroken(t *trial) {
	t.open()
	s := t.take(x)
	t.breaks(s, nil)
	b := t.read(s.key)
	a := t.ask(request{Do: "unlock", Name: x})
	t.expect(a.Result == "lost", `"lost" from unlock: an operator has broken the lease`, "%s", a)
	t.deleted(s.key, b.revision, "the end of the broken record")
	t.expect(!t.read(s.key).live(), "no record after the release", "%s", t.read(s.key))
}

// brokenLater breaks a lease at a time when its client may be watching it.
func brokenLater(t *trial) {
	t.open()
	s := t.take(x)
	first := t.wire.seen(s.key)[0]
	t.pauseUntil(first.at.Add(1300 * time.Millisecond))
	t.breaks(s, nil)
	b := t.read(s.key)
	t.lost(x, "a lost lock: an operator has broken it")
	t.ask(request{Do: "unlock", Name: x})
	t.deleted(s.key, b.revision, "the end of the broken record")
}

func brokenAtOnce(t *trial) {
	t.open()
	s := t.take(x)
	t.pause(t.ttl / 4) // the tombstone still exists at the program's second renewal
	s = t.read(s.key)
	t.breaks(s, func(r *admin.BreakRequest) { r.Immediately = true })
	t.lost(x, "a lost lock: an operator has broken it with immediate effect")
	a := t.ask(request{Do: "unlock", Name: x})
	t.expect(a.Result == "lost", `"lost" from unlock`, "%s", a)
	t.expect(!t.read(s.key).live(), "no record: the lease has ended", "%s", t.read(s.key))
}

func extend(t *trial) {
	t.open()
	s := t.take(x)
	t.pause(settled)
	before := t.status(x)
	a := t.ask(request{Do: "extend", Name: x})
	t.expect(a.Result == "ok", `"ok" from extend: the lock is held`, "%s", a)
	now := t.read(s.key)
	t.expect(now.revision > s.revision, "a renewal, at once", "its writes: %s", t.writes())
	t.expect(number(now.fields["t"]) == s.revision<<6, fmt.Sprintf("the token %d in the renewal", s.revision<<6), "%d", number(now.fields["t"]))
	after := t.status(x)
	t.expect(after.Held && after.Left > before.Left, fmt.Sprintf("more than the %d ms that were left", before.Left), "held: %t, %d ms left", after.Held, after.Left)
}

// extendLost extends a lease when another client already has the lock.
func extendLost(t *trial) {
	t.open()
	s := t.take(x)
	t.erase(s.key, 4, "operator", s.revision)
	t.rivalTakes(x)
	before := t.read(s.key)
	a := t.ask(request{Do: "extend", Name: x})
	t.expect(a.Result == "lost", `"lost" from extend: another client has the lock`, "%s", a)
	t.lost(x, "a lost lock: another client has it")
	t.untouched(before)
}

// extendUnanswered leaves an extension's renewals unanswered.
func extendUnanswered(t *trial) {
	t.open()
	defer t.first(fate{})()
	t.take(x)
	a := t.ask(request{Do: "extend", Name: x})
	t.expect(a.Result != "ok", `no "ok" from extend: no renewal was answered`, "%s", a)
	bound, _ := t.bound(x)
	t.pauseUntil(bound.Add(rounding))
	t.notHeld(x, fmt.Sprintf("not held: %v have passed since the sending of the claim", t.validity()))
}

// extendRange requests TTLs that a renewed lease is not allowed to have.
func extendRange(t *trial) {
	t.open()
	t.extends = true
	for _, ttl := range []time.Duration{time.Millisecond, time.Second - time.Millisecond, 24*time.Hour + time.Millisecond, 367 * 24 * time.Hour} {
		s := t.take(x)
		a := t.ask(request{Do: "extend", Name: x, TTL: ttl.Milliseconds()})
		t.expect(a.Result == "error", fmt.Sprintf(`"error" of extend for a TTL of %v`, ttl), "%s", a)
		for _, w := range t.wire.seen(s.key) {
			own := w.header.Get("Nats-TTL")
			t.expect(w.deletes() || own == t.seconds(), fmt.Sprintf("no write of a TTL of %v", ttl), "a %s", w.String())
		}
		t.ask(request{Do: "unlock", Name: x})
	}
}

// extendShorter requests a shorter TTL, and leaves the request unanswered.
func extendShorter(t *trial) {
	t.open()
	t.extends = true
	defer t.first(fate{})()
	s := t.take(x)
	const shorter = 2 * time.Second
	t.send(request{Do: "extend", Name: x, TTL: shorter.Milliseconds()})
	var w write
	t.eventually("a renewal with a TTL of 2s", "none", func() bool {
		all := t.wire.seen(s.key)
		w = all[len(all)-1]
		return w.renewal() && w.header.Get("Nats-TTL") == "2s"
	})
	end := w.at.Add(shorter - shorter/1000) // with the smallest margin
	asked := time.Now()
	a := t.status(x)
	over := asked.Add(time.Duration(a.Left)*time.Millisecond - rounding).Sub(end)
	t.expect(!a.Held || over <= 0, "a validity that ends within 2 s of sending the renewal", "%d ms left, which ends %v later than that", a.Left, over.Round(time.Millisecond))
	t.pauseUntil(end.Add(rounding))
	t.notHeld(x, "not held: 2 s have passed since the sending of the renewal")
}
