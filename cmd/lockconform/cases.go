package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Case is a single test of a locker.
type Case struct {
	Name  string        `json:"name"`
	Level int           `json:"level"`          // the level that the program needs
	Part  string        `json:"part,omitempty"` // the part that the case is about; "" for a level
	Must  string        `json:"must"`           // a sentence from docs/protocol
	Also  string        `json:"also,omitempty"` // the numbers of other musts that the case tests
	TTL   time.Duration `json:"-"`              // the TTL that the program is opened with; 0 for 3 s
	// With NoBucket, the case creates the bucket itself. With Own, it starts the server itself.
	// With Stops, it stops the program's process.
	NoBucket bool           `json:"-"`
	Own      bool           `json:"-"`
	Stops    bool           `json:"-"`
	judge    func(t *trial) // panics with a violation or a fault
}

var musts = regexp.MustCompile(`\bM(\d+)`)

// numbers returns the numbers of the musts that the case tests.
func (c *Case) numbers() []int { return numbersIn(c.Must + " " + c.Also) }

func numbersIn(text string) (all []int) {
	for _, m := range musts.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1]) // the match consists of digits
		all = append(all, n)
	}
	return all
}

// Cases lists all cases: first those of the levels in order, then those of the parts.
var Cases = append(ofLevels, ofParts...)

