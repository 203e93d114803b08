package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/natslock/locks/natslock"
)

// window is how long a lock must be free before a waiter claims it out of turn.
const window = 1200 * time.Millisecond

// behind is a program that waits behind others for a lock that is held. The others are only
// records, which do nothing on their own.
type behind struct {
	t       *trial
	name    string
	holder  stored
	heads   []stored // places ahead of the program's, earliest first
	place   stored   // the program's place
	granted func() answer
	// answered waits for any answer.
	answered func() answer
	before   int // the number of claims that the program had already sent
}

// waitsBehind makes the program wait behind the given number of places, which belong to dead
// clients.
func (t *trial) waitsBehind(name string, heads int) *behind {
	b := &behind{t: t, name: name}
	t.put("lock."+name, record(1, "HOLDER", time.Minute, nil), 0, time.Minute)
	b.holder = t.read("lock." + name)
	for i := range heads {
		key := fmt.Sprintf("wait.%s.DEAD%d", name, i)
		t.put(key, record(2, fmt.Sprint("DEAD", i), 15*time.Second, nil), 0, 15*time.Second)
		b.heads = append(b.heads, t.read(key))
	}
	b.place, b.answered = t.waitsFor(name)
	b.granted = func() answer { return t.turned(name, b.answered()) }
	t.pause(settled)
	b.before = len(b.claims())
	return b
}

// free frees the lock, and returns a time just before that.
func (b *behind) free() time.Time {
	at := time.Now()
	b.t.erase(b.holder.key, 4, "HOLDER", b.holder.revision)
	return at
}

// claims returns the attempts to take the lock.
func (b *behind) claims() (all []write) {
	for _, w := range b.t.wire.seen("lock." + b.name) {
		if !w.deletes() && !w.renewal() {
			all = append(all, w)
		}
	}
	return all
}

// claimed reports whether the program sends an attempt out of turn within most.
func (b *behind) claimed(most time.Duration) bool {
	for end := time.Now().Add(most); time.Now().Before(end); b.t.pause(5 * time.Millisecond) {
		if len(b.claims()) > b.before {
			return true
		}
	}
	return false
}

// noneUntil requires that the program send no attempt before a given time.
func (b *behind) noneUntil(at time.Time, expected string) {
	b.t.pauseUntil(at)
	for _, w := range b.claims()[b.before:] {
		if early := at.Sub(w.at); early > rounding {
			b.t.expect(false, expected, "a %s, %v before that", w.String(), early.Round(time.Millisecond))
		}
	}
}

// leaves requires that, after the lock became free at the given time, the program let the
// clients ahead of it go first.
func (b *behind) leaves(free time.Time) {
	b.noneUntil(free.Add(window/2), "no claim: the lock is free, and another client waits ahead of it")
}

// finish removes the places still ahead of the program's, and waits for the program's grant.
func (b *behind) finish() answer {
	for _, head := range b.heads {
		if now := b.t.read(head.key); now.live() {
			b.t.erase(head.key, 4, text(head.fields["id"]), now.revision)
		}
	}
	return b.granted()
}

// renewed makes the client of a place renew it.
func (t *trial) renewed(place stored) stored {
	t.put(place.key, record(2, text(place.fields["id"]), 15*time.Second, map[string]any{"a": 0, "r": 1, "t": place.revision}), place.revision, 15*time.Second)
	return t.read(place.key)
}

// queueOrder renews the earliest place, and ends the place just ahead of the program's.
func queueOrder(t *trial) {
	t.open()
	b := t.waitsBehind(x, 2)
	t.renewed(b.heads[0])
	t.pause(settled)
	t.ends(b.heads[1])
	t.pause(settled)
	at := b.free()
	b.noneUntil(at.Add(window), "no claim before the lock was free for 1.2 s: the place ahead of its own was renewed later, but has a lower ticket")
	b.finish()
}

func outOfTurn(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	free := b.free()
	b.noneUntil(free.Add(window), "no claim before the lock was free for 1.2 s: there is a place ahead of the program's")
	b.finish()
}

// outOfTurnCycle takes and releases the lock within the window.
func outOfTurnCycle(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	b.free()
	t.pause(window / 2)
	revision := t.put(b.holder.key, record(1, "HOLDER2", time.Minute, nil), t.read(b.holder.key).revision, time.Minute)
	t.pause(20 * time.Millisecond)
	again := time.Now()
	t.erase(b.holder.key, 4, "HOLDER2", revision)
	b.noneUntil(again.Add(window), "no claim before the lock was free for 1.2 s: it was taken in between")
	b.finish()
}

// outOfTurnHead makes the head give up within the window, so that another place becomes the
// head.
func outOfTurnHead(t *trial) {
	t.open()
	b := t.waitsBehind(x, 2)
	b.free()
	t.pause(window * 3 / 4)
	other := time.Now()
	t.erase(b.heads[0].key, 4, text(b.heads[0].fields["id"]), b.heads[0].revision)
	b.noneUntil(other.Add(window), "no claim before the lock was free for 1.2 s with one head: the head has changed in between")
	b.finish()
}

// outOfTurnHint sends notifications that the lock is free while it is still held.
func outOfTurnHint(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	end := time.Now().Add(2 * window)
	for time.Now().Before(end) {
		t.forge(b.holder.key, b.holder.revision+1, record(4, "HOLDER", 0, nil), true)
		t.pause(window / 4)
	}
	b.noneUntil(end, "no claim: the lock is held, and there is a place ahead of the program's")
	t.untouched(b.holder)
	b.free()
	b.finish()
}

