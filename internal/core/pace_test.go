package core

import (
	"container/heap"
	"testing"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// pacedRecord is a record that is renewed, and pacedFinal is a write that ends one.
type pacedRecord struct {
	name string
	slot int32
}

func (r *pacedRecord) Slot() *int32 { return &r.slot }

type pacedFinal struct {
	name string
	turn Turn
}

func (f *pacedFinal) Turn() *Turn { return &f.turn }

// story is a pace together with its records by name.
type story struct {
	t *testing.T
	Pace[*pacedRecord, *pacedFinal]
	now clock.Instant
	all map[byte]*pacedRecord
}

func tell(t *testing.T) *story {
	return &story{t: t, now: -5_000_000_000, all: map[byte]*pacedRecord{}}
}

// wants requests renewals of the named records, which remain valid for left.
func (s *story) wants(names string, left time.Duration) {
	for i := range len(names) {
		k := s.all[names[i]]
		if k == nil {
			k = &pacedRecord{names[i : i+1], NotReady}
			s.all[names[i]] = k
		}
		s.QueueRenewal(k, s.now.Add(left-left/3), s.now.Add(left))
	}
}

// sends checks which records are renewed now, and in which order.
func (s *story) sends(want string) {
	s.t.Helper()
	got := ""
	for k, _, _ := s.Next(s.now); k != nil; k, _, _ = s.Next(s.now) {
		got += k.name
	}
	if got != want {
		s.t.Fatalf("sent %q, not %q", got, want)
	}
}

func (s *story) wait(d time.Duration) { s.now = s.now.Add(d) }

func TestPaceOrder(t *testing.T) {
	s := tell(t)
	s.wants("c", 3*time.Second)
	s.wants("a", time.Second)
	s.wants("b", 2*time.Second)
	s.wants("a", time.Hour) // already waiting
	s.sends("abc")
	s.sends("")
	s.wants("ab", time.Second)
	s.Drop(s.all['a'])
	s.sends("b")
}

// Records that a reply would reach too late come last, and are forgotten when they have ended.
func TestPaceLate(t *testing.T) {
	s := tell(t)
	s.wants("x", time.Minute)
	s.sends("x")
	s.wait(700 * time.Millisecond)
	s.AnswerArrived(1, 700*time.Millisecond, s.now)
	s.wants("abc", 600*time.Millisecond)
	s.wants("d", 800*time.Millisecond)
	s.Drop(s.all['b'])
	s.sends("dac")
}

// The number of writes under way is bounded, first by a constant and then by the rate of
// replies.
func TestPaceBound(t *testing.T) {
	s := tell(t)
	many := func(n int) (sent int) {
		for i := range n {
			k := &pacedRecord{slot: NotReady}
			s.QueueRenewal(k, s.now, s.now.Add(time.Duration(i)+time.Minute))
		}
		for k, _, _ := s.Next(s.now); k != nil; k, _, _ = s.Next(s.now) {
			sent++
		}
		return sent
	}
	equal := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Fatalf("%s: %d, not %d", what, got, want)
		}
	}
	equal("at first", many(5000), leastUnderWay)
	if s.Resumes() {
		t.Fatal("resumes without answers")
	}
	for n := range leastUnderWay / 2 {
		if s.Resumes() {
			t.Fatal("resumes for few")
		}
		s.wait(time.Millisecond)
		s.AnswerArrived(uint64(n+1), 10*time.Millisecond, s.now)
	}
	if !s.Resumes() {
		t.Fatal("does not resume")
	}
	equal("half of them", many(0), leastUnderWay/2)
	// At 4,000 replies a second, each after 10 ms, 1,040 writes may be under way.
	for s.sent < 4000 {
		s.wait(time.Second / 4000)
		s.AnswerArrived(s.answered+1, 10*time.Millisecond, s.now)
		many(1)
	}
	s.wait(time.Second)
	s.AnswerArrived(s.sent, 10*time.Millisecond, s.now)
	if n := many(0); n < 700 || n > 1100 {
		t.Fatalf("%d under way", n)
	}
	s.parts = 3000 * whole
	if n := many(0); n < 1900 || n > 2300 {
		t.Fatalf("%d more under way for many records", n)
	}
	s.parts = 0
	// After a second of silence the outstanding replies are written off.
	equal("no more", many(0), 0)
	s.wait(deaf)
	if n := many(0); n < leastUnderWay {
		t.Fatalf("%d after silence", n)
	}
}