var ofLevels = []*Case{
	// Level 1: a single attempt, the validity, and the release.
	{Name: "free", Level: 1, judge: free, Must: "The *fencing token* of a lease is `revision << 6 | n`"},
	{Name: "name", Level: 1, judge: names, Must: "every other byte becomes `=` and two upper-case hexadecimal digits."},
	{Name: "ttl", Level: 1, judge: ttl, Must: mustRoundUp},
	{Name: "ttl-fraction", Level: 1, judge: ttl, TTL: 1500 * time.Millisecond, Must: mustRoundUp},
	{Name: "ttl-range", Level: 1, judge: ttlRange, TTL: 367 * 24 * time.Hour, Must: mustRefuseTTL},
	{Name: "held", Level: 1, judge: held, Must: "**Only its owner overwrites a live record.**"},
	{Name: "held-statuses", Level: 1, judge: heldStatuses, Must: "A record under a holder key (`lock.` here) that is not a tombstone must (M34) keep others out, whatever its status, even if it is unreadable."},
	{Name: "unreadable", Level: 1, judge: unreadable, Must: "A record under a holder key (`lock.` here) that is not a tombstone must (M34) keep others out, whatever its status, even if it is unreadable."},
	{Name: "tombstone", Level: 1, judge: tombstone, Must: "A *no* must (M69) be true: a server that cannot lag has shown the holder or the waiter during the call."},
	{Name: "release", Level: 1, judge: release, Must: "The tombstone must (M89) expect the last revision that the client knows of its record.", Also: "M88"},
	{Name: "release-exact", Level: 1, judge: releaseExact, TTL: 10 * time.Second, Must: mustExpect},
	{Name: "in-flight", Level: 1, judge: inFlight, Must: "another write is in flight, which does not mean that the lock is held"},
	{Name: "foreign-ack", Level: 1, judge: foreignAck, Must: "To count, an acknowledgment must (M39) name the right stream and a sequence, and not contain `duplicate`."},
	{Name: "bucket-version", Level: 1, judge: bucketVersion, NoBucket: true, Must: "A client must (M16) refuse a bucket without the entry or with any other version"},
	{Name: "bucket-settings", Level: 1, judge: bucketSettings, NoBucket: true, Must: "A client must (M18) verify the bucket in this way when opening it and after each reconnect.", Also: "M3"},
	{Name: "bucket-rows", Level: 1, judge: bucketRows, Must: "a client must (M3) refuse a bucket if one of these settings has a different value"},
	{Name: "bucket-alone", Level: 1, judge: bucketAlone, Must: "Below level 5 a client must (M2) refuse a bucket that is not *alone*"},
	{Name: "bucket-servers", Level: 1, judge: bucketServers, Must: "a client must (M17) refuse servers below JetStream API level 2 (nats-server 2.12)"},
	{Name: "bucket-unfit", Level: 1, judge: bucketUnfit, Must: "A client that knows that the bucket is unfit must (M21) grant nothing until a verification shows that it is fit again.", Also: "M18"},
	{Name: "bucket-anew", Level: 1, judge: bucketAnew, TTL: 15 * time.Second, Must: "A bucket with a different `created` is a different bucket. A client must (M19) treat every lease of the old bucket as ended unless the new bucket contains its record, regardless of the new bucket's settings."},
	{Name: "bucket-anew-unfit", Level: 1, judge: bucketAnewUnfit, TTL: 15 * time.Second, Must: "A client must (M19) treat every lease of the old bucket as ended unless the new bucket contains its record, regardless of the new bucket's settings."},
	{Name: "tokens-backwards", Level: 1, judge: tokensBackwards, Must: "It must (M53) refuse a grant whose revision is not higher, because the bucket has then been restored from a backup, or re-created with a lower sequence."},
	{Name: "least-privilege", Level: 1, judge: leastPrivilege, Own: true, Must: "A client should work with only the following two requests, because its user might not have permission for any others."},
	{Name: "refused-permission", Level: 1, judge: refusedPermission, Own: true, Must: "A write without *permission* gets no answer."},
	{Name: "buffered-write", Level: 1, judge: bufferedWrite, Must: "It must not (M38) leave writes to a buffer that sends them after a reconnect."},
	{Name: "validity", Level: 1, judge: validityOfClaim, TTL: 2 * time.Second, Must: mustEndInTime},
	{Name: "margin", Level: 1, judge: marginOfLong, TTL: 24 * time.Hour, Must: mustHaveMargin},
	{Name: "late-answer", Level: 1, judge: lateAnswer, TTL: 2 * time.Second, Must: mustArriveInTime, Also: "M61"},
	{Name: "ids", Level: 1, judge: ids, Must: "Every claim must (M26) have a new id"},
	{Name: "places-readable", Level: 1, judge: placesReadable, Must: "A reader must (M29) accept fields in any order, integers of any width, and fields that it does not know.", Also: "M32"},
	{Name: "try-behind-queue", Level: 1, judge: tryBehindQueue, Must: "The queue contains a place: the client must (M67) say no, or queue, even if the lock is free.", Also: "M65"},

	{Name: "no-answer", Level: 1, judge: noAnswer, TTL: 2 * time.Second, Must: "A *no* must (M69) be true: a server that cannot lag has shown the holder or the waiter during the call."},
	{Name: "answer-of-another", Level: 1, judge: answerOfAnother, TTL: 10 * time.Second, Must: "The client judges each attempt separately, by what it expected, when it was sent, and how it was answered:"},
	{Name: "earlier-answer", Level: 1, judge: earlierAnswer, TTL: 10 * time.Second, Must: "The client judges each attempt separately, by what it expected, when it was sent, and how it was answered:"},
	{Name: "unfit-answer", Level: 1, judge: unfitAnswer, TTL: 10 * time.Second, Must: "Waiters fail, and so do claims whose answers arrive in the meantime. The client deletes the records of such claims.", Also: "M21"},
	{Name: "stopped-holder", Level: 1, judge: stoppedHolder, TTL: 2 * time.Second, Stops: true, Must: mustEndInTime},
	{Name: "release-broken", Level: 1, judge: releaseBroken, TTL: 10 * time.Second, Must: "Its own broken record (status 3): the client deletes it too, and the result is *broken*."},

	// Level 2: renewals, and what refusals say.
	{Name: "renewal", Level: 2, judge: renewal, TTL: 2 * time.Second, Must: "Renewals change the revision, so they must (M51) carry the token in `t`."},
	{Name: "validity-renewed", Level: 2, judge: validityOfRenewal, TTL: 2 * time.Second, Must: mustEndInTime},
	{Name: "earlier-renewal", Level: 2, judge: earlierRenewal, TTL: 6 * time.Second, Must: mustEndInTime},
	{Name: "late-renewal", Level: 2, judge: lateRenewal, TTL: 2 * time.Second, Must: "The answer to a renewal must (M49) also arrive before the current validity ends. Otherwise the lease is lost, and the client immediately deletes the record at exactly its revision."},
	{Name: "outage", Level: 2, judge: outage, TTL: 2 * time.Second, Must: "The lease ends with its validity, whatever the network does."},
	{Name: "foreign-revision", Level: 2, judge: foreignRevision, TTL: 2 * time.Second, Must: "Its own broken record must (M87) end the lease as broken, and anything else as lost."},
	{Name: "renewal-zero", Level: 2, judge: renewalZero, Must: mustNotExpectZero},
	{Name: "deposed-renewal", Level: 2, judge: deposedRenewal, TTL: 2 * time.Second, Must: "A refusal that names the known revision, or a lower one other than 0, changes nothing."},
	{Name: "renewal-error", Level: 2, judge: renewalError, TTL: 4 * time.Second, Must: "A refused renewal (10071) does not in itself end the lease.", Also: "M85"},
	{Name: "broken", Level: 2, judge: broken, TTL: 2 * time.Second, Must: "Its own broken record must (M87) end the lease as broken, and anything else as lost."},
	{Name: "release-lost", Level: 2, judge: releaseLost, TTL: 10 * time.Second, Must: "Anything else: the lease was *lost*."},

	{Name: "broken-later", Level: 2, judge: brokenLater, Must: "A holder whose lease was broken must (M93) stop, and then deletes the broken record at its revision."},
	{Name: "broken-at-once", Level: 2, judge: brokenAtOnce, TTL: 2 * time.Second, Must: "Its own broken record must (M87) end the lease as broken, and anything else as lost."},
	{Name: "unfit-held", Level: 2, judge: unfitHeld, TTL: 2 * time.Second, Must: "It continues to renew its leases, warns their holders, and releases as usual."},
	{Name: "extend", Level: 2, judge: extend, TTL: 10 * time.Second, Must: "Renewals change the revision, so they must (M51) carry the token in `t`."},
	{Name: "extend-lost", Level: 2, judge: extendLost, TTL: 10 * time.Second, Must: "Its own broken record must (M87) end the lease as broken, and anything else as lost."},
	{Name: "extend-unanswered", Level: 2, judge: extendUnanswered, TTL: 2 * time.Second, Must: mustEndInTime},
	{Name: "extend-range", Level: 2, judge: extendRange, TTL: 10 * time.Second, Must: mustRefuseTTL},
	{Name: "extend-shorter", Level: 2, judge: extendShorter, TTL: 10 * time.Second, Must: "A renewal with a shorter TTL must (M50) shorten the validity as soon as it is sent, because the server may store it."},

	// Level 3: the queue, and notifications.
	{Name: "forged-record", Level: 3, judge: forgedRecord, Must: "So a client must not (M44) claim at a revision, delete a record or end a lease because of a notification alone."},
	{Name: "queue", Level: 3, judge: queue, Must: "A waiter must (M70) write a place with status 2 under `wait.<name>.<id>`, with an id that is not that of its claim for the lock."},
	{Name: "fifo", Level: 3, judge: fifo, Must: mustOrder},
	{Name: "queue-order", Level: 3, judge: queueOrder, Must: mustOrder},
	{Name: "give-up", Level: 3, judge: giveUp, Must: mustGiveUp},
	{Name: "predecessor", Level: 3, judge: predecessor, Must: "any other end of that place, or another id under its key, after which it lists the queue again"},
	{Name: "place-renewal", Level: 3, judge: placeRenewal, Must: "The *ticket* of a place is the revision of its first write. Its renewals must (M52) carry it in `t`."},
	{Name: "place-again", Level: 3, judge: placeAgain, Must: "So a client that compares two places must (M27) compare the ids in the records, not the keys."},
	{Name: "forged-tombstone", Level: 3, judge: forgedTombstone, Must: "It must not (M75) claim at the revision of a live record.", Also: "M44"},
	{Name: "no-notifications", Level: 3, judge: noNotifications, TTL: 2 * time.Second, Must: "Notifications can be lost. Every waiter therefore also reads when its timers fire"},
	{Name: "place-ended", Level: 3, judge: placeEnded, Must: "A waiter whose place has ended, according to its clock or a read, or because the place was overdue, must (M71) queue again under a new id."},
	{Name: "least-privilege-queue", Level: 3, judge: leastPrivilegeQueue, Own: true, Must: "A client should work with only the following two requests, because its user might not have permission for any others."},
	{Name: "reconnect", Level: 3, judge: reconnect, Must: "After a reconnect, every subscription needs a new proof, and every waiter reads again."},
	{Name: "recall", Level: 3, judge: recall, Must: "A waiter must (M70) write a place with status 2 under `wait.<name>.<id>`, with an id that is not that of its claim for the lock."},
	{Name: "unfit-waiter", Level: 3, judge: unfitWaiter, Must: "Waiters fail, and so do claims whose answers arrive in the meantime."},
	{Name: "stopped-first", Level: 3, judge: stoppedFirst, Stops: true, Must: "A waiter whose place has ended, according to its clock or a read, or because the place was overdue, must (M71) queue again under a new id."},
	{Name: "out-of-turn", Level: 3, judge: outOfTurn, Must: "A waiter must not (M81) claim out of turn before that."},
	{Name: "out-of-turn-cycle", Level: 3, judge: outOfTurnCycle, Must: "Its *window* is open while these reads show the same head and a free lock, either at one revision or, after its tombstone has ended, without a record."},
	{Name: "out-of-turn-head", Level: 3, judge: outOfTurnHead, Must: "Its *window* is open while these reads show the same head and a free lock, either at one revision or, after its tombstone has ended, without a record."},
	{Name: "out-of-turn-hint", Level: 3, judge: outOfTurnHint, Must: "Only answers to its reads count, never a notification."},
	{Name: "out-of-turn-gap", Level: 3, judge: outOfTurnGap, Must: "A failed read, a new connection, a suspension, or a gap of a second or more between two answers must (M80) restart the window."},
	{Name: "out-of-turn-exact", Level: 3, judge: outOfTurnExact, Must: "the waiter deletes the place of the head with a tombstone of status 4, which must (M82) expect exactly the revision that the waiter read."},
	{Name: "out-of-turn-others", Level: 3, judge: outOfTurnOthers, Must: "It must not (M83) delete any other waiter's place, or any place at all without such a grant."},
	{Name: "overdue-clock", Level: 3, judge: overdueClock, Own: true, Must: "The time must (M55) be a server's, such as `ts` in a stream info."},
	{Name: "overdue-notified", Level: 3, judge: overdueNotified, Must: "The client must (M54) have *read* the record."},
	{Name: "overdue", Level: 3, judge: overdue, Own: true, Must: "Only an acknowledged tombstone ends the record, and that tombstone must (M56) expect exactly r."},

	// Level 4: faults.
	{Name: "lost-answer", Level: 4, judge: lostAnswer, TTL: 5 * time.Second, Must: "If it is still in time, the claim is granted, with the validity *counted from when that attempt was sent*, and must not (M60) be granted as of a later attempt."},
	{Name: "broken-attempt", Level: 4, judge: brokenAttempt, TTL: 5 * time.Second, Must: "A client must not (M59) adopt its own broken record."},
	{Name: "late-answer-waiting", Level: 4, judge: lateAnswerWaiting, TTL: time.Second, Must: mustArriveInTime},
	{Name: "late-write", Level: 4, judge: lateWrite, TTL: 10 * time.Second, Must: "After that, every acknowledgment except that of the grant must (M61) lead to the deletion of exactly its record, and must not (M62) lead to a grant."},
	{Name: "repeated-answers", Level: 4, judge: repeatedAnswers, Must: "At any time, at most one holder has a valid lease on a mutex."},
	{Name: "lost-renewal-answer", Level: 4, judge: lostRenewalAnswer, TTL: 4 * time.Second, Must: "A held record with its own id and a renewal number that it has sent: that renewal is confirmed, and its validity counts from when it was sent.", Also: "M85"},
	{Name: "restart-held", Level: 4, judge: restartHeld, Own: true, TTL: 4 * time.Second, Must: "If a try gets no answer, the client sends the next one T/15 (at least 50 ms) after it."},
	{Name: "restart-waiter", Level: 4, judge: restartWaiter, Own: true, Must: "It fails if the stream has no leader for 15 s, but waits as long as necessary for a lost connection to return."},
}

