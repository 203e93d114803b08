package page

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

var noon = time.UnixMilli(1_800_000_000_000)

// held returns a holder since noon with a TTL of 15 s, by a server clock that is 1 s ahead.
func held(owner string, change ...func(*admin.Holder)) admin.Holder {
	h := admin.Holder{
		Holder: natslock.Holder{ID: "ID-" + owner, Owner: owner, Host: "vm", PID: 7, Token: 64, Since: noon, Expires: noon.Add(16 * time.Second)},
		TTL:    15 * time.Second,
	}
	for _, c := range change {
		c(&h)
	}
	return h
}

func idle(h *admin.Holder)       { h.Idle = true }
func broken(h *admin.Holder)     { h.Broken = &admin.Broken{By: "ops", Reason: "hangs"} }
func endless(h *admin.Holder)    { h.TTL, h.Expires = 0, time.Time{} }
func unreadable(h *admin.Holder) { h.Unreadable = true }
func later(h *admin.Holder)      { h.Since, h.Expires = noon.Add(time.Minute), noon.Add(2*time.Minute) }

func of(slot, permits int) func(*admin.Holder) {
	return func(h *admin.Holder) { h.Slot, h.Of = slot, permits }
}

func TestRow(t *testing.T) {
	at, end, last := noon.UnixMilli(), noon.Add(15*time.Second).UnixMilli(), noon.Add(2*time.Minute-time.Second).UnixMilli()
	one := func(change ...func(*admin.Holder)) admin.Info {
		h := held("web", change...)
		return admin.Info{Name: "a", Holder: &h}
	}
	queued := one()
	queued.Queue = []admin.Waiter{{Since: noon.Add(time.Second), Goroutines: 3}, {Since: noon, Goroutines: 1}}
	waits := held("late")
	for _, c := range []struct {
		name string
		info admin.Info
		want row
	}{
		{"held", one(), row{Kind: "mutex", Name: "a", State: "exclusive", Holder: "web on vm:7", Since: at, Expires: end}},
		{"a queue", queued, row{Kind: "mutex", Name: "a", State: "exclusive", Holder: "web on vm:7", Since: at, Expires: end, Queue: 4, Wait: at}},
		{"idle", one(idle), row{Kind: "mutex", Name: "a", State: "idle", Holder: "web on vm:7", Since: at, Expires: end}},
		{"broken", one(broken), row{Kind: "mutex", Name: "a", State: "broken", Alarm: true, Holder: "web on vm:7", Since: at, Expires: end}},
		{"never ends", one(endless), row{Kind: "mutex", Name: "a", State: "exclusive", Holder: "web on vm:7", Since: at}},
		{"unreadable", one(unreadable), row{Kind: "mutex", Name: "a", State: "exclusive", Alarm: true, Holder: "unknown (unreadable record)", Since: at, Expires: end}},
		{"only waited for", admin.Info{Name: "a", Queue: queued.Queue[1:]}, row{Kind: "mutex", Name: "a", State: "free", Queue: 1, Wait: at}},
		{"readers", admin.Info{Kind: admin.KindRW, Name: "a", Readers: []admin.Holder{held("one", later), held("two")}},
			row{Kind: "rw", Name: "a", State: "shared 2", Holder: "one on vm:7 and 1 more", Since: at, Expires: last}},
		{"readers before a writer", admin.Info{Kind: admin.KindRW, Name: "a", Readers: []admin.Holder{held("one")}, Holder: &waits},
			row{Kind: "rw", Name: "a", State: "shared 1, writer next", Holder: "one on vm:7 and 1 more", Since: at, Expires: end}},
		{"permits", admin.Info{Kind: admin.KindSemaphore, Name: "a", Permits: []admin.Holder{held("one", of(0, 3)), held("two", of(2, 4), broken)}},
			row{Kind: "semaphore", Name: "a", State: "2 of 3 or 4, broken", Alarm: true, Holder: "one on vm:7 and 1 more", Since: at, Expires: end}},
		{"one of them never ends", admin.Info{Kind: admin.KindSemaphore, Name: "a", Permits: []admin.Holder{held("one", of(0, 2)), held("two", of(1, 2), endless)}},
			row{Kind: "semaphore", Name: "a", State: "2 of 2", Holder: "one on vm:7 and 1 more", Since: at}},
		{"a holder that no event has named", admin.Info{Name: "a", Holder: &admin.Holder{}}, row{Kind: "mutex", Name: "a", State: "exclusive", Holder: "unknown"}},
		{"odd bytes", admin.Info{Name: "a\xff\n<b> c", Queue: queued.Queue[1:]}, row{Kind: "mutex", Name: `"a\xff\n<b> c"`, Key: "a%FF%0A%3Cb%3E+c", State: "free", Queue: 1, Wait: at}},
	} {
		require.Equal(t, c.want, rowOf(c.info, time.Second), c.name)
	}
}

