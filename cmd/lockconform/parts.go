package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// The parts that have cases.
const (
	rwlock    = "rwlock"
	semaphore = "semaphore"
)

var ofParts = []*Case{
	// Reader-writer lock.
	{Name: "read", Level: 3, Part: rwlock, judge: reads, Must: "A reader must (M94) write its record with the header `Nats-Expected-Last-Subject-Sequence-Subject` naming `$KV.<bucket>.rw.<name>`", Also: "M28"},
	{Name: "read-renewal", Level: 3, Part: rwlock, judge: readRenewal, TTL: 2 * time.Second, Must: "A reader renews and releases its own record like any lease, without a guard, so that the expectation applies to its own key."},
	{Name: "read-behind-gate", Level: 3, Part: rwlock, judge: readBehindGate, Must: "A reader must not (M96) claim at that revision until it has read a tombstone there."},
	{Name: "read-again", Level: 3, Part: rwlock, judge: readAgain, TTL: 10 * time.Second, Must: "An attempt to join that follows an unanswered one must (M95) have a new id and therefore a new key, because the expectation does not protect the reader's key."},
	{Name: "read-clean-up", Level: 3, Part: rwlock, judge: readCleanUp, TTL: 10 * time.Second, Must: "To clean up after an attempt, the client must not (M63) write at its E, which refers to the gate."},
	{Name: "read-behind-writer", Level: 3, Part: rwlock, judge: readBehindWriter, Must: "A reader must (M97) wait for earlier *writers*, but not for other readers once it knows that no writer is ahead of it. A writer must (M98) wait for every earlier waiter."},
	{Name: "read-beside-readers", Level: 3, Part: rwlock, judge: readBesideReaders, Must: "A reader must (M97) wait for earlier *writers*, but not for other readers once it knows that no writer is ahead of it. A writer must (M98) wait for every earlier waiter."},
	{Name: "write", Level: 3, Part: rwlock, judge: writes, Must: "A *writer* takes the *gate* `rw.<name>` like a mutex, with the queue `rwait.<name>.*`."},
	{Name: "write-behind-reader", Level: 3, Part: rwlock, judge: writeBehindReader, Must: "A reader must (M97) wait for earlier *writers*, but not for other readers once it knows that no writer is ahead of it. A writer must (M98) wait for every earlier waiter."},
	{Name: "try-write", Level: 3, Part: rwlock, judge: tryWrite, Must: "A writer that has taken the gate must (M99) wait for proof that all earlier readers have left."},
	{Name: "drain", Level: 3, Part: rwlock, judge: drain, Must: "A writer that has taken the gate must (M99) wait for proof that all earlier readers have left."},
	{Name: "drain-forged", Level: 3, Part: rwlock, judge: drainForged, Must: "A named reader must not (M102) count as having left until the writer has read that reader's tombstone."},
	{Name: "drain-broken", Level: 3, Part: rwlock, judge: drainBroken, Must: "A broken reader is live."},
	{Name: "drain-old-answer", Level: 3, Part: rwlock, judge: drainOldAnswer, Must: "its `last_seq` is at or above the revision of an acknowledged write of the gate,", Also: "M99"},
	{Name: "drain-anew", Level: 3, Part: rwlock, judge: drainAnew, Must: "it shows the creation time of the bucket, which must (M101) be the same in all answers."},
	{Name: "drain-twice", Level: 5, Part: rwlock, judge: drainTwice, Must: "So the proof must (M103) be **two** complete answers"},
	{Name: "drain-incomplete", Level: 5, Part: rwlock, judge: drainIncomplete, Must: "A key that an incomplete answer does not name, a 404 and an empty list prove nothing, so a client must not (M40) treat them as absence where a rule asks for a state."},

	// Semaphore.
	{Name: "permit", Level: 3, Part: semaphore, judge: permit, Must: "A semaphore has 1 to 256 permits, and permit k is the slot `sem.<name>.<k>`."},
	{Name: "permit-full", Level: 3, Part: semaphore, judge: permitFull, Must: "A client that assumes n permits must not (M104) claim slot n or any slot above it."},
	{Name: "permit-queue", Level: 3, Part: semaphore, judge: permitQueue, Must: "Except out of turn, a waiter must not (M105) claim a slot until it is first in the queue."},
	{Name: "permit-newcomer", Level: 3, Part: semaphore, judge: permitNewcomer, Must: "If the queue contains a place, the newcomer queues."},
	{Name: "permit-unequal", Level: 3, Part: semaphore, judge: permitUnequal, Must: "a free slot at or above that number does not show that the head is dead, and no waiter claims it out of turn."},
	{Name: "permit-late", Level: 3, Part: semaphore, judge: permitLate, TTL: 10 * time.Second, Must: "A claim of one slot must (M108) be over before the claim of another begins. A late acknowledgment for the first slot must not (M109) lead to a second grant."},
}