const x = "x" // the name of the lock in most cases

func free(t *trial) {
	t.open()
	a := t.try(x)
	t.expect(a.Result == "ok", "ok: the lock is free", "%s", a)
	s := t.granted(x, a)
	t.expect(a.Token == s.revision<<6 || number(s.fields["t"]) == a.Token, fmt.Sprintf("the token %d, of the first write of the claim", s.revision<<6), "%d", a.Token)
	t.expect(t.status(x).Held, "held, right after the grant", "not held")
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
	t.notHeld(x, "not held, after the release")
}

func names(t *trial) {
	t.open()
	for name, key := range map[string]string{
		"orders.42": "orders.42", "a..b": "a=2E=2Eb", ".a": "=2Ea", "a b*": "a=20b=2A", "=": "=3D", "é>": "=C3=A9=3E", "A-b_c/d": "A-b_c/d",
	} {
		a := t.try(name)
		t.expect(a.Result == "ok", "ok: the lock is free", "%s", a)
		s := t.read("lock." + key)
		t.expect(s.live(), fmt.Sprintf("the lock %q under lock.%s", name, key), "its writes: %s", t.writes())
	}
}

func ttl(t *trial) {
	t.open()
	s := t.take(x)
	want := t.seconds()
	t.expect(s.header.Get("Nats-TTL") == want, fmt.Sprintf("Nats-TTL: %s for a TTL of %v", want, t.ttl), "%q", s.header.Get("Nats-TTL"))
	t.expect(number(s.fields["l"]) == uint64(t.whole().Seconds()), "the field l "+strings.TrimSuffix(want, "s"), "%d", number(s.fields["l"]))
}

func ttlRange(t *trial) {
	const day = 24 * time.Hour
	for _, ttl := range []time.Duration{t.TTL, 366*day + time.Millisecond, 366*day + time.Second, time.Millisecond, time.Second - time.Millisecond, day + time.Millisecond, 30 * day} {
		t.ttl = ttl
		t.start() // a new run, because the program opens the bucket only once per run
		a := t.ask(t.opening())
		if a.Result == "ok" {
			a = t.try(x)
		}
		if a.Result == "ok" && ttl > day && ttl <= 366*day { // granted to a program that will not renew it
			s := t.read("lock." + x)
			t.expect(s.fields["f"] == true, fmt.Sprintf(`"error" for a TTL of %v, or a fixed lease`, ttl), "%s without f", s)
			t.expect(s.header.Get("Nats-TTL") == t.seconds(), "Nats-TTL: "+t.seconds(), "%q", s.header.Get("Nats-TTL"))
			t.erase(s.key, 4, "operator", s.revision)
			continue
		}
		t.expect(a.Result == "error", fmt.Sprintf(`"error" for a TTL of %v`, ttl), "%s", a)
		t.expect(len(t.wire.seen("")) == 0, "no write", "%s", t.writes())
	}
}

func held(t *trial) {
	t.rivalTakes(x)
	before := t.read("lock." + x)
	t.open()
	for range 2 { // the second time, the program may already know the lock
		a := t.try(x)
		t.expect(a.Result == "refused", `"refused": the lock is held`, "%s", a)
		t.untouched(before)
		t.notHeld(x, "not held: it was refused")
	}
}

func heldStatuses(t *trial) {
	t.open()
	for _, status := range []int{3, 7, 8, 9} {
		name := fmt.Sprintf("%s.%d", x, status)
		t.put("lock."+name, record(status, fmt.Sprint("other", status), time.Minute, map[string]any{"t": 64, "f": true}), 0, time.Minute)
		before := t.read("lock." + name)
		a := t.try(name)
		t.expect(a.Result == "refused", fmt.Sprintf(`"refused": there is a record of status %d`, status), "%s", a)
		t.untouched(before)
	}
}

func unreadable(t *trial) {
	t.open()
	for i, value := range [][]byte{{}, []byte("junk"), record(1, "", time.Minute, nil), record(1, "other", time.Minute, map[string]any{"v": 2}), record(12, "other", time.Minute, nil)} {
		name := fmt.Sprintf("%s.%d", x, i)
		t.put("lock."+name, value, 0, time.Minute)
		before := t.read("lock." + name)
		a := t.try(name)
		t.expect(a.Result == "refused" || a.Result == "error", fmt.Sprintf(`"refused" or "error": there is the value %.20q`, value), "%s", a)
		t.untouched(before)
	}
}