func TestDetail(t *testing.T) {
	sentences := map[string]admin.Info{"free": {}, "free, with clients waiting": {Queue: []admin.Waiter{{}}}}
	for want, change := range map[string]func(*admin.Holder){
		"broken; its holder may still be stopping": broken, "held, idle when last renewed": idle, "held": later,
	} {
		h := held("web", change)
		sentences[want] = admin.Info{Holder: &h}
	}
	w := held("w")
	sentences["held by 1 reader; a writer is waiting for them to leave"] = admin.Info{Kind: admin.KindRW, Holder: &w, Readers: []admin.Holder{held("r")}}
	sentences["held by 2 readers"] = admin.Info{Kind: admin.KindRW, Readers: []admin.Holder{held("r"), held("s")}}
	sentences["held by a writer"] = admin.Info{Kind: admin.KindRW, Holder: &w}
	sentences["1 of 2 permits taken"] = admin.Info{Kind: admin.KindSemaphore, Permits: []admin.Holder{held("r", of(0, 2))}}
	for want, info := range sentences {
		require.Equal(t, want, detailOf(info, 0).State)
	}

	h := held("web", broken, func(h *admin.Holder) { h.Meta = map[string]string{"b": "2", "a": "\x1b[31m"} })
	info := admin.Info{Name: "a", Holder: &h, Queue: []admin.Waiter{{Owner: "x", Host: "vm", Goroutines: 3, Ticket: 5}, {Owner: "y", Host: "vm", Goroutines: 1, Ticket: 6}}}
	d := detailOf(info, time.Second)
	require.Equal(t, [][2]string{{"a", `"\x1b[31m"`}, {"b", "2"}}, d.Holders[0].Meta)
	require.Equal(t, "by ops: hangs", d.Holders[0].Broken)
	require.Equal(t, noon.Add(15*time.Second).UnixMilli(), d.Holders[0].Expires)
	require.Contains(t, d.Holders[0].Facts, [2]string{"token", "64"})
	require.Equal(t, []int{1, 4}, []int{d.Queue[0].Position, d.Queue[1].Position})
	require.Equal(t, "x on vm and 2 more in that client", d.Queue[0].Who)

	for range 3 * most {
		info.Queue = append(info.Queue, admin.Waiter{})
		info.Readers = append(info.Readers, held("r"))
	}
	d = detailOf(info, 0)
	require.Len(t, d.Queue, most)
	require.Len(t, d.Holders, most)
	require.Equal(t, [2]int{2*most + 1, 2*most + 2}, d.More)
}

// TestWaitsByDesign checks that the standby of an election counts as queued but not as the longest
// wait, because it waits by design.
func TestWaitsByDesign(t *testing.T) {
	t.Parallel()
	since := time.UnixMilli(1000)
	standby := admin.Waiter{Goroutines: 1, Since: since, Purpose: "election"}
	r := rowOf(admin.Info{Name: "l", Queue: []admin.Waiter{standby}}, 0)
	require.Equal(t, 1, r.Queue)
	require.Zero(t, r.Wait)
	r = rowOf(admin.Info{Name: "l", Queue: []admin.Waiter{standby, {Goroutines: 1, Since: since.Add(time.Second)}}}, 0)
	require.Equal(t, int64(2000), r.Wait)
}
