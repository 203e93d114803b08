package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// trial plays the events of one claim, named "mine", in the order in which they happen:
//
//	c.at(0).sends(0)                          // attempt 1, sent at 0 s, expects 0
//	c.at(2).sends(0)                          // attempt 2, because there is no reply
//	c.refuses(2, 7).judged("refused by 7")    // attempt 2 is refused: the key is at revision 7
//	c.finds(own(7, 1)).is("granted 1 at 7")   // record 7 was written by attempt 1
//
// Each attempt is valid for 9 s. Replies are queued until they are judged, in order of arrival. Once the
// claim is over, no reply is judged any more:
//
//	c.closes(1).over("open 2")                // attempt 2 has no reply
//	c.acknowledges(2, 8).over("delete 8")     // its record must be deleted
type trial struct {
	t     *testing.T
	claim Claim
	now   clock.Instant
	floor uint64 // the highest known revision
	group bool   // there are replicas, so a deposed leader may reply
	said  string // the core's response to the last event
}

// valid is the validity of an attempt.
const valid = 9 * time.Second

func newTrial(t *testing.T) *trial {
	c := &trial{t: t}
	c.claim.Begin("mine")
	return c
}

func (c *trial) at(seconds int) *trial {
	c.now = clock.Instant(0).Add(time.Duration(seconds) * time.Second)
	return c
}

// justBefore sets the time to the last instant before seconds.
func (c *trial) justBefore(seconds int) *trial {
	c.at(seconds).now--
	return c
}

func (c *trial) sends(expect uint64) *trial {
	c.claim.AttemptSent(Attempt{Expect: expect, Terms: clock.Terms{TTL: valid + time.Second, Margin: time.Second}, Sent: c.now, Floor: c.floor})
	return c
}

func (c *trial) answers(n int, a Answer) *trial {
	c.said = "nothing"
	if c.claim.AnswerArrived(Reply{N: n, Answer: a, At: c.now}, !c.group) {
		c.said = fmt.Sprintf("delete %d", a.Revision)
	}
	return c
}

func (c *trial) acknowledges(n int, revision uint64) *trial {
	return c.answers(n, Answer{Revision: revision})
}

// refuses delivers a refusal: the key is at revision last, or empty if last is 0.
func (c *trial) refuses(n int, last uint64) *trial {
	return c.answers(n, Answer{Refusal: Conflict, Last: last})
}

// fails delivers any other reply.
func (c *trial) fails(n int, why Refusal) *trial { return c.answers(n, Answer{Refusal: why}) }

// judged judges the next reply.
func (c *trial) judged(want string) *trial {
	c.t.Helper()
	r, more := c.claim.Next()
	require.True(c.t, more, "no answer is to be judged")
	c.said = told(c.claim.JudgeReply(r, c.claim.Attempts(), c.now))
	return c.is(want)
}

// finds delivers the record that was read, as of the revision that refused the newest attempt.
func (c *trial) finds(e record.Entry) *trial {
	c.said = told(c.claim.RecordRead(e, c.now))
	return c
}

// closes ends the claim with the grant of attempt n, or gives it up if n is 0. The core lists the
// records to delete and the attempts still open, and adds "found" if the granted attempt's record was
// found by a read.
func (c *trial) closes(n int) *trial {
	unwanted, open, found := c.claim.Close(n)
	var all []string
	for _, revision := range unwanted {
		all = append(all, fmt.Sprintf("delete %d", revision))
	}
	for _, a := range open {
		all = append(all, fmt.Sprintf("open %d", a.N))
	}
	if found {
		all = append(all, "found")
	}
	if c.said = strings.Join(all, ", "); c.said == "" {
		c.said = "nothing"
	}
	return c
}

// over requires the core's response to the last event of a claim that is over, and that no reply is left
// to be judged.
func (c *trial) over(want string) *trial {
	c.t.Helper()
	_, more := c.claim.Next()
	require.False(c.t, more, "an answer is to be judged after the end")
	return c.is(want)
}