func tombstone(t *trial) {
	t.open()
	l := t.rivalTakes(x)
	t.need(l.Unlock(t.ctx))
	t.take(x)
	// A tombstone without a body, like those that other tools write.
	revision := t.put("lock.y", record(1, "other", time.Minute, nil), 0, time.Minute)
	t.publish("lock.y", nil, revision, nats.Header{"Nats-TTL": {"1s"}, "KV-Operation": {"DEL"}})
	t.take("y")
}

func release(t *trial) {
	t.open()
	s := t.take(x)
	a := t.ask(request{Do: "unlock", Name: x})
	t.expect(a.Result == "ok", `"ok": it held the lock`, "%s", a)
	gone := t.read("lock." + x)
	t.expect(gone.deleted() && gone.revision > s.revision, "a tombstone of lock."+x, "%s", gone)
	for _, w := range t.wire.seen("lock." + x) {
		if w.stored == gone.revision {
			t.expect(w.expects(s.revision), fmt.Sprintf("a deletion that expects %d, the revision of the record", s.revision), "a %s", w.String())
			return
		}
	}
	t.expect(false, "a tombstone that the program has written", "%s", gone)
}

// releaseExact releases a lock that another client has taken in the meantime.
func releaseExact(t *trial) {
	t.open()
	s := t.take(x)
	t.erase(s.key, 4, "operator", s.revision)
	t.rivalTakes(x)
	before := t.read(s.key)
	t.ask(request{Do: "unlock", Name: x})
	t.pause(settled)
	t.untouched(before)
}

func inFlight(t *trial) {
	t.open()
	t.wire.govern(func(w *write) fate {
		if w.n > 2 {
			return fate{}
		}
		return fate{drop: true, forged: `{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"KV_` + t.bucket + `","seq":0}`}
	})
	a := t.try(x)
	t.expect(a.Result != "refused", "no refusal: the lock is free", "%s", a)
	if a.Result == "ok" {
		t.granted(x, a)
	}
}

// foreignAck acknowledges attempts that were never stored, in ways that a program must not accept.
func foreignAck(t *trial) {
	t.open()
	for i, forged := range []string{
		`{"stream":"KV_other","seq":77}`,
		`{"stream":"KV_` + t.bucket + `","seq":77,"duplicate":true}`,
		`{"stream":"KV_` + t.bucket + `"}`,
	} {
		name := fmt.Sprintf("%s.%d", x, i)
		t.wire.govern(func(w *write) fate {
			if w.n > 1 || w.deletes() {
				return fate{}
			}
			return fate{drop: true, forged: forged}
		})
		if a := t.try(name); a.Result == "ok" { // granted by a later attempt
			t.granted(name, a)
		}
	}
}

// configured creates the bucket with changed settings, and makes the program open it.
func (t *trial) configured(change func(c *jetstream.StreamConfig)) answer {
	c, err := kvstore.Config{Bucket: t.bucket}.StreamConfig()
	t.need(err)
	change(&c)
	_, err = t.js.CreateStream(t.ctx, c)
	t.need(err)
	defer func() { t.need(t.js.DeleteStream(t.ctx, c.Name)) }()
	a := t.ask(t.opening())
	if a.Result == "ok" {
		a = t.try(x)
	}
	t.expect(len(t.wire.seen("")) == 0 || a.Result == "ok", "no write", "%s", t.writes())
	return a
}

func bucketVersion(t *trial) {
	t.start()
	for _, version := range []string{"", "2", "4"} {
		a := t.configured(func(c *jetstream.StreamConfig) {
			if c.Metadata["natslock.protocol"] = version; version == "" {
				delete(c.Metadata, "natslock.protocol")
			}
		})
		t.expect(a.Result == "error", fmt.Sprintf(`"error" of open for the version %q`, version), "%s", a)
	}
}

// unfit lists settings that a client must refuse.
var unfit = []struct {
	row    string
	change func(c *jetstream.StreamConfig)
}{
	{"max_msgs_per_subject 2", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }},
	{"allow_msg_ttl false", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }},
	{"subject_delete_marker_ttl 1 s", func(c *jetstream.StreamConfig) {
		c.SubjectDeleteMarkerTTL, c.AllowRollup, c.DenyPurge = time.Second, true, false
	}},
	{"one more subject", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "more."+c.Name) }},
	{"retention interest", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }},
	{"discard old with a limit", func(c *jetstream.StreamConfig) {
		c.Discard, c.DiscardNewPerSubject, c.MaxMsgs = jetstream.DiscardOld, false, 1000
	}},
	{"max_age 1 h", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
	{"discard_new_per_subject", func(c *jetstream.StreamConfig) { c.Discard, c.DiscardNewPerSubject = jetstream.DiscardNew, true }},
	{"storage memory", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
}

func bucketSettings(t *trial) {
	t.start()
	for _, row := range unfit {
		a := t.configured(row.change)
		t.expect(a.Result == "error", fmt.Sprintf(`"error" of open for a bucket with %s`, row.row), "%s", a)
	}
	a := t.configured(func(*jetstream.StreamConfig) {})
	t.expect(a.Result == "ok", `"ok" for a bucket that is fit`, "%s", a)
}

func renewal(t *trial) {
	t.open()
	s := t.take(x)
	t.eventually("three renewals", "fewer", func() bool { return t.read(s.key).revision > s.revision && number(t.read(s.key).fields["r"]) >= 3 })
	expect, r := s.revision, uint64(0)
	for _, w := range t.wire.seen(s.key) {
		if !w.renewal() || w.stored == 0 {
			continue
		}
		t.expect(w.expects(expect), fmt.Sprintf("a renewal that expects %d, the previous revision", expect), "a %s", w.String())
		t.expect(number(w.fields["t"]) == s.revision<<6, fmt.Sprintf("the token %d", s.revision<<6), "%d", number(w.fields["t"]))
		t.expect(text(w.fields["id"]) == text(s.fields["id"]), "the id of the claim", "%q", text(w.fields["id"]))
		t.expect(number(w.fields["r"]) > r, "numbers that rise", "%d after %d", number(w.fields["r"]), r)
		expect, r = w.stored, number(w.fields["r"])
	}
	a := t.status(x)
	t.expect(a.Held, "held: all its renewals were acknowledged", "not held")
	t.expect(!t.program.toldLost(x), "no lost lock", `{"event":"lost"}`)
}

// first applies do to the first write under a lock's key, and holds all later ones, so that no
// renewal extends the validity.
func (t *trial) first(do fate) (release func()) {
	gate := make(chan struct{})
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return do
		}
		return fate{hold: gate}
	})
	return func() { close(gate) }
}

