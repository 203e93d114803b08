package main

import (
	"fmt"
	"time"
)

// refusal returns a server's answer that refuses a write.
func (t *trial) refusal(code int, description string) string {
	return fmt.Sprintf(`{"error":{"code":400,"err_code":%d,"description":%q},"stream":"KV_%s","seq":0}`, code, description, t.bucket)
}

// unavailable is the server's answer to a write that no stream has accepted.
const unavailable = "NATS/1.0 503\r\n\r\n"

// noAnswer sends the program answers that tell it nothing about free locks, and finally no
// answers at all.
func noAnswer(t *trial) {
	t.open()
	answers := []struct{ what, forged string }{
		{"no answer", ""}, {"the status 503", unavailable}, {"a refusal that names the revision 0", t.refusal(10071, "wrong last sequence: 0")},
	}
	t.wire.govern(func(w *write) fate {
		for i, one := range answers {
			switch {
			case w.deletes() || w.key != fmt.Sprintf("lock.%s.%d", x, i):
			case w.n > 20:
				return fate{drop: true}
			default:
				return fate{drop: true, forged: one.forged}
			}
		}
		return fate{}
	})
	var tries []*asked
	for i := range answers {
		tries = append(tries, t.asks(request{Do: "try", Name: fmt.Sprintf("%s.%d", x, i)}))
	}
	for i, one := range tries {
		a := t.answered(one.r, one.ch)
		t.expect(a.Result == "error", `"error": the lock is free, but its claims got `+answers[i].what, "%s", a)
	}
}

// tries makes the program try a lock, and waits until the program has sent an attempt.
func (t *trial) tries(name string) (*asked, write) {
	a := t.asks(request{Do: "try", Name: name})
	t.eventually("an attempt on "+name, "none", func() bool { return len(t.wire.seen("lock."+name)) > 0 })
	return a, t.wire.seen("lock." + name)[0]
}

// judged waits for the result of a request whose answer was late or lost. If the result is ok,
// there must be a record.
func (a *asked) judged() {
	if got := a.t.answered(a.r, a.ch); got.Result == "ok" {
		a.t.granted(a.r.Name, got)
	}
}

// answerOfAnother drops the claim for one lock, and then answers the claim for another.
func answerOfAnother(t *trial) {
	t.open()
	t.wire.govern(func(w *write) fate { return fate{drop: w.key == "lock.lost" && w.n == 1} })
	lost, _ := t.tries("lost")
	next, _ := t.tries("next")
	lost.judged()
	a := t.answered(next.r, next.ch)
	t.expect(a.Result == "ok", `"ok": the lock is free, and its claim was answered`, "%s", a)
	t.granted(next.r.Name, a)
}

// earlierAnswer answers the claim for one lock late, after dropping the claim for another.
func earlierAnswer(t *trial) {
	t.open()
	const late = 1400 * time.Millisecond // many programs have stopped waiting by then
	t.wire.govern(func(w *write) fate {
		if w.key == "lock.late" && w.n == 1 {
			return fate{after: late}
		}
		return fate{drop: w.key == "lock.late" && w.n == 2 || w.key == "lock.lost" && w.n == 1}
	})
	first, sent := t.tries("late")
	t.pauseUntil(sent.at.Add(late * 3 / 4))
	lost, _ := t.tries("lost")
	first.judged()
	lost.judged()
}

// earlierRenewal answers a renewal only after the next one has been sent, and drops that next
// one.
func earlierRenewal(t *trial) {
	t.open()
	t.wire.govern(func(w *write) fate {
		switch w.n {
		case 2:
			return fate{after: 1800 * time.Millisecond}
		case 3:
			return fate{drop: true}
		}
		return fate{}
	})
	s := t.take(x)
	t.eventually("a renewal", "none", func() bool { all := t.wire.seen(s.key); return len(all) > 1 && all[1].answered })
	t.pause(settled / 3)
	t.status(x)
}

// unfitAnswer lets the program learn that the bucket is unfit before the program's claim is
// answered.
func unfitAnswer(t *trial) {
	t.open()
	t.take("first") // otherwise the program might postpone verifying the bucket
	back := t.wire.cut()
	t.configure(expires)
	held, pass := t.wire.holdInfos()
	back()
	if !t.within10(held) {
		t.violated("A client must (M18) verify the bucket in this way when opening it and after each reconnect.", "a request for the stream info after a reconnect", "none in %v", soon)
	}
	answers := make(chan struct{})
	t.wire.govern(func(w *write) fate {
		if w.key == "lock."+x && w.n == 1 {
			return fate{until: answers}
		}
		return fate{}
	})
	claim := t.asks(request{Do: "try", Name: x})
	// A program that waits for the verification sends nothing.
	for end := time.Now().Add(settled); t.read("lock."+x).revision == 0 && time.Now().Before(end); t.pause(5 * time.Millisecond) {
	}
	before := t.wire.infosShown()
	pass()
	t.eventually("a verification of the bucket", "none", func() bool { return t.wire.infosShown() > before })
	t.pause(settled)
	close(answers)
	a := t.answered(claim.r, claim.ch)
	t.expect(a.Result != "ok", "no grant: when the answer came, the program knew that the bucket has a max_age of 1 h", "%s", a)
	t.eventually("no record", "still there", func() bool { return !t.read("lock." + x).live() })
}

// renewalError answers the first renewal of each lease with an error.
func renewalError(t *trial) {
	t.open()
	answers := []struct{ what, forged string }{
		{"the status 503", unavailable}, {"10008, JetStream is not available", t.refusal(10008, "JetStream system temporarily unavailable")},
		{"10077, the bucket is full", t.refusal(10077, "maximum messages exceeded")}, {"10164, another write is in flight", t.refusal(10164, "wrong last sequence")},
		{"a refusal that names the revision 0", t.refusal(10071, "wrong last sequence: 0")},
	}
	name := func(i int) string { return fmt.Sprintf("%s.%d", x, i) }
	t.wire.govern(func(w *write) fate {
		for i, one := range answers {
			if w.key == "lock."+name(i) && w.n == 2 {
				return fate{drop: true, forged: one.forged}
			}
		}
		return fate{}
	})
	for i := range answers {
		t.take(name(i))
	}
	for i, one := range answers {
		t.eventually("a stored renewal", "none", func() bool {
			t.expect(!t.program.toldLost(name(i)), "no lost lock: its renewal was answered with "+one.what, `{"event":"lost"}`)
			return number(t.read("lock." + name(i)).fields["r"]) > 0
		})
		t.expect(t.status(name(i)).Held, "held: its renewal was answered with "+one.what, "not held")
	}
}

// marginOfLong uses a TTL so long that a thousandth of it is more than a second.
func marginOfLong(t *trial) {
	for _, ttl := range []time.Duration{t.TTL, time.Hour} {
		t.ttl = ttl
		t.start() // a new run, because the program opens the bucket only once per run
		a := t.ask(t.opening())
		if a.Result == "error" { // the program may have a lower maximum
			continue
		}
		t.expect(a.Result == "ok", `"ok" of open, or "error"`, "%s", a)
		t.says(a)
		name := fmt.Sprint(x, ttl)
		a = t.try(name)
		t.expect(a.Result == "ok", "ok: the lock is free", "%s", a)
		left, most := time.Duration(a.Left)*time.Millisecond, t.whole()-t.whole()/1000
		t.expect(left <= most+rounding, fmt.Sprintf("a validity of at most %v for a TTL of %v", most, ttl), "%v left", left)
		t.granted(name, a)
	}
}