// is requires the core's response to the last event.
func (c *trial) is(want string) *trial {
	c.t.Helper()
	require.Equal(c.t, want, c.said)
	return c
}

// told puts a verdict into the words of these tests.
func told(v Verdict) string {
	said := [...]string{
		Undecided: "nothing", Granted: fmt.Sprintf("granted %d at %d", v.N, v.Revision), Again: "again", Free: "free",
		Refused: fmt.Sprintf("refused by %d", v.Revision), Busy: "busy", Lost: "lost", Backwards: "backwards",
	}[v.Outcome]
	if v.Delete != 0 {
		said += fmt.Sprintf(", delete %d", v.Delete)
	}
	return said
}

// own returns the claim's record as attempt n writes it.
func own(revision uint64, n int) record.Entry { return recordOf("mine", revision, n) }

func recordOf(id string, revision uint64, n int) record.Entry {
	return record.Entry{Record: kvstore.Record{Revision: revision}, Body: record.Body{ID: id, Status: record.StatusHeld, Attempt: n}}
}

// with returns the record with another status.
func with(e record.Entry, s record.Status) record.Entry {
	e.Status = s
	return e
}

// A claim is granted if, in time, one of its attempts is acknowledged or a record left by one of them is
// found.
func TestClaimJudged(t *testing.T) {
	for _, tc := range []struct {
		name string
		play func(c *trial)
	}{
		{"acknowledged", func(c *trial) {
			c.at(0).sends(0)
			c.at(1).acknowledges(1, 7).judged("granted 1 at 7")
			c.closes(1).over("nothing")
		}},
		{"acknowledged just in time", func(c *trial) {
			c.at(0).sends(0)
			c.justBefore(9).acknowledges(1, 7).judged("granted 1 at 7")
		}},
		{"acknowledged late", func(c *trial) {
			c.at(0).sends(0)
			c.at(9).acknowledges(1, 7).judged("lost, delete 7")
			c.closes(0).over("nothing")
		}},
		{"acknowledged in time and judged late", func(c *trial) {
			c.at(0).sends(0)
			c.at(1).acknowledges(1, 7)
			c.at(9).judged("lost, delete 7")
		}},
		{"judged by an older reading of the clock", func(c *trial) {
			c.at(0).sends(0)
			c.at(9).acknowledges(1, 7)
			c.justBefore(9).judged("lost, delete 7")
		}},
		{"each counts from its own sending", func(c *trial) {
			c.at(0).sends(0)
			c.at(5).sends(0)
			c.at(9).acknowledges(2, 7).judged("granted 2 at 7")
		}},
		{"acknowledged late, another one is in time", func(c *trial) {
			c.at(0).sends(0)
			c.at(5).sends(0)
			c.at(9).acknowledges(1, 7).judged("lost, delete 7")
		}},
		{"acknowledged after the next was sent", func(c *trial) {
			c.at(0).sends(0)
			c.at(2).sends(0)
			c.at(3).acknowledges(1, 7).judged("granted 1 at 7")
			c.closes(1).is("open 2")
			c.refuses(2, 7).over("nothing")
		}},
		{"refused", func(c *trial) {
			c.at(0).sends(0)
			c.refuses(1, 5).judged("refused by 5")
			c.finds(recordOf("other", 5, 1)).is("busy")
		}},
		{"refused by nothing", func(c *trial) {
			c.at(0).sends(4)
			c.refuses(1, 0).judged("free")
			c.sends(0).acknowledges(2, 7).judged("granted 2 at 7")
		}},
		{"refused by a tombstone", func(c *trial) {
			c.at(0).sends(0)
			c.refuses(1, 5).judged("refused by 5")
			gone := with(own(5, 1), record.StatusGone)
			gone.Deleted = true
			c.finds(gone).is("free")
			c.finds(record.Entry{}).is("free")
		}},
		{"refused for a passing reason", func(c *trial) {
			c.at(0).sends(0)
			c.fails(1, InFlight).judged("again")
			c.sends(0).fails(2, Full).judged("again")
			c.sends(0).fails(3, Never).judged("again")
			c.sends(0).fails(4, Unsure).judged("again")
			c.sends(0).acknowledges(5, 7).judged("granted 5 at 7")
		}},
		{"the refusal of an earlier one is no news", func(c *trial) {
			c.at(0).sends(0)
			c.sends(0)
			c.refuses(1, 5).judged("nothing")
			c.acknowledges(2, 7).judged("granted 2 at 7")
		}},
		{"an unreadable record", func(c *trial) {
			c.at(0).sends(0)
			c.refuses(1, 5).judged("refused by 5")
			e := own(5, 1)
			e.Unreadable = true
			c.finds(e).is("busy")
		}},

		{"an answer is lost, its record is found", func(c *trial) {
			c.at(0).sends(0)
			c.at(2).sends(0)
			c.at(3).refuses(2, 7).judged("refused by 7")
			c.finds(own(7, 1)).is("granted 1 at 7")
			c.closes(1).is("found")
			c.acknowledges(1, 7).over("nothing")
		}},
		{"found just in time", func(c *trial) {
			c.at(0).sends(0)
			c.at(5).sends(0)
			c.refuses(2, 7).judged("refused by 7")
			c.justBefore(9).finds(own(7, 1)).is("granted 1 at 7")
		}},
		{"found late", func(c *trial) {
			c.at(0).sends(0)
			c.at(5).sends(0)
			c.refuses(2, 7).judged("refused by 7")
			c.at(9).finds(own(7, 1)).is("lost, delete 7")
		}},
		{"found broken", func(c *trial) {
			c.at(0).sends(0)
			c.at(2).sends(0)
			c.refuses(2, 8).judged("refused by 8")
			c.finds(with(own(8, 1), record.StatusBroken)).is("lost, delete 8")
			// The acknowledgment is late, and the record has been replaced.
			c.closes(0).is("open 1")
			c.acknowledges(1, 7).over("delete 7")
		}},
		{"another claim's is broken", func(c *trial) {
			c.at(0).sends(0)
			c.refuses(1, 8).judged("refused by 8")
			c.finds(with(recordOf("other", 8, 1), record.StatusBroken)).is("busy")
		}},
		{"a refusal overtakes an acknowledgement", func(c *trial) {
			c.at(0).sends(0)
			c.at(2).sends(0)
			c.refuses(2, 7).judged("refused by 7")
			c.acknowledges(1, 7) // while the record is read
			c.finds(own(7, 1)).is("nothing")
			c.judged("granted 1 at 7")
			c.closes(1).over("nothing")
		}},
		{"a refusal overtakes a late acknowledgement", func(c *trial) {
			c.at(0).sends(0)
			c.at(5).sends(0)
			c.refuses(2, 7).judged("refused by 7")
			c.at(9).acknowledges(1, 7)
			c.finds(own(7, 1)).is("nothing")
			c.judged("lost, delete 7")
			c.closes(0).over("nothing")
		}},

		{"forged", func(c *trial) {
			c.at(0).sends(0)
			c.at(2).sends(0)
			c.refuses(2, 7).judged("refused by 7")
			for _, n := range []int{-1, 0, 3} { // attempts that were never made
				c.finds(own(7, n)).is("busy")
			}
			c.finds(own(7, 2)).is("busy") // a single server's refusal is final
			c.finds(own(7, 1)).is("granted 1 at 7")
		}},
		{"one that was not sent", func(c *trial) {
			c.at(0).sends(0)
			c.fails(1, Never).judged("again")
			c.sends(0).refuses(2, 7).judged("refused by 7")
			c.finds(own(7, 1)).is("busy")
		}},
		{"one that could not be sent", func(c *trial) {
			c.at(0).sends(0)
			c.sends(0).claim.AttemptNotSent()
			c.refuses(1, 7).judged("refused by 7")
			c.finds(own(7, 2)).is("busy")
			c.sends(0).acknowledges(2, 9).judged("granted 2 at 9")
		}},
		{"one with an error for an answer", func(c *trial) {
			c.at(0).sends(0)
			c.fails(1, Unsure).judged("again")
			c.sends(0).refuses(2, 7).judged("refused by 7")
			c.finds(own(7, 1)).is("granted 1 at 7")
		}},

		{"a deposed leader refuses what its successor applies", func(c *trial) {
			c.group = true
			c.at(0).sends(0)
			c.refuses(1, 5).judged("refused by 5")
			c.finds(own(7, 1)).is("granted 1 at 7")
			c.closes(1).over("nothing")
		}},
		{"a deposed leader is busy", func(c *trial) {
			c.group = true
			c.at(0).sends(0)
			c.fails(1, InFlight).judged("again")
			c.sends(0).refuses(2, 7).judged("refused by 7")
			c.finds(own(7, 1)).is("granted 1 at 7")
		}},
		{"every leader refuses an expectation that was replaced", func(c *trial) {
			c.group = true
			c.at(0).sends(5)
			c.refuses(1, 6).judged("refused by 6")
			c.finds(own(7, 1)).is("busy")
		}},
		{"a deposed leader has not the expectation yet", func(c *trial) {
			c.group = true
			c.at(0).sends(5)
			c.refuses(1, 4).judged("refused by 4")
			c.finds(own(7, 1)).is("granted 1 at 7")
		}},
		{"no leader takes it", func(c *trial) {
			c.group = true
			c.at(0).sends(0)
			c.fails(1, Never).judged("again")
			c.sends(0).refuses(2, 7).judged("refused by 7")
			c.finds(own(7, 1)).is("busy")
		}},

		{"a token goes backwards", func(c *trial) {
			c.floor = 9
			c.at(0).sends(0)
			c.floor = 10
			c.sends(0)
			c.acknowledges(2, 10).judged("backwards, delete 10")
			c.acknowledges(1, 10).judged("granted 1 at 10") // no higher revision was known when it was sent
		}},
		{"a token that is found goes backwards", func(c *trial) {
			c.floor = 10
			c.at(0).sends(0)
			c.sends(0).refuses(2, 3).judged("refused by 3")
			c.finds(own(3, 1)).is("backwards, delete 3")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.play(newTrial(t)) })
	}
}