func validityOfClaim(t *trial) {
	t.open()
	defer t.first(fate{after: 700 * time.Millisecond})()
	a := t.try(x)
	t.expect(a.Result == "ok", "ok: the answer came 700 ms after the write, and in time", "%s", a)
	t.status(x)
	bound, _ := t.bound(x)
	t.pauseUntil(bound.Add(rounding))
	t.notHeld(x, fmt.Sprintf("not held: %v have passed since the claim was sent", t.validity()))
}

func validityOfRenewal(t *trial) {
	t.open()
	gate := make(chan struct{})
	defer close(gate)
	t.wire.govern(func(w *write) fate {
		switch {
		case w.n == 1:
			return fate{}
		case w.n == 2:
			return fate{after: 500 * time.Millisecond}
		}
		return fate{hold: gate}
	})
	s := t.take(x)
	var second write
	t.eventually("a renewal", "none", func() bool {
		all := t.wire.seen(s.key)
		if len(all) > 1 {
			second = all[1]
		}
		return second.answered
	})
	t.pauseUntil(second.at.Add(600 * time.Millisecond))
	t.status(x)
	bound, _ := t.bound(x)
	t.pauseUntil(bound.Add(rounding))
	t.notHeld(x, fmt.Sprintf("not held: %v have passed since the sending of the renewal", t.validity()))
}

func lateAnswer(t *trial) {
	t.open()
	late := t.validity() + t.margin/2
	t.wire.govern(func(*write) fate { return fate{after: late} })
	ch := t.send(request{Do: "try", Name: x})
	t.eventually("an attempt", "none", func() bool { return len(t.wire.seen("lock."+x)) > 0 })
	t.eventually("a deletion of the record at its revision", "none", func() bool {
		all := t.wire.seen("lock." + x)
		for _, w := range all {
			if w.deletes() && all[0].stored > 0 && w.expects(all[0].stored) {
				return true
			}
		}
		select {
		case a := <-ch:
			t.expect(a.Result != "ok", fmt.Sprintf("no grant: the answer came %v after the attempt was sent, and the validity was %v", late, t.validity()), "%s", a)
			ch = nil
		default:
		}
		return false
	})
	t.notHeld(x, "not held: the answer came too late")
}

// lateRenewal does not answer renewals until the validity has ended.
func lateRenewal(t *trial) {
	t.open()
	gate := make(chan struct{})
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return fate{}
		}
		return fate{until: gate}
	})
	s := t.take(x)
	first := t.wire.seen(s.key)[0]
	var late stored
	t.eventually("a stored renewal", "none", func() bool { late = t.read(s.key); return late.revision > s.revision })
	t.pauseUntil(first.at.Add(t.validity() + 20*time.Millisecond))
	t.notHeld(x, "not held: no renewal was answered within the validity")
	close(gate)
	t.deleted(s.key, late.revision, "no record left behind: the answers to its renewals came too late")
	t.pause(settled)
	t.lost(x, "a lock that stays lost: the answers to its renewals came too late")
}

func outage(t *trial) {
	t.open()
	gate := make(chan struct{})
	defer close(gate)
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return fate{}
		}
		return fate{hold: gate}
	})
	t.take(x)
	bound, _ := t.bound(x)
	t.pauseUntil(bound.Add(rounding))
	t.notHeld(x, "not held: the validity has ended")
	t.lost(x, "a lost lock: no write was answered for a whole validity")
}

func foreignRevision(t *trial) {
	t.open()
	s := t.take(x)
	last := s.revision
	t.erase(s.key, 4, "operator", last)
	t.rivalTakes(x)
	before := t.read(s.key)
	t.lost(x, "a lost lock: another client has it")
	t.pause(settled)
	t.untouched(before)
}

// renewalZero lets a renewal pass once the record and its tombstone no longer exist.
func renewalZero(t *trial) {
	t.open()
	gate := make(chan struct{})
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return fate{}
		}
		return fate{hold: gate}
	})
	s := t.take(x)
	t.erase(s.key, 4, "operator", s.revision)
	t.eventually("a renewal", "none", func() bool { return len(t.wire.seen(s.key)) > 1 })
	t.eventually("the end of the tombstone", "still there", func() bool { return t.read(s.key).revision == 0 })
	close(gate)
	t.lost(x, "a lost lock: its record no longer exists")
	t.pause(settled)
	t.expect(!t.read(s.key).live(), "no record: the lease has ended", "%s", t.read(s.key))
}

