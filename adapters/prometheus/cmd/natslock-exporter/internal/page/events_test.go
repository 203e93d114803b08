package page

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock/admin"
)

// event returns an event of a holder at the given time after noon.
func event(typ admin.EventType, id string, after time.Duration, change ...func(*admin.Event)) admin.Event {
	h := held("web", func(h *admin.Holder) { h.ID = id })
	ev := admin.Event{Type: typ, Name: "a", ID: id, Token: 64, Time: noon.Add(after), Holder: &h}
	for _, c := range change {
		c(&ev)
	}
	return ev
}

func TestLine(t *testing.T) {
	at := noon.Add(time.Second).UnixMilli()
	for want, ev := range map[line]admin.Event{
		{Time: at, Event: "granted", Kind: "mutex", Name: "a", Who: "web on vm:7", Token: "64", Waited: 5}:                                event(admin.EventGranted, "1", time.Second, func(ev *admin.Event) { ev.Waited = 5 * time.Millisecond }),
		{Time: at, Event: "released", Kind: "mutex", Name: "a", Who: "web on vm:7", Token: "64", Held: 1000}:                              event(admin.EventReleased, "1", time.Second),
		{Time: at, Event: "released", Kind: "mutex", Name: "a", Who: "web on vm:7", Token: "64"}:                                          event(admin.EventReleased, "1", time.Second, func(ev *admin.Event) { ev.Holder.Idle = true }),
		{Time: at, Event: "expired", Kind: "mutex", Name: "a", Who: "unknown", Token: "64"}:                                               event(admin.EventExpired, "1", time.Second, func(ev *admin.Event) { ev.Holder = nil }),
		{Time: at, Event: "late", Kind: "mutex", Name: "a", Who: "web on vm:7", Token: "64", Late: 12000}:                                 event(admin.EventRenewed, "1", time.Second, func(ev *admin.Event) { ev.Late = 12 * time.Second }),
		{Time: at, Event: "queued", Kind: "rw", Name: "a", Who: "web on vm:7", Mode: "shared", Token: "64"}:                               event(admin.EventQueued, "1", time.Second, func(ev *admin.Event) { ev.Kind, ev.Mode = admin.KindRW, admin.Shared }),
		{Time: at, Event: "granted", Kind: "semaphore", Name: "a", Who: "web on vm:7", Mode: "slot 2", Token: "64"}:                       event(admin.EventGranted, "1", time.Second, func(ev *admin.Event) { ev.Kind, ev.Holder.Slot = admin.KindSemaphore, 2 }),
		{Time: at, Event: "broken", Kind: "mutex", Name: "a", Who: "web on vm:7", Token: "64", Held: 1000, Note: "by ops: hangs"}:         event(admin.EventBroken, "1", time.Second, func(ev *admin.Event) { broken(ev.Holder) }),
		{Time: at, Event: "granted", Kind: "mutex", Name: `"\xff"`, Key: "%FF", Who: "unknown (unreadable record)", Token: "64"}:          event(admin.EventGranted, "1", time.Second, func(ev *admin.Event) { ev.Name, ev.Holder.Unreadable = "\xff", true }),
		{Time: at, Event: "gave up", Kind: "mutex", Name: "a", Who: "web on vm:7", Token: "64", Waited: (3 * time.Second).Milliseconds()}: event(admin.EventGaveUp, "1", time.Second, func(ev *admin.Event) { ev.Waited = 3 * time.Second }),
	} {
		require.Equal(t, want, lineOf(ev))
	}
	require.False(t, isShown(event(admin.EventRenewed, "1", 0)))
	require.False(t, isShown(admin.Event{Type: admin.EventWatching}))
}

// TestPick checks that the most important events are kept first and then the latest, in their
// original order.
func TestPick(t *testing.T) {
	var all []admin.Event
	for i := range 30 {
		all = append(all, event(admin.EventGranted, fmt.Sprint(i), 0))
	}
	all[3].Type, all[7].Type = admin.EventExpired, admin.EventGaveUp
	kept, left := pick(all, 5)
	var ids []string
	for _, ev := range kept {
		ids = append(ids, ev.ID)
	}
	require.Equal(t, []string{"3", "7", "27", "28", "29"}, ids)
	require.Equal(t, 25, left)
	kept, left = pick(all, 30)
	require.Equal(t, all, kept)
	require.Zero(t, left)
}