// TestClaimAdopts checks that an adoption is valid only if it is acknowledged before the record that it
// replaces ends.
func TestClaimAdopts(t *testing.T) {
	for _, c := range []struct {
		name string
		at   int // when it is acknowledged, in seconds
		want Outcome
	}{
		{"before the end of the record that it replaces", 4, Granted},
		{"at that end", 5, Lost},
		{"after that", 6, Lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			var claim Claim
			claim.Begin("mine")
			by := clock.Instant(0).Add(5 * time.Second)
			claim.AttemptSent(Attempt{Expect: 7, By: by, Terms: clock.Terms{TTL: valid + time.Second, Margin: time.Second}})
			now := clock.Instant(0).Add(time.Duration(c.at) * time.Second)
			found := own(8, 1)
			require.Equal(t, c.want, claim.RecordRead(found, now).Outcome, "found without an answer")
			claim.AnswerArrived(Reply{N: 1, Answer: Answer{Revision: 8}, At: now}, true)
			r, _ := claim.Next()
			v := claim.JudgeReply(r, 1, now)
			require.Equal(t, c.want, v.Outcome)
			require.Equal(t, c.want == Lost, v.Delete == 8)
		})
	}
}

// Once a claim is over, an acknowledged attempt is granted nothing, and its record is deleted exactly
// once.
func TestClaimOver(t *testing.T) {
	for _, tc := range []struct {
		name string
		play func(c *trial)
	}{
		{"given up without an answer", func(c *trial) {
			c.sends(0).closes(0).is("open 1")
			c.acknowledges(1, 7).over("delete 7")
		}},
		{"given up before the answer is judged", func(c *trial) {
			c.sends(0).acknowledges(1, 7).is("nothing")
			c.closes(0).over("delete 7")
		}},
		{"given up while refused", func(c *trial) {
			c.sends(0).refuses(1, 5)
			c.closes(0).over("nothing")
		}},
		{"given up, and refused", func(c *trial) {
			c.sends(0).closes(0).is("open 1")
			c.refuses(1, 5).over("nothing")
		}},
		{"given up, and unsure", func(c *trial) {
			c.sends(0).fails(1, Unsure).closes(0).is("open 1")
			require.False(c.t, c.claim.Settled())
			c.claim.Settle(1)
			require.True(c.t, c.claim.Settled())
		}},
		{"the granted one is acknowledged again", func(c *trial) {
			c.sends(0).acknowledges(1, 7).judged("granted 1 at 7")
			c.closes(1).over("nothing")
			c.acknowledges(1, 7).over("nothing")
		}},
		{"both are acknowledged", func(c *trial) {
			c.sends(0).sends(0)
			c.acknowledges(1, 7).judged("granted 1 at 7")
			c.acknowledges(2, 8).is("nothing")
			c.closes(1).over("delete 8")
		}},
		{"the other one is acknowledged after the end", func(c *trial) {
			c.sends(0).sends(0)
			c.acknowledges(2, 8).judged("granted 2 at 8")
			c.closes(2).is("open 1")
			c.acknowledges(1, 7).over("delete 7")
		}},
		{"it is found, and acknowledged before the end", func(c *trial) {
			c.sends(0).sends(0).refuses(2, 7).judged("refused by 7")
			c.finds(own(7, 1)).is("granted 1 at 7")
			c.acknowledges(1, 7)
			c.closes(1).over("nothing")
		}},
		{"it is over once", func(c *trial) {
			c.sends(0).sends(0).acknowledges(1, 7).judged("granted 1 at 7")
			c.closes(1).is("open 2")
			c.closes(0).over("nothing")
			c.acknowledges(2, 8).over("delete 8")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.play(newTrial(t)) })
	}
}