const guardHeader = "Nats-Expected-Last-Subject-Sequence-Subject"

// puts writes another client's record, which lasts for a minute.
func (t *trial) puts(key string, status int, id string, more map[string]any) stored {
	t.put(key, record(status, id, time.Minute, more), 0, time.Minute)
	return t.read(key)
}

// ends makes the client that wrote a record end it.
func (t *trial) ends(s stored) { t.erase(s.key, 4, text(s.fields["id"]), s.revision) }

// of returns a request for the part's lock.
func of(do, kind string, permits int) request {
	r := request{Do: do, Name: x, Kind: kind, Permits: permits}
	if do == "lock" {
		r.Wait = (30 * time.Second).Milliseconds()
	}
	return r
}

// asked is a request that has not been answered yet.
type asked struct {
	t  *trial
	r  request
	ch <-chan answer
}

func (t *trial) asks(r request) *asked { return &asked{t, r, t.send(r)} }

// notBefore requires that no answer arrive for d.
func (a *asked) notBefore(d time.Duration, expected string) {
	select {
	case got := <-a.ch:
		a.t.expect(false, expected, "%s; its writes: %s", got, a.t.writes())
	case <-time.After(d):
	}
}

// granted waits for the grant, and returns the write that created its record.
func (a *asked) granted(prefix, expected string) write {
	got := a.t.answered(a.r, a.ch)
	return a.t.holds(prefix, got, expected)
}

// holds judges a grant, and returns the newest claim under prefix.
func (t *trial) holds(prefix string, a answer, expected string) (first write) {
	t.expect(a.Result == "ok", `"ok": `+expected, "%s", a)
	for _, w := range t.wire.seen("") {
		if strings.HasPrefix(w.key, prefix) && w.stored > 0 && !w.deletes() && !w.renewal() {
			first = w // the newest claim
		}
	}
	t.expect(first.stored > 0, "a record under "+prefix, "its writes: %s", t.writes())
	s := t.read(first.key)
	t.expect(s.live() && number(s.fields["s"]) == 1, "a record of status 1 after the answer ok", "%s", s)
	t.expect(a.Token == first.stored<<6, fmt.Sprintf("the token %d, of the first write of the claim", first.stored<<6), "%d", a.Token)
	left := time.Duration(a.Left) * time.Millisecond
	over := left - t.validity() - rounding
	t.expect(over <= 0, fmt.Sprintf("a validity of at most %v", t.validity()), "%v left", left)
	return first
}

// joins returns the program's attempts to take the read lock.
func (t *trial) joins() (all []write) {
	for _, w := range t.wire.seen("") {
		if strings.HasPrefix(w.key, "read."+x+".") && !w.deletes() && !w.renewal() {
			all = append(all, w)
		}
	}
	return all
}

func (t *trial) unlocks(kind string, permits int) {
	a := t.ask(of("unlock", kind, permits))
	t.expect(a.Result == "ok", `"ok" from unlock`, "%s", a)
}

func reads(t *trial) {
	t.open()
	t.puts("read."+x+".OTHER", 1, "OTHER", map[string]any{"m": 1})
	w := t.holds("read."+x+".", t.ask(of("try", "read", 0)), "another client reads, and no client writes")
	t.expect(w.header.Get(guardHeader) == "$KV."+t.bucket+".rw."+x, "the guard $KV."+t.bucket+".rw."+x, "%q", w.header.Get(guardHeader))
	t.expect(w.expects(0), "an attempt that expects 0, of the gate", "a %s", w.String())
	t.expect(strings.HasSuffix(w.key, "."+text(w.fields["id"])) && number(w.fields["m"]) == 1, "the id in the key, and m 1", "the id %q, and m %d", text(w.fields["id"]), number(w.fields["m"]))
	t.unlocks("read", 0)
	t.expect(t.read(w.key).deleted(), "a tombstone of "+w.key, "%s", t.read(w.key))
	// The same must hold after a writer has left.
	t.ends(t.puts("rw."+x, 1, "WRITER", nil))
	gone, key := t.read("rw."+x), w.key
	w = t.holds("read."+x+".", t.ask(of("try", "read", 0)), "no client writes")
	t.expect(w.key != key, "a different key from the previous one", "%s", w.key)
	t.expect(w.expects(gone.revision) || t.read("rw."+x).revision == 0, fmt.Sprintf("an attempt that expects %d, the tombstone of the gate", gone.revision), "a %s", w.String())
}