// deposedRenewal answers the first renewal the way a leader deposed before the claim would.
func deposedRenewal(t *trial) {
	t.open()
	var claimed uint64
	t.wire.govern(func(w *write) fate {
		if w.n != 2 {
			return fate{}
		}
		return fate{drop: true, forged: fmt.Sprintf(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: %d"},"stream":"KV_%s","seq":0}`, claimed-1, t.bucket)}
	})
	// The rule uses claimed only for the renewal, which comes later.
	s := func() stored {
		s := t.take(x)
		t.wire.mu.Lock()
		claimed = s.revision
		t.wire.mu.Unlock()
		return s
	}()
	t.eventually("a stored renewal", "none", func() bool { return t.read(s.key).revision > s.revision })
	t.expect(t.status(x).Held, "held: the refusal named a revision below that of the record", "not held")
	t.expect(!t.program.toldLost(x), "no lost lock", `{"event":"lost"}`)
}

func broken(t *trial) {
	t.open()
	s := t.take(x)
	err := t.operator().Break(t.ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: x, ID: text(s.fields["id"]), Reason: "conform"})
	t.need(err)
	b := t.read(s.key)
	t.lost(x, "a lost lock: an operator has broken it")
	a := t.ask(request{Do: "unlock", Name: x})
	t.expect(a.Result == "lost", `"lost" from unlock`, "%s", a)
	t.eventually("a deletion of the broken record at its revision", "none", func() bool {
		for _, w := range t.wire.seen(s.key) {
			if w.deletes() && w.expects(b.revision) {
				return true
			}
		}
		return false
	})
}

func releaseLost(t *trial) {
	t.open()
	s := t.take(x)
	t.erase(s.key, 4, "operator", s.revision)
	t.rivalTakes(x)
	a := t.ask(request{Do: "unlock", Name: x})
	t.expect(a.Result == "lost", `"lost" from unlock: another client has the lock`, "%s", a)
}

// forgedRecord notifies a holder of records that were never written.
func forgedRecord(t *trial) {
	t.open()
	s := t.take(x)
	at := t.wire.seen(s.key)[0].at
	t.pauseUntil(at.Add(1200 * time.Millisecond)) // a second after the claim, the program watches its record
	now := t.read(s.key)
	t.forge(s.key, now.revision+1000, record(1, "forged", time.Minute, nil), false)
	t.forge(s.key, now.revision+1001, record(3, text(s.fields["id"]), time.Minute, map[string]any{"t": s.revision << 6, "bb": "forged"}), false)
	t.forge(s.key, now.revision+1002, record(4, text(s.fields["id"]), 0, nil), true)
	t.pause(settled)
	t.eventually("held: its record is as it was", "not held", func() bool { return t.status(x).Held })
	t.expect(!t.program.toldLost(x), "no lost lock: the notifications were forged", `{"event":"lost"}`)
	t.expect(t.read(s.key).live(), "its record", "%s", t.read(s.key))
}

// waitsFor makes the program wait for a lock that is held, and returns the program's place.
func (t *trial) waitsFor(name string) (place stored, answered func() answer) {
	r := request{Do: "lock", Name: name, Wait: (30 * time.Second).Milliseconds()}
	ch := t.send(r)
	return t.place(name), func() answer { return t.answered(r, ch) }
}

// waits is waitsFor for a lock that the program will get.
func (t *trial) waits(name string) (place stored, granted func() answer) {
	place, answered := t.waitsFor(name)
	return place, func() answer { return t.turned(name, answered()) }
}

// turned judges the grant to a waiter.
func (t *trial) turned(name string, a answer) answer {
	t.expect(a.Result == "ok", `"ok": it is its turn`, "%s", a)
	t.granted(name, a)
	return a
}

func queue(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	seconds := number(b.place.fields["l"])
	t.expect(seconds >= 1 && seconds <= 15, "a place whose TTL is at most 15 s", "%d s", seconds)
	t.expect(strings.HasSuffix(b.place.key, "."+text(b.place.fields["id"])), "the id in the key of the place", "%s", b.place)
	t.untouched(b.holder)
	b.leaves(b.free())
	a := b.finish()
	t.expect(a.Token > b.holder.revision<<6, "a token above the previous holder's", "%d after %d", a.Token, b.holder.revision<<6)
	claim := t.read("lock." + x)
	t.expect(text(claim.fields["id"]) != text(b.place.fields["id"]), "a claim id different from the place's", "the same")
	t.eventually("the end of the place", "still there", func() bool { return !t.read(b.place.key).live() })
	for _, w := range t.wire.seen(b.place.key) {
		if w.deletes() && w.stored > 0 {
			if status := number(w.fields["s"]); status != 5 {
				t.violated(mustLeave, "a tombstone of status 5: the first waiter got the lock", "status %d", status)
			}
		}
	}
}

// grant is what a client that uses the library received.
type grant struct {
	lock *natslock.Lock
	err  error
}

// rivalWaits makes a client that uses the library queue, and waits until there are n places.
func (t *trial) rivalWaits(name string, n int) <-chan grant {
	c, ch := t.rival(), make(chan grant, 1)
	go func() {
		l, err := c.Lock(t.ctx, name, natslock.MaxWait(time.Minute))
		ch <- grant{l, err}
	}()
	t.eventually(fmt.Sprintf("%d places", n), "others", func() bool { return len(t.places(name)) == n })
	return ch
}

func (t *trial) rivalGranted(ch <-chan grant) *natslock.Lock {
	select {
	case g := <-ch:
		t.need(g.err)
		t.keep(g.lock)
		return g.lock
	case <-time.After(patience):
		t.expect(false, "a grant to the client of the library, whose turn it is", "none in %v; the program's writes: %s", patience, t.writes())
	}
	return nil
}

// fifo makes the program wait behind a slow client and ahead of a client that uses the library.
func fifo(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	after := t.rivalWaits(x, 3)
	b.leaves(b.free())
	first := t.put(b.holder.key, record(1, "FIRST", time.Minute, nil), t.read(b.holder.key).revision, time.Minute)
	t.erase(b.heads[0].key, 5, text(b.heads[0].fields["id"]), b.heads[0].revision)
	t.pause(settled)
	holder := t.read(b.holder.key)
	t.expect(holder.revision == first, "the lock with the client that queued first", "%s", holder)
	t.erase(b.holder.key, 4, "FIRST", first)
	mine := b.granted()
	t.expect(mine.Token > first<<6, "a token above the previous holder's", "%d after %d", mine.Token, first<<6)
	select {
	case <-after:
		t.expect(false, "the client that queued last still waiting", "it has the lock")
	default:
	}
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
	c := t.rivalGranted(after)
	t.expect(c.Token() > mine.Token, "tokens that rise", "%d after %d", c.Token(), mine.Token)
}

func giveUp(t *trial) {
	t.rivalTakes(x)
	before := t.read("lock." + x)
	t.open()
	r := request{Do: "lock", Name: x, Wait: 1500}
	ch := t.send(r)
	place := t.place(x)
	a := t.answered(r, ch)
	t.expect(a.Result == "refused", `"refused": the wait time is over`, "%s", a)
	t.eventually("the end of the place", "still there", func() bool { return !t.read(place.key).live() })
	for _, w := range t.wire.seen(place.key) {
		if w.deletes() && w.stored > 0 {
			t.expect(number(w.fields["s"]) == 4, "a tombstone of status 4", "status %d", number(w.fields["s"]))
		}
	}
	t.untouched(before)
}

func tryBehindQueue(t *trial) {
	t.open()
	l := t.rivalTakes(x)
	t.put("wait."+x+".OTHER", record(2, "OTHER", 15*time.Second, nil), 0, 15*time.Second)
	t.need(l.Unlock(t.ctx))
	a := t.try(x)
	if all := t.wire.seen("lock." + x); a.Result == "ok" && len(all) > 0 && all[0].stored > 0 && all[0].expects(0) {
		t.need(tooSlow("the tombstone had ended before the program tried"))
	}
	t.expect(a.Result == "refused", `"refused": the lock is free, but another client waits for it`, "%s", a)
}

// predecessor ends the place ahead of the program's while another client holds the lock. Until
// that client took it, the lock was free.
func predecessor(t *trial) {
	t.open()
	for _, status := range []int{4, 5, 9} {
		b := t.waitsBehind(fmt.Sprintf("%s.%d", x, status), 1)
		b.leaves(b.free())
		other := t.put(b.holder.key, record(1, "OTHER", time.Minute, nil), t.read(b.holder.key).revision, time.Minute)
		t.erase(b.heads[0].key, status, text(b.heads[0].fields["id"]), b.heads[0].revision)
		t.pause(settled)
		t.erase(b.holder.key, 4, "OTHER", other)
		b.granted()
	}
}

// forgedTombstone notifies the first waiter that a live record has ended.
func forgedTombstone(t *trial) {
	l := t.rivalTakes(x)
	before := t.read("lock." + x)
	t.open()
	_, granted := t.waits(x)
	t.pause(settled) // until the program has subscribed
	for _, revision := range []uint64{before.revision, before.revision + 1000} {
		t.forge(before.key, revision, record(4, text(before.fields["id"]), 0, nil), true)
		t.pause(settled)
		t.untouched(before)
	}
	t.need(l.Unlock(t.ctx))
	granted()
}

func noNotifications(t *trial) {
	l := t.rivalTakes(x)
	t.open()
	t.wire.deafen()
	_, granted := t.waits(x)
	t.pause(settled)
	t.need(l.Unlock(t.ctx))
	granted()
}

// placeEnded deletes a waiter's place.
func placeEnded(t *trial) {
	l := t.rivalTakes(x)
	t.open()
	place, granted := t.waits(x)
	id := text(place.fields["id"])
	t.erase(place.key, 4, id, place.revision)
	var again stored
	t.eventually("a new place with another id", "none", func() bool {
		for _, s := range t.places(x) {
			again = s
			return true
		}
		return false
	})
	t.expect(text(again.fields["id"]) != id, "a different id from that of the ended place", "the same, %q", id)
	t.need(l.Unlock(t.ctx))
	granted()
}

// patient is a request that waits for longer than an answer takes to arrive.
var patient = request{Do: "lock", Name: x, Wait: 5000}

// lostAnswer lets the first attempt be stored, but loses its answer. No renewal gets through.
func lostAnswer(t *trial) {
	t.open()
	gate := make(chan struct{})
	defer close(gate)
	t.wire.govern(func(w *write) fate {
		switch {
		case w.n == 1:
			return fate{lose: true}
		case w.renewal():
			return fate{hold: gate}
		}
		return fate{}
	})
	a := t.ask(patient)
	t.expect(a.Result == "ok", `"ok": the first attempt was stored, and is still in time`, "%s", a)
	all := t.wire.seen("lock." + x)
	s := t.read("lock." + x)
	t.expect(s.revision == all[0].stored && s.live(), "the record of the first attempt", "%s", s)
	t.expect(a.Token == s.revision<<6, fmt.Sprintf("the token %d, of the first attempt", s.revision<<6), "%d", a.Token)
	t.status(x)
}

func brokenAttempt(t *trial) {
	t.open()
	gate := make(chan struct{}) // the next attempt passes after the break
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return fate{lose: true}
		}
		return fate{hold: gate}
	})
	ch := t.send(patient)
	var s stored
	t.eventually("a stored attempt", "none", func() bool { s = t.read("lock." + x); return s.live() })
	b := t.put(s.key, record(3, text(s.fields["id"]), t.whole(), map[string]any{"t": s.revision << 6, "bb": "operator"}), s.revision, t.whole())
	close(gate)
	a := t.answered(patient, ch)
	if a.Result == "ok" { // a new claim is allowed, but an adoption is not
		now := t.read(s.key)
		t.expect(text(now.fields["id"]) != text(s.fields["id"]), "no grant: an operator has broken the attempt", "%s", now)
	}
	t.eventually("a deletion of the broken record at its revision", "none", func() bool {
		for _, w := range t.wire.seen(s.key) {
			if w.deletes() && w.expects(b) {
				return true
			}
		}
		return false
	})
}