// A record shown by a notification is unwanted if the claim is over and the record was left by an
// attempt that was not granted.
func TestClaimUnwanted(t *testing.T) {
	c := newTrial(t)
	c.sends(0).sends(0).sends(0)
	require.False(t, c.claim.Unwanted(own(7, 1)), "the claim is not over")
	c.acknowledges(2, 8).judged("granted 2 at 8")
	c.closes(2).is("open 1, open 3")
	gone, renewed := with(own(7, 1), record.StatusGone), own(9, 0)
	gone.Deleted, renewed.Renewal = true, 1
	for _, tc := range []struct {
		name             string
		e                record.Entry
		unwanted, strays bool
	}{
		{"held", own(7, 1), true, true},
		{"a place", with(own(7, 3), record.StatusWaiting), true, true},
		{"granted", own(8, 2), false, false},
		{"renewed", renewed, false, false},
		{"another claim's", recordOf("other", 7, 1), false, false},
		{"a tombstone", gone, false, false},
		{"none", record.Entry{}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.unwanted, c.claim.Unwanted(tc.e), "notified")
			require.Equal(t, tc.strays, c.claim.Strays(tc.e), "read")
		})
	}
}

// A claim has taken up no room if every one of its attempts was refused for good.
func TestClaimUnwritten(t *testing.T) {
	for _, tc := range []struct {
		name         string
		answer       Answer
		alone, group bool // unwritten if only one server can reply, and if several can
	}{
		{"full", Answer{Refusal: Full}, true, false},
		{"in flight", Answer{Refusal: InFlight}, true, false},
		{"never sent", Answer{Refusal: Never}, true, true},
		{"a conflict", Answer{Refusal: Conflict, Last: 5}, true, false},
		{"replaced", Answer{Refusal: Conflict, Last: 6}, true, true},
		{"unsure", Answer{Refusal: Unsure}, false, false},
		{"acknowledged, and not judged yet", Answer{Revision: 9}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, group := range []bool{false, true} {
				c := newTrial(t)
				c.group = group
				require.True(t, c.claim.Unwritten(), "nothing was sent")
				c.sends(5)
				require.False(t, c.claim.Unwritten(), "there is no answer")
				want := tc.alone
				if group {
					want = tc.group
				}
				c.answers(1, tc.answer)
				require.Equal(t, want, c.claim.Unwritten(), "several servers: %v", group)
				c.sends(5)
				require.False(t, c.claim.Unwritten(), "the second has no answer")
			}
		})
	}
}