func readRenewal(t *trial) {
	t.open()
	w := t.holds("read."+x+".", t.ask(of("try", "read", 0)), "no client writes")
	expect := w.stored
	t.eventually("two renewals", "fewer", func() bool { return number(t.read(w.key).fields["r"]) >= 2 })
	for _, r := range t.wire.seen(w.key) {
		if r.renewal() && r.stored > 0 {
			t.expect(r.header.Get(guardHeader) == "", "a renewal without a guard", "the guard %q", r.header.Get(guardHeader))
			t.expect(r.expects(expect), fmt.Sprintf("a renewal that expects %d, the previous revision", expect), "a %s", r.String())
			expect = r.stored
		}
	}
	t.unlocks("read", 0)
}

func readBehindGate(t *trial) {
	t.open()
	gate := t.puts("rw."+x, 1, "WRITER", nil)
	a := t.ask(of("try", "read", 0))
	t.expect(a.Result == "refused", `"refused": another client writes`, "%s", a)
	waits := t.asks(of("lock", "read", 0))
	for range 3 {
		t.forge(gate.key, gate.revision, record(4, "WRITER", 0, nil), true)
		waits.notBefore(settled, "no grant: another client writes")
	}
	for _, w := range t.joins() {
		t.expect(!w.expects(gate.revision), fmt.Sprintf("no attempt that expects %d, the standing gate", gate.revision), "a %s", w.String())
		t.expect(w.header.Get(guardHeader) == "$KV."+t.bucket+".rw."+x, "the guard of the gate in each attempt", "a %s with %q", w.String(), w.header.Get(guardHeader))
	}
	t.untouched(gate)
	t.ends(gate)
	waits.granted("read."+x+".", "the writer has left")
}

// readAgain drops the first attempt to join, and lets the second one pass.
func readAgain(t *trial) {
	t.open()
	n := 0
	t.wire.govern(func(w *write) fate {
		if strings.HasPrefix(w.key, "read.") && !w.deletes() && !w.renewal() {
			if n++; n == 1 {
				return fate{drop: true}
			}
		}
		return fate{}
	})
	waits := t.asks(of("lock", "read", 0))
	waits.granted("read."+x+".", "no client writes")
	seen := map[string]bool{}
	for _, w := range t.joins() {
		t.expect(!seen[w.key], "a new key for each attempt", "two attempts under %s", w.key)
		seen[w.key] = true
	}
}

// readCleanUp drops two attempts, and checks what the program deletes.
func readCleanUp(t *trial) {
	t.open()
	t.ends(t.puts("rw."+x, 1, "WRITER", nil))
	n := 0
	t.wire.govern(func(w *write) fate {
		if strings.HasPrefix(w.key, "read.") && !w.deletes() && !w.renewal() {
			if n++; n <= 2 {
				return fate{drop: true}
			}
		}
		return fate{}
	})
	a := t.ask(of("try", "read", 0))
	if a.Result == "ok" {
		t.unlocks("read", 0)
	}
	t.pause(2 * settled)
	for _, w := range t.wire.seen("rw." + x) {
		t.expect(w.deletes() && strings.HasPrefix(w.expect(), "9999"), "no write to the gate: the program reads", "a %s", w.String())
	}
}

func readBehindWriter(t *trial) {
	t.open()
	t.puts("read."+x+".OTHER", 1, "OTHER", map[string]any{"m": 1})
	gate := t.puts("rw."+x, 1, "WRITER", nil)
	writer := t.puts("rwait."+x+".NEXT", 2, "NEXT", nil)
	waits := t.asks(of("lock", "read", 0))
	waits.notBefore(settled, "no grant: another client writes")
	t.ends(gate)
	waits.notBefore(window/2, "no grant: another client waits to write")
	t.expect(t.read(writer.key).live(), "the place of the writer, as before", "%s", t.read(writer.key))
	for _, w := range t.joins() {
		t.expect(w.stored == 0, "no join before the writer's turn", "a %s that was stored", w.String())
	}
	t.ends(writer)
	waits.granted("read."+x+".", "no client waits ahead of it")
}