// lateWrite holds back the first attempt until its claim is over and the key is empty.
func lateWrite(t *trial) {
	t.open()
	gate := make(chan struct{})
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return fate{hold: gate}
		}
		return fate{}
	})
	a := t.ask(patient)
	t.expect(a.Result == "ok", `"ok", by the second attempt: the lock is free`, "%s", a)
	s := t.granted(x, a)
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
	t.eventually("the end of the tombstone", "still there", func() bool { return t.read(s.key).revision == 0 })
	close(gate)
	var late stored
	t.eventually("no record, or its deletion", "its first attempt was not stored", func() bool {
		late.revision = t.wire.seen(s.key)[0].stored
		return late.revision > 0
	})
	t.eventually(fmt.Sprintf("a deletion that expects %d, the attempt stored after its claim was over", late.revision), "none", func() bool {
		for _, w := range t.wire.seen(s.key) {
			if w.deletes() && w.expects(late.revision) {
				return true
			}
		}
		return false
	})
	t.notHeld(x, "not held: the claim is over")
}

func repeatedAnswers(t *trial) {
	t.open()
	t.wire.govern(func(*write) fate { return fate{repeat: 2} })
	s := t.take(x)
	t.pause(1500 * time.Millisecond)
	t.expect(t.status(x).Held, "held", "not held")
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
	t.pause(settled)
	t.expect(!t.read(s.key).live(), "no record after the release", "%s", t.read(s.key))
	t.notHeld(x, "not held, after the release")
}

// lostRenewalAnswer lets the first renewal be stored, but loses its answer.
func lostRenewalAnswer(t *trial) {
	t.open()
	t.wire.govern(func(w *write) fate {
		if w.n == 2 {
			return fate{lose: true}
		}
		return fate{}
	})
	s := t.take(x)
	first := t.wire.seen(s.key)[0]
	t.pauseUntil(first.at.Add(t.validity() + 200*time.Millisecond))
	a := t.status(x)
	t.expect(a.Held, "held: its renewals were stored; only one answer was lost", "not held; its writes: %s", t.writes())
	t.expect(!t.program.toldLost(x), "no lost lock", `{"event":"lost"}`)
}

// ids makes the program claim locks, and compares the ids of the claims.
func ids(t *trial) {
	seen := map[string]string{}
	for run := range 2 {
		t.open() // the second time as a new run, as after a crash
		for _, name := range []string{"y", x, x, "z", x} {
			claim := fmt.Sprintf("a claim of %s by run %d of the program", name, run)
			id := text(t.take(name).fields["id"])
			t.expect(len(id) >= 16, "an id of at least 128 bits", "%q", id)
			t.expect(seen[id] == "", "a new id of "+claim, "%q again, the id of %s", id, seen[id])
			seen[id] = claim
			if name == x {
				t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
			}
		}
		for _, name := range []string{"y", "z"} { // held together with the others
			t.expect(t.ask(request{Do: "unlock", Name: name}).Result == "ok", "ok", "no ok from unlock")
		}
	}
}

// readable lists values for a place, both those that a reader must accept and those that it
// must not.
var readable = []struct {
	what  string
	value []byte
	place bool
}{
	{"fields in another order, of the greatest width, and unknown ones", concat(
		"\xde\x00\x07", "\xa3new\x93\x01\xc0\xc3", "\xd9\x01l\xd3\x00\x00\x00\x00\x00\x00\x00\x0f", "\xda\x00\x02id\xdb\x00\x00\x00\x05OTHER",
		"\xa1z\xc4\x02\x00\x00", "\xa1s\xce\x00\x00\x00\x02", "\xa1a\xcf\x00\x00\x00\x00\x00\x00\x00\x01", "\xa1v\xd1\x00\x01"), true},
	{"a map that claims 4 billion fields and has none", []byte("\xdf\xff\xff\xff\xff"), false},
	{"a string that claims 4 billion bytes and has none", concat("\x81\xa2id\xdb\xff\xff\xff\xff"), false},
	{"an unknown record version", record(2, "OTHER", 15*time.Second, map[string]any{"v": 2}), false},
	{"no id", record(2, "", 15*time.Second, nil), false},
	{"a status that is a string", record(2, "OTHER", 15*time.Second, map[string]any{"s": "2"}), false},
	{"an unknown status", record(6, "OTHER", time.Second, nil), false},
	{"a TTL that is a float", record(2, "OTHER", 15*time.Second, map[string]any{"l": 15.0}), false},
	{"a status that is a float", record(2, "OTHER", 15*time.Second, map[string]any{"s": float32(2)}), false},
	{"a ticket that is a float", record(2, "OTHER", 15*time.Second, map[string]any{"t": 1e13}), false},
	{"a TTL that is negative", record(2, "OTHER", 15*time.Second, map[string]any{"l": -1}), false},
	{"a TTL above 366 days", record(2, "OTHER", 15*time.Second, map[string]any{"l": 31622401}), false},
	{"a ticket above 2^63-1", record(2, "OTHER", 15*time.Second, map[string]any{"t": uint64(1) << 63}), false},
	{"257 permits", record(2, "OTHER", 15*time.Second, map[string]any{"q": 257}), false},
	{"metadata that is a number", record(2, "OTHER", 15*time.Second, map[string]any{"d": map[string]any{"n": 1}}), false},
	{"a padding of floats, and bytes after the map", append(record(2, "OTHER", 15*time.Second, map[string]any{"z": []any{1.5}}), 0xc1, 0), true},
	{"an owner that is nil, and a host in binary", record(2, "OTHER", 15*time.Second, map[string]any{"o": nil, "h": []byte("host")}), true},
}