// TestClaimInEveryOrder plays a claim of a few attempts through every order of events: each reply before or
// after the others, in time or late, or after the claim is over, and each record that a read may find. In all
// of them:
//
//   - At most one attempt is granted. It is still valid at that moment, counted from when it was sent, its
//     revision is above all known ones, and the server has not refused it for good.
//   - An attempt that is acknowledged, or found, in time is granted.
//   - Once the claim is over, the acknowledgment of every attempt except the granted one leads to exactly
//     one deletion. No other record is deleted.
func TestClaimInEveryOrder(t *testing.T) {
	for _, o := range []orders{
		{name: "one attempt", most: 1, answers: allAnswers},
		{name: "one attempt, of several servers", most: 1, answers: allAnswers, group: true},
		{name: "two attempts", most: 2, answers: allAnswers},
		{name: "two attempts, of several servers", most: 2, answers: allAnswers, group: true},
		{name: "a bucket that was restored", most: 2, answers: allAnswers[:4], restored: true},
		{name: "three attempts, of several servers", most: 3, answers: allAnswers[1:3], group: true},
	} {
		t.Run(o.name, func(t *testing.T) {
			o.t = t
			var s scene
			s.claim.Begin("mine")
			defer func() {
				if r := recover(); r != nil {
					o.fail("it panics: %v", r)
				}
			}()
			o.from(&s)
			t.Logf("%d orders of events", o.ends)
			require.Positive(t, o.ends)
		})
	}
}