func readBesideReaders(t *trial) {
	t.open()
	gate := t.puts("rw."+x, 1, "WRITER", nil)
	reader := t.puts("rwait."+x+".READER", 2, "READER", map[string]any{"m": 1})
	waits := t.asks(of("lock", "read", 0))
	waits.notBefore(settled, "no grant: another client writes")
	t.ends(gate)
	waits.granted("read."+x+".", "only a reader waits ahead of it")
	t.expect(t.read(reader.key).revision == reader.revision, "the place of the other reader, as before", "%s", t.read(reader.key))
	var left write
	t.eventually("the end of its place", "still there", func() bool {
		for _, w := range t.wire.seen("") {
			if strings.HasPrefix(w.key, "rwait."+x+".") && w.deletes() && w.stored > 0 {
				left = w
			}
		}
		return left.stored > 0
	})
	if status := number(left.fields["s"]); status != 9 {
		t.violated(mustLeave, "a tombstone of status 9: another reader was queued ahead of it", "status %d", status)
	}
}

func writes(t *trial) {
	t.open()
	other := t.puts("rw."+x, 1, "WRITER", nil)
	a := t.ask(of("try", "write", 0))
	t.expect(a.Result == "refused", `"refused": another client writes`, "%s", a)
	waits := t.asks(of("lock", "write", 0))
	var place write
	t.eventually("a place under rwait."+x, "none", func() bool {
		for _, w := range t.wire.seen("") {
			if strings.HasPrefix(w.key, "rwait."+x+".") && w.stored > 0 {
				place = w
			}
		}
		return place.stored > 0
	})
	t.expect(number(place.fields["m"]) == 0, "a place without m, of a writer", "m %d", number(place.fields["m"]))
	t.untouched(other)
	t.ends(other)
	waits.granted("rw."+x, "the other writer has left")
	t.unlocks("write", 0)
	t.expect(!t.read("rw."+x).live(), "no gate after the release", "%s", t.read("rw."+x))
}

func writeBehindReader(t *trial) {
	t.open()
	gate := t.puts("rw."+x, 1, "WRITER", nil)
	reader := t.puts("rwait."+x+".READER", 2, "READER", map[string]any{"m": 1})
	waits := t.asks(of("lock", "write", 0))
	waits.notBefore(settled, "no grant: another client writes")
	t.ends(gate)
	waits.notBefore(window/2, "no grant: another client waits to read")
	t.ends(reader)
	waits.granted("rw."+x, "no client waits ahead of it")
}

func tryWrite(t *trial) {
	t.open()
	reader := t.puts("read."+x+".OTHER", 1, "OTHER", map[string]any{"m": 1})
	a := t.ask(of("try", "write", 0))
	t.expect(a.Result == "refused", `"refused": another client reads`, "%s", a)
	t.eventually("no gate", "still there", func() bool { return !t.read("rw." + x).live() })
	t.untouched(reader)
}

// draining makes the program request the write lock while another client reads. It returns the
// reader's record, the gate and the program's request.
func (t *trial) draining(status int) (reader, gate stored, waits *asked) {
	t.open()
	reader = t.puts("read."+x+".OTHER", status, "OTHER", map[string]any{"m": 1, "t": 64})
	waits = t.asks(of("lock", "write", 0))
	t.eventually("a gate", "none", func() bool { gate = t.read("rw." + x); return gate.live() })
	waits.notBefore(settled, "no grant: another client reads")
	return reader, gate, waits
}

func drain(t *trial) {
	reader, _, waits := t.draining(1)
	waits.notBefore(2*settled, "no grant: another client reads")
	t.untouched(reader)
	t.ends(reader)
	waits.granted("rw."+x, "the reader has left")
}

func drainForged(t *trial) {
	reader, _, waits := t.draining(1)
	for range 3 {
		t.forge(reader.key, reader.revision+1, record(4, "OTHER", 0, nil), true)
		waits.notBefore(settled, "no grant: another client reads")
	}
	t.ends(reader)
	waits.granted("rw."+x, "the reader has left")
}