// outOfTurnGap leaves reads unanswered for more than a second of the window.
func outOfTurnGap(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	b.free()
	t.pause(window / 4)
	sees := t.wire.blind()
	t.pause(window)
	seen := time.Now()
	sees()
	b.noneUntil(seen.Add(window), "no claim until reads have again shown the lock free for 1.2 s: none was answered for 1.2 s")
	b.finish()
}

// outOfTurnExact renews the head's place while the program claims the lock.
func outOfTurnExact(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	gate := make(chan struct{})
	t.wire.govern(func(w *write) fate {
		if w.key == b.holder.key && !w.deletes() && !w.renewal() {
			return fate{hold: gate}
		}
		return fate{}
	})
	b.free()
	head := b.heads[0]
	if !b.claimed(3 * window) { // it need not claim out of turn
		close(gate)
		b.finish()
		return
	}
	renewed := t.renewed(head)
	close(gate)
	b.granted()
	t.pause(settled)
	t.expect(t.read(head.key).revision == renewed.revision, renewed.String()+": the head has renewed since the program read its place", "%s; the program's writes: %s", t.read(head.key), t.writes())
}

// outOfTurnOthers puts two dead clients ahead of the program.
func outOfTurnOthers(t *trial) {
	t.open()
	b := t.waitsBehind(x, 2)
	b.free()
	out := b.claimed(5 * window) // a waiter that is not second finds out by a timer
	if out {
		b.granted()
		t.pause(settled)
	}
	granted := uint64(0)
	for _, w := range t.wire.seen("") {
		switch {
		case w.key == b.holder.key && !w.deletes() && w.stored > b.holder.revision:
			granted = w.stored
		case w.key == b.heads[1].key && !strings.HasPrefix(w.expect(), "9999"):
			t.expect(false, "the place of the second dead client, as before", "a %s", w.String())
		case w.key == b.heads[0].key && !strings.HasPrefix(w.expect(), "9999"):
			t.expect(granted > 0, "no deletion of a place before the grant", "a %s", w.String())
			if id := text(w.fields["id"]); w.deletes() && id != text(b.heads[0].fields["id"]) {
				t.violated(mustNameTheEnded, "the tombstone of DEAD0", "that of %q", id)
			}
		case w.key == b.place.key && w.deletes() && w.stored > 0 && number(w.fields["s"]) != 9:
			t.violated(mustLeave, "a tombstone of status 9: it got the lock out of turn", "status %d", number(w.fields["s"]))
		}
	}
	if !out {
		b.finish()
	}
}

// stopped stops the program for at least d, and calls meanwhile during that time. It returns
// the time at which the program was resumed.
func (t *trial) stopped(d time.Duration, meanwhile func()) time.Time {
	end := time.Now().Add(d)
	t.need(t.program.stop())
	t.last(func() { _ = t.program.resume() })
	meanwhile()
	t.pauseUntil(end)
	now := time.Now()
	t.need(t.program.resume())
	return now
}

// stoppedHolder stops a holder until another client has the lock.
func stoppedHolder(t *trial) {
	t.open()
	s := t.take(x)
	var before stored
	t.stopped(0, func() {
		t.rivalTakes(x) // once the record has ended
		before = t.read(s.key)
	})
	t.notHeld(x, "not held: its process was stopped, and its record has ended since then")
	a := t.ask(request{Do: "unlock", Name: x})
	t.expect(a.Result != "ok", `no "ok" from unlock: another client has the lock`, "%s", a)
	t.untouched(before)
}

// stoppedFirst stops the first waiter until its place has ended and the lock is free. Another
// client is waiting by then.
func stoppedFirst(t *trial) {
	t.open()
	b := t.waitsBehind(x, 0)
	var other stored
	at := t.stopped(0, func() {
		key := "wait." + x + ".LATER"
		t.put(key, record(2, "LATER", time.Minute, nil), 0, time.Minute)
		other = t.read(key)
		for end := time.Now().Add(patience); t.read(b.place.key).live(); t.pause(20 * time.Millisecond) {
			t.expect(time.Now().Before(end), "the end of its place while the process is stopped", "%s", t.read(b.place.key))
		}
		b.free()
	})
	b.heads = []stored{other}
	b.noneUntil(at.Add(window), "no claim, and a new place: its place ended while the process was stopped, and another client waits")
	again := t.place(x)
	t.expect(text(again.fields["id"]) != text(b.place.fields["id"]), "a place with a different id from the ended one", "%s", again)
	b.finish()
}

// recall makes the program wait for a lock that a client of the library retains without using
// it.
func recall(t *trial) {
	l, err := t.rival().Lock(t.ctx, x, natslock.Linger(time.Minute))
	t.need(err)
	t.need(l.Unlock(t.ctx))
	t.expect(t.read("lock."+x).live(), "a lingering lock", "%s", t.read("lock."+x))
	t.open()
	r := request{Do: "lock", Name: x, Wait: (30 * time.Second).Milliseconds()}
	a := t.ask(r)
	t.expect(a.Result == "ok", `"ok": the client that keeps the lock gives it up for a waiter`, "%s", a)
	t.granted(x, a)
	t.expect(a.Token > l.Token(), "a token above the previous holder's", "%d after %d", a.Token, l.Token())
}