// orders enumerates the orders of events.
type orders struct {
	name     string
	most     int // the maximum number of attempts
	answers  []Answer
	group    bool // several servers may reply
	restored bool // the first record's revision is not above a known one

	t    *testing.T
	path []string // the events so far
	ends int
}

// allAnswers are the replies to an attempt that expects 5. The first names the revision of its record.
var allAnswers = []Answer{
	{Refusal: Conflict, Last: stranger}, // for good
	{Refusal: Acknowledged},
	{Refusal: Conflict, Last: 5}, // not for good if several servers may reply
	{Refusal: Unsure},
	{Refusal: Conflict},
	{Refusal: InFlight},
	{Refusal: Full},
	{Refusal: Never},
}

const (
	few      = 3  // the maximum number of attempts
	known    = 10 // the highest known revision when an attempt is sent
	stranger = 50 // the revision of another claim's record
)

// scene is the state of a claim and what an observer knows about it. Attempts are numbered from 1.
type scene struct {
	claim  Claim
	now    clock.Instant
	waited bool
	sent   [few + 1]clock.Instant
	answer [few + 1]*Answer
	asked  [few + 1]int // deletions caused by the attempt's reply
	found  [few + 1]int // deletions caused by reading its record

	judging bool // a reply is waiting to be judged
	reading bool // the newest attempt was refused, so the record is being read
	decided bool // the claim must be closed, granting:
	granted int

	attempts [few]Attempt // backing array of the claim's attempts
	replies  [few]Reply
}

func (o *orders) revision(n int) uint64 {
	if o.restored && n == 1 {
		return known
	}
	return known + uint64(n)
}

func (o *orders) fail(format string, args ...any) {
	o.t.Helper()
	o.t.Fatalf("%s:\n  %s", fmt.Sprintf(format, args...), strings.Join(o.path, "\n  "))
}

// then plays an event and explores everything that may follow it.
func (o *orders) then(s scene, event string, play func(s *scene)) {
	s.claim.attempts = append(s.attempts[:0], s.claim.attempts...)
	s.claim.replies = append(s.replies[:0], s.claim.replies...)
	o.path = append(o.path, event)
	play(&s)
	o.check(&s)
	o.from(&s)
	o.path = o.path[:len(o.path)-1]
}