func drainBroken(t *trial) {
	reader, _, waits := t.draining(3)
	waits.notBefore(2*settled, "no grant: the broken reader may still be stopping")
	t.ends(reader)
	waits.granted("rw."+x, "the reader has left")
}

// drainOldAnswer answers with a state that predates the gate and lists no reader.
func drainOldAnswer(t *trial) {
	t.open()
	reader := t.puts("read."+x+".OTHER", 1, "OTHER", map[string]any{"m": 1})
	t.wire.show(func(i map[string]any) {
		if state, ok := i["state"].(map[string]any); ok {
			state["last_seq"] = reader.revision - 1
			delete(state, "subjects")
			i["total"] = 0
		}
	})
	waits := t.asks(of("lock", "write", 0))
	waits.notBefore(3*settled, "no grant: another client reads, and the answers are older than the gate")
	t.wire.show(nil)
	t.ends(reader)
	t.grantedOrNot(waits)
}

// drainAnew answers as a bucket created later would.
func drainAnew(t *trial) {
	_, _, waits := t.draining(1)
	t.wire.show(func(i map[string]any) {
		if state, ok := i["state"].(map[string]any); ok {
			i["created"] = time.Now().UTC().Format(time.RFC3339Nano)
			delete(state, "subjects")
			i["total"] = 0
		}
	})
	t.pause(3 * settled)
	t.wire.show(nil)
	select {
	case a := <-waits.ch:
		t.expect(a.Result != "ok", "no grant: the answers come from a bucket that was created later", "%s", a)
	default:
	}
}

// replicated makes a stream info look like that of a stream with three replicas. Unless led is
// set, the stream info names no leader, and is therefore incomplete.
func replicated(i map[string]any, led bool) {
	if c, ok := i["config"].(map[string]any); ok {
		c["num_replicas"] = 3
	}
	cluster := map[string]any{"name": "conform", "replicas": []any{
		map[string]any{"name": "n1", "current": true, "active": 1000}, map[string]any{"name": "n2", "current": true, "active": 1000},
	}}
	if led {
		cluster["leader"], cluster["leader_since"] = "n0", "2026-01-01T00:00:00Z"
	}
	i["cluster"] = cluster
}

// drainTwice makes the program write in a bucket that appears to have three replicas.
func drainTwice(t *trial) {
	t.start()
	t.wire.show(func(i map[string]any) { replicated(i, true) })
	t.opened()
	a := t.ask(of("lock", "write", 0))
	w := t.holds("rw."+x, a, "no client reads")
	renewed := 0
	for _, one := range t.wire.seen(w.key) {
		if one.renewal() && one.stored > 0 {
			renewed++
		}
	}
	t.expect(renewed > 0, "a renewal of the gate between two answers, before the grant", "no renewal; its writes: %s", t.writes())
}

// drainIncomplete gives the program answers that list neither a reader nor a leader.
func drainIncomplete(t *trial) {
	t.start()
	t.wire.show(func(i map[string]any) { replicated(i, true) })
	t.opened()
	t.puts("read."+x+".OTHER", 1, "OTHER", map[string]any{"m": 1})
	waits := t.asks(of("lock", "write", 0))
	t.eventually("a gate", "none", func() bool { return t.read("rw." + x).live() })
	t.wire.show(func(i map[string]any) {
		replicated(i, false)
		if state, ok := i["state"].(map[string]any); ok {
			delete(state, "subjects")
			i["total"] = 0
		}
	})
	t.pause(3 * settled)
	select {
	case a := <-waits.ch:
		t.expect(a.Result != "ok", "no grant: another client reads, and no answer has named a leader", "%s", a)
	default:
	}
}

// grantedOrNot waits for an answer, which may be an error because the program may have given
// up.
func (t *trial) grantedOrNot(waits *asked) {
	if a := t.answered(waits.r, waits.ch); a.Result != "error" {
		t.holds("rw."+x, a, "no client reads")
	}
}

func slot(k int) string { return fmt.Sprintf("sem.%s.%d", x, k) }