func TestRing(t *testing.T) {
	var r ring
	all := func(admin.Event) bool { return true }
	require.Empty(t, r.last(5, 0, all))
	for i := range 2*kept + 7 {
		r.add(event(admin.EventGranted, fmt.Sprint(i), 0))
	}
	require.Len(t, r.events, kept)
	last := r.last(2, 1, all)
	require.Equal(t, fmt.Sprint(2*kept+4), last[0].ID)
	require.Equal(t, fmt.Sprint(2*kept+5), last[1].ID)
	require.Len(t, r.last(2*kept, 0, all), kept)
	require.Empty(t, r.last(5, kept, all))
}

func TestStory(t *testing.T) {
	from, to := noon.Add(-time.Minute), noon.Add(time.Minute)
	tell := func(kind admin.Kind, events ...admin.Event) story {
		s := newTeller(kind, from, to)
		for _, ev := range events {
			s.add(ev)
		}
		return s.story()
	}
	ms := func(d time.Duration) int64 { return noon.Add(d).UnixMilli() }
	spans := func(s story) (all []string) {
		for _, p := range s.Spans {
			all = append(all, fmt.Sprintf("%d %v-%v %s", p.Lane, time.Duration(p.From-noon.UnixMilli())*time.Millisecond, time.Duration(p.To-noon.UnixMilli())*time.Millisecond, p.How))
		}
		return all
	}
	waited := func(ev *admin.Event) { ev.Waited = 4 * time.Second }

	s := tell(admin.KindMutex,
		event(admin.EventReleased, "0", time.Second), // granted before the story begins
		event(admin.EventGranted, "1", 5*time.Second, waited),
		event(admin.EventRenewed, "1", 8*time.Second),
		event(admin.EventExpired, "1", 10*time.Second),
		event(admin.EventGaveUp, "2", 12*time.Second, waited),
		event(admin.EventGranted, "3", 20*time.Second),
		event(admin.EventGranted, "4", 30*time.Second)) // the end of 3 was missed
	require.Equal(t, []string{"0 0s-1s released", "0 1s-5s waited", "0 5s-10s expired", "0 8s-12s gave up", "0 20s-30s unknown", "0 30s-1m0s "}, spansInLane(spans(s)))
	require.Equal(t, 2, s.Lanes)
	require.Len(t, s.Lines, 6, "no renewal")

	// Readers hold the lock simultaneously. A span that began before the story is cut off, and a
	// renewal stands in for a missing grant.
	s = tell(admin.KindRW, event(admin.EventRenewed, "1", 0, func(ev *admin.Event) { ev.Holder.Since = from.Add(-time.Hour) }),
		event(admin.EventGranted, "2", time.Second), event(admin.EventReleased, "2", 2*time.Second), event(admin.EventGranted, "3", 3*time.Second))
	require.Equal(t, []string{"0 -1m0s-1m0s ", "1 1s-2s released", "1 3s-1m0s "}, spans(s))

	// Gaps for unknown locks are summed up.
	s = tell(admin.KindMutex,
		admin.Event{Type: admin.EventGap, Until: noon},
		admin.Event{Type: admin.EventGap, Time: noon, Until: noon.Add(time.Second), Missed: 3},
		admin.Event{Type: admin.EventGap, Time: noon, Until: noon.Add(time.Second), Missed: 4},
		admin.Event{Type: admin.EventGap, Name: "a", Time: noon, Until: noon.Add(time.Second), Missed: 1},
		admin.Event{Type: admin.EventGap, Time: noon, Until: noon.Add(time.Second), Cause: kvstore.ErrRemade})
	require.EqualValues(t, 7, s.Missing)
	require.Equal(t, []gap{{To: ms(0), Text: "nothing earlier is kept"}, {ms(0), ms(time.Second), "at least 1 events of this lock are missing"}, {ms(0), ms(time.Second), "the bucket was deleted and re-created"}}, s.Gaps)

	// A story is bounded regardless of how much happened, and counts what it leaves out.
	var many []admin.Event
	for i := range 5000 {
		many = append(many, event(admin.EventGranted, fmt.Sprint(i), time.Duration(i)*time.Millisecond))
	}
	s = tell(admin.KindRW, many...)
	require.Len(t, s.Lines, mostLines)
	require.Equal(t, 5000-mostLines, s.Left)
	require.Len(t, s.Spans, mostLanes)
	require.Equal(t, 5000-mostLanes, s.Spare)
}

// spansInLane returns the spans with every lane set to 0.
func spansInLane(all []string) []string {
	for i := range all {
		all[i] = "0" + all[i][1:]
	}
	return all
}