// from plays each event that may come next.
func (o *orders) from(s *scene) {
	made, more := s.claim.Attempts(), false
	for n := 1; n <= made; n++ {
		if s.answer[n] == nil {
			more = true
			for _, a := range o.answers {
				if a.Refusal == Acknowledged {
					a.Revision = o.revision(n)
				}
				o.then(*s, says(n, a), func(s *scene) { o.answered(s, n, a) })
			}
		}
	}
	if s.claim.over {
		if !more {
			o.ends++
		}
		return
	}
	if s.decided {
		o.then(*s, closing[min(s.granted, 1)], func(s *scene) { o.close(s) })
		return
	}
	o.then(*s, "given up", func(s *scene) { o.close(s) })
	if made > 0 && !s.waited {
		o.then(*s, "the first attempt's validity ends", func(s *scene) {
			s.now, s.waited = s.sent[1].Add(valid), true
		})
	}
	switch {
	case s.reading:
		o.then(*s, "no record", func(s *scene) { o.find(s, record.Entry{}) })
		o.then(*s, "another claim's record", func(s *scene) { o.find(s, recordOf("other", stranger, 1)) })
		for n := 0; n <= made+1; n++ {
			o.then(*s, recordNames[n], func(s *scene) { o.find(s, own(o.revision(n), n)) })
		}
		o.then(*s, "the first attempt's record, broken", func(s *scene) { o.find(s, with(own(o.revision(1), 1), record.StatusBroken)) })
	case s.judging:
		o.then(*s, "judged", func(s *scene) { o.judge(s) })
	case made < o.most:
		o.then(*s, "sent", func(s *scene) {
			s.claim.AttemptSent(Attempt{Expect: 5, Terms: clock.Terms{TTL: valid + time.Second, Margin: time.Second}, Sent: s.now, Floor: known})
			s.sent[made+1] = s.now
			s.now = s.now.Add(time.Second)
		})
	}
}

var (
	closing     = [...]string{"closed", "granted"}
	recordNames = [...]string{"a record of attempt 0", "a record of attempt 1", "a record of attempt 2", "a record of attempt 3", "a record of attempt 4"}
	answerNames = [...]string{"acknowledged", "a conflict", "in flight", "full", "never sent", "unsure"}
)

func says(n int, a Answer) string { return attemptNames[n] + answerNames[a.Refusal] }

var attemptNames = [few + 1]string{1: "to attempt 1: ", 2: "to attempt 2: ", 3: "to attempt 3: "}

func (o *orders) answered(s *scene, n int, a Answer) {
	s.answer[n] = &a
	unwanted := s.claim.AnswerArrived(Reply{N: n, Answer: a, At: s.now}, !o.group)
	s.judging = !s.claim.over
	if unwanted {
		o.deleted(s, &s.asked, a.Revision)
	}
}

func (o *orders) judge(s *scene) {
	r, more := s.claim.Next()
	if s.judging = more; !more {
		return
	}
	v := s.claim.JudgeReply(r, s.claim.Attempts(), s.now)
	if v.Delete != 0 {
		o.deleted(s, &s.asked, v.Delete)
	}
	acked := r.Answer.Refusal == Acknowledged
	if acked && o.fits(s, r.N) && v.Outcome != Granted {
		o.fail("attempt %d was acknowledged in time: %s", r.N, told(v))
	}
	if v.Outcome == Granted && (!acked || v.N != r.N) {
		o.fail("an answer to attempt %d that acknowledges nothing: %s", r.N, told(v))
	}
	o.decide(s, v)
}

func (o *orders) find(s *scene, e record.Entry) {
	s.reading = false
	v := s.claim.RecordRead(e, s.now)
	if v.Delete != 0 {
		o.deleted(s, &s.found, v.Delete)
	}
	n := e.Attempt
	mine := e.ID == "mine" && n >= 1 && n <= s.claim.Attempts()
	fits := mine && e.Status != record.StatusBroken && o.fits(s, n) && !o.refused(s, n)
	acked := mine && s.answer[n] != nil && s.answer[n].Refusal == Acknowledged
	if granted := v.Outcome == Granted; granted != (fits && !acked) || granted && v.N != n {
		o.fail("%s", told(v))
	}
	if acked && e.Status != record.StatusBroken && v != (Verdict{}) {
		o.fail("the acknowledgement of attempt %d is to be judged: %s", n, told(v))
	}
	o.decide(s, v)
}