func permit(t *trial) {
	t.open()
	t.puts(slot(0), 1, "OTHER0", map[string]any{"q": 3})
	t.puts(slot(2), 1, "OTHER2", map[string]any{"q": 3})
	w := t.holds("sem."+x+".", t.ask(of("try", "permit", 3)), "a slot is free")
	t.expect(w.key == slot(1), "the slot "+slot(1), "%s", w.key)
	t.expect(number(w.fields["q"]) == 3, "the field q 3", "%d", number(w.fields["q"]))
	t.unlocks("permit", 3)
	t.expect(!t.read(w.key).live(), "no record after the release", "%s", t.read(w.key))
}

func permitFull(t *trial) {
	t.open()
	var all []stored
	for k := range 2 {
		all = append(all, t.puts(slot(k), 1, fmt.Sprint("OTHER", k), map[string]any{"q": 4}))
	}
	a := t.ask(of("try", "permit", 2))
	t.expect(a.Result == "refused", `"refused": the two slots that it knows are held`, "%s", a)
	waits := t.asks(of("lock", "permit", 2))
	waits.notBefore(2*window, "no grant: the two slots that it knows are held")
	for _, w := range t.wire.seen("") {
		t.expect(!strings.HasPrefix(w.key, "sem.") || w.key == slot(0) || w.key == slot(1), "no write to a slot at or above 2", "a %s", w.String())
	}
	t.ends(all[1])
	w := waits.granted("sem."+x+".", "a slot is free")
	t.expect(w.key == slot(1), "the slot "+slot(1), "%s", w.key)
}

// full fills every slot and queues one waiter.
func (t *trial) full(permits, q int) (slots []stored, head stored) {
	for k := range permits {
		slots = append(slots, t.puts(slot(k), 1, fmt.Sprint("OTHER", k), map[string]any{"q": permits}))
	}
	return slots, t.puts("swait."+x+".HEAD", 2, "HEAD", map[string]any{"q": q})
}

func permitQueue(t *trial) {
	t.open()
	slots, head := t.full(2, 2)
	waits := t.asks(of("lock", "permit", 2))
	waits.notBefore(settled, "no grant: all slots are held")
	t.ends(slots[0])
	waits.notBefore(window/2, "no grant: another client waits ahead of it")
	t.ends(head)
	waits.granted("sem."+x+".", "no client waits ahead of it")
}

func permitNewcomer(t *trial) {
	t.open()
	slots, _ := t.full(2, 2)
	gone := t.publish(slots[1].key, nil, slots[1].revision, nats.Header{"Nats-TTL": {"1s"}, "KV-Operation": {"DEL"}})
	a := t.ask(of("try", "permit", 2))
	t.expect(a.Result == "refused", `"refused": a slot is free, but another client waits for it`, "%s", a)
	now := t.read(slots[1].key)
	t.expect(!now.live() && now.revision <= gone, "a slot that is free", "%s", now)
}

// permitUnequal frees a slot that the head of the queue does not know about.
func permitUnequal(t *trial) {
	t.open()
	slots, head := t.full(2, 1)
	waits := t.asks(of("lock", "permit", 2))
	waits.notBefore(settled, "no grant: all slots are held")
	t.ends(slots[1])
	waits.notBefore(2*window, "no grant: another client waits ahead of it, for the slot 0")
	t.expect(t.read(head.key).live(), "the place of the other, as before", "%s", t.read(head.key))
	t.ends(head)
	w := waits.granted("sem."+x+".", "no client waits ahead of it")
	t.expect(w.key == slot(1), "the slot "+slot(1), "%s", w.key)
}

// permitLate answers the first claim at a time when the program may already have sent another.
func permitLate(t *trial) {
	t.open()
	var first string
	t.wire.govern(func(w *write) fate {
		if !strings.HasPrefix(w.key, "sem.") || w.deletes() || w.renewal() {
			return fate{}
		}
		if first == "" {
			first = w.key
			return fate{after: 2500 * time.Millisecond}
		}
		return fate{}
	})
	waits := t.asks(of("lock", "permit", 3))
	a := t.answered(waits.r, waits.ch)
	t.expect(a.Result == "ok", `"ok": three slots are free`, "%s", a)
	t.pause(2500*time.Millisecond + settled)
	var live []string
	for k := range 3 {
		if t.read(slot(k)).live() {
			live = append(live, slot(k))
		}
	}
	t.expect(len(live) == 1, "one slot with a record", "%v; its writes: %s", live, t.writes())
}