// A renewal that is queued behind others is not repeated. It is repeated if others have
// overtaken it, or if nothing has been heard since it was sent.
func TestPaceUnderWay(t *testing.T) {
	s := tell(t)
	s.wants("a", time.Minute)
	s.wants("b", 2*time.Minute)
	s.wants("c", 3*time.Minute)
	s.sends("abc")
	b := Renewal{paced: 2, at: s.now}
	check := func(want bool) {
		t.Helper()
		if s.UnderWay(b, s.now) != want {
			t.Fatal(!want)
		}
	}
	s.wait(100 * time.Millisecond)
	check(false) // nothing has been heard yet
	s.AnswerArrived(1, 100*time.Millisecond, s.now)
	check(true)
	s.wait(900 * time.Millisecond)
	check(false) // it has taken much longer than the others
	b.at = s.now
	s.AnswerArrived(1, 100*time.Millisecond, s.now+1)
	check(true)
	s.wait(time.Millisecond)
	b.at = s.now // silence again: twice as long as the last one is not too long
	s.wait(200 * time.Millisecond)
	check(true)
	s.wait(1)
	check(false)
	s.AnswerArrived(3, 100*time.Millisecond, s.now)
	check(false)
	b = Renewal{}
	check(false)
}

// A renewal that could not be sent leaves its room to others, even after a reconnect.
func TestPaceUnsent(t *testing.T) {
	s := tell(t)
	for range 3 * leastUnderWay {
		s.wants("a", time.Minute)
		if k, _, n := s.Next(s.now); k == nil || n != 1 {
			t.Fatal(n)
		}
		s.WriteNotSent(s.sent)
	}
	s.wants("a", time.Minute)
	s.sends("a")
	s.Reset()
	s.WriteNotSent(s.sent)
	s.wants("a", time.Minute)
	s.sends("a")
}

// Writes that end records take turns with renewals that are on time but come after renewals
// that are late.
func TestPaceFinals(t *testing.T) {
	s := tell(t)
	for range leastUnderWay {
		if s.Take(s.now) == 0 {
			t.Fatal("waits for nothing")
		}
	}
	if s.Take(s.now) != 0 {
		t.Fatal("more under way than are to be")
	}
	s.wants("ab", time.Minute)
	s.wants("l", time.Minute)
	s.ready[s.all['l'].slot].late = s.now
	s.ready[s.all['l'].slot].end = s.now.Add(time.Second)
	heap.Init(&s.ready)
	for _, key := range []string{"1", "2", "3", "4", "5"} {
		s.finals = append(s.finals, &pacedFinal{key, Turn{Queued: true, Over: key == "2"}})
	}
	s.Reset() // makes room
	if s.Take(s.now) != 0 {
		t.Fatal("overtakes those that wait")
	}
	got := ""
	for k, f, n := s.Next(s.now); n > 0; k, f, n = s.Next(s.now) {
		if k != nil {
			got += k.name
		} else {
			got += f.name
		}
	}
	if got != "l1a3b45" {
		t.Fatal(got)
	}
	s.finals = append(s.finals, &pacedFinal{name: "6"})
	s.sent += 2 * leastUnderWay
	s.Open = true // the client is closed
	if s.Take(s.now) == 0 {
		t.Fatal("waits on a client that is closed")
	}
}

// An unused number is assigned again, unless another one has been taken since.
func TestPaceUnsentBefore(t *testing.T) {
	s := tell(t)
	s.wants("a", time.Minute)
	_, _, n := s.Next(s.now)
	if s.Take(s.now) != n+1 {
		t.Fatal("not the next number")
	}
	s.WriteNotSent(n)
	if s.sent != n+1 || s.answered > s.sent {
		t.Fatal(s.sent, s.answered)
	}
}

// Renewals are behind when they are late and have to wait for the replies to others.
func TestPaceBehind(t *testing.T) {
	s := tell(t)
	check := func(want time.Duration) {
		t.Helper()
		if by := s.Behind(s.now); by != want {
			t.Fatal(by)
		}
	}
	check(0)
	s.wants("b", time.Hour)
	s.wants("a", 3*time.Second)
	s.wait(2500 * time.Millisecond)
	check(0) // it is about to be sent
	s.sent += leastUnderWay
	check(500 * time.Millisecond)
	s.Drop(s.all['a'])
	check(0)
}