// fits reports whether attempt n may be granted now: it is still valid, and its token rises.
func (o *orders) fits(s *scene, n int) bool {
	return s.now < s.sent[n].Add(valid) && o.revision(n) > known
}

// refused reports whether attempt n can never be applied.
func (o *orders) refused(s *scene, n int) bool {
	a := s.answer[n]
	switch {
	case a == nil, a.Refusal == Acknowledged, a.Refusal == Unsure:
		return false
	case a.Refusal == Never, a.Refusal == Conflict && a.Last == stranger:
		return true
	}
	return !o.group
}

func (o *orders) decide(s *scene, v Verdict) {
	switch v.Outcome {
	case Granted:
		if !o.fits(s, v.N) || v.Revision != o.revision(v.N) || v.Delete != 0 {
			o.fail("it must not be granted: %s", told(v))
		}
		s.decided, s.granted = true, v.N
	case Lost, Backwards:
		s.decided = true
	case Refused:
		s.reading = true
	}
}

// deleted counts the deletion of an attempt's record.
func (o *orders) deleted(s *scene, by *[few + 1]int, revision uint64) {
	for n := 1; n <= s.claim.Attempts(); n++ {
		if o.revision(n) == revision {
			by[n]++
			return
		}
	}
	o.fail("record %d is none of this claim", revision)
}

func (o *orders) close(s *scene) {
	unwanted, open, found := s.claim.Close(s.granted)
	for _, revision := range unwanted {
		o.deleted(s, &s.asked, revision)
	}
	for _, a := range open {
		if a.N == s.granted || !s.unanswered(a.N) {
			o.fail("attempt %d is not open", a.N)
		}
	}
	without := 0
	for n := 1; n <= s.claim.Attempts(); n++ {
		if s.unanswered(n) {
			without++
		}
	}
	if found {
		without--
	}
	if len(open) != without || found != (s.granted > 0 && s.unanswered(s.granted)) {
		o.fail("the claim is over: %d attempts are open, found: %v", len(open), found)
	}
}

func (s *scene) unanswered(n int) bool {
	return s.answer[n] == nil || s.answer[n].Refusal == Unsure
}

// check requires the properties that hold at any time.
func (o *orders) check(s *scene) {
	made := s.claim.Attempts()
	settled, unwritten := true, true
	for n := 1; n <= made; n++ {
		acked := s.answer[n] != nil && s.answer[n].Refusal == Acknowledged
		want := 0
		if s.claim.over && acked && n != s.granted {
			want = 1
		}
		if s.claim.over && s.asked[n] != want {
			o.fail("%d deletions follow from the answer to attempt %d, not %d", s.asked[n], n, want)
		}
		if s.asked[n] > 1 || s.found[n] > 1 || n == s.granted && s.asked[n]+s.found[n] > 0 {
			o.fail("record %d is deleted", o.revision(n))
		}
		e := own(o.revision(n), n)
		if got := s.claim.Unwanted(e); got != (s.claim.over && n != s.granted) {
			o.fail("the record of attempt %d is unwanted: %v", n, got)
		}
		settled = settled && (!s.unanswered(n) || n == s.granted && s.claim.over)
		unwritten = unwritten && !acked && o.refused(s, n)
	}
	if s.claim.Settled() != settled {
		o.fail("settled: %v", !settled)
	}
	if !s.claim.over && s.claim.Unwritten() != unwritten {
		o.fail("unwritten: %v", !unwritten)
	}
	if !s.claim.over {
		return
	}
	if r, more := s.claim.Next(); more {
		o.fail("the answer to attempt %d is to be judged after the end", r.N)
	}
	if unwanted, open, found := s.claim.Close(0); unwanted != nil || open != nil || found {
		o.fail("it is over again")
	}
	if e := recordOf("other", stranger, 1); s.claim.Unwanted(e) || s.claim.Strays(e) {
		o.fail("another claim's record is unwanted")
	}
}