func concat(parts ...string) []byte { return []byte(strings.Join(parts, "")) }

// placesReadable makes the program try a free lock whose queue contains one of the values in
// readable.
func placesReadable(t *trial) {
	t.open()
	for i, one := range readable {
		name := fmt.Sprintf("%s.%d", x, i)
		revision := t.put("lock."+name, record(1, "HOLDER", time.Minute, nil), 0, time.Minute)
		t.put("wait."+name+".OTHER", one.value, 0, 15*time.Second)
		t.erase("lock."+name, 4, "HOLDER", revision)
		a := t.try(name)
		if all := t.wire.seen("lock." + name); a.Result == "ok" && len(all) > 0 && all[0].stored > 0 && all[0].expects(0) {
			t.need(tooSlow("the tombstone had ended before the program tried"))
		}
		if one.place {
			t.expect(a.Result == "refused", `"refused": another client waits, whose place has `+one.what, "%s", a)
		} else {
			if a.Result != "ok" {
				t.violated(mustNotRead, `"ok": no client waits; a key of the queue holds `+one.what, "%s", a)
			}
		}
	}
}

func placeRenewal(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	ticket := b.place.revision
	if r := number(b.place.fields["t"]); r > 0 {
		ticket = r
	}
	t.eventually("a renewal of the place", "none", func() bool { return number(t.read(b.place.key).fields["r"]) > 0 })
	now := t.read(b.place.key)
	t.expect(number(now.fields["t"]) == ticket, fmt.Sprintf("the ticket %d", ticket), "%d", number(now.fields["t"]))
	t.expect(number(now.fields["s"]) == 2 && text(now.fields["id"]) == text(b.place.fields["id"]), "the same place", "%s", now)
	b.leaves(b.free())
	b.finish()
}

// placeAgain makes the client ahead of the program leave and then queue again under the same
// key.
func placeAgain(t *trial) {
	t.open()
	b := t.waitsBehind(x, 1)
	head := b.heads[0]
	t.ends(head)
	gone := t.read(head.key)
	t.put(head.key, record(2, "AGAIN", 15*time.Second, nil), gone.revision, 15*time.Second)
	again := t.read(head.key)
	t.pause(settled)
	b.free()
	at := time.Now()
	b.granted()
	t.expect(time.Since(at) < 5*time.Second, "a grant: the place ahead of its own has ended, and the new one under that key is later", "one after %v", time.Since(at).Round(time.Millisecond))
	t.untouched(again)
	for _, w := range t.wire.seen(b.place.key) {
		if w.deletes() && w.stored > 0 && number(w.fields["s"]) != 5 {
			t.expect(false, "a tombstone of status 5: its place was the first", "status %d", number(w.fields["s"]))
		}
	}
}

// overdueClock shows the program a server time at which the record is not yet overdue.
func overdueClock(t *trial) {
	before := t.forgotten()
	t.pause(1500 * time.Millisecond)
	t.start()
	t.wire.show(func(i map[string]any) { i["ts"] = before.at.Add(time.Second).UTC().Format(time.RFC3339Nano) })
	if a := t.ask(t.opening()); a.Result != "ok" {
		t.violated("The protocol of lines: a bucket that is fit is opened.", `"ok"`, "%s", a)
	}
	t.margin = t.usual()
	a := t.try(x)
	t.expect(a.Result != "ok", "no grant: the server's clock is 1 s past the time of the record, which has a TTL of 1 s, and another 300 ms must pass after that", "%s", a)
	t.untouched(before)
	t.wire.show(nil)
	t.eventually("ok: the record is overdue by the clock of the server", "no grant", func() bool { return t.try(x).Result == "ok" })
}

// overdueNotified notifies the program of a record that ended long ago.
func overdueNotified(t *trial) {
	t.open()
	b := t.waitsBehind(x, 0)
	past := time.Now().Add(-time.Hour)
	for i := range 3 {
		t.forgeAt(b.holder.key, b.holder.revision, record(1, "HOLDER", time.Second, nil), past, time.Second)
		t.forgeAt(b.holder.key, b.holder.revision+uint64(i)+1, record(1, "HOLDER", time.Second, nil), past, time.Second)
		t.pause(settled)
	}
	t.expect(len(b.claims()) == b.before, "no claim: the record that it reads has a TTL of a minute", "its writes: %s", t.writes())
	t.untouched(b.holder)
	b.free()
	b.granted()
}

// forgotten returns a record whose TTL the server has forgotten.
func (t *trial) forgotten() stored {
	dir, err := os.MkdirTemp("", "lockconform-")
	t.need(err)
	t.last(func() { _ = os.RemoveAll(dir) })
	store := filepath.Join(dir, "jetstream")
	stop := t.server(store, nil)
	t.put("lock."+x, record(1, "other", time.Second, nil), 0, time.Second)
	before := t.read("lock." + x)
	stop()
	t.need(forget(dir))
	t.last(t.server(store, nil))
	now := t.read("lock." + x)
	if now.revision != before.revision {
		t.need(fmt.Errorf("the server did not forget the TTL: %s", now))
	}
	return before
}

func overdue(t *trial) {
	before := t.forgotten()
	t.open()
	t.pause(1500 * time.Millisecond)
	a := t.try(x)
	t.expect(a.Result == "ok", `"ok": the existing record is overdue, and blocks no client`, "%s", a)
	t.granted(x, a)
	for _, w := range t.wire.seen("lock." + x) {
		if w.stored > 0 && !w.renewal() {
			t.expect(w.deletes() && w.expects(before.revision), fmt.Sprintf("a tombstone that expects %d, the overdue record", before.revision), "a %s", w.String())
			return
		}
	}
}
