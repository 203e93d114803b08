package show

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Output is compared as text, so it must not contain colors.
func init() { text.DisableColors() }

// hold returns a holder that has had its lock for a minute and a half by the bubble's clock.
func hold(owner string, set ...func(*admin.Holder)) *admin.Holder {
	h := &admin.Holder{Holder: natslock.Holder{Owner: owner, Host: "a", PID: 4711, ID: "ID", Token: 64,
		Since: time.Now().Add(-90 * time.Second), Expires: time.Now().Add(12 * time.Second)}, TTL: 15 * time.Second, Revision: 7}
	for _, set := range set {
		set(h)
	}
	return h
}

func waiter(owner string, set ...func(*admin.Waiter)) admin.Waiter {
	w := admin.Waiter{Owner: owner, Host: "z", PID: 12, ID: "ID2", Ticket: 65, Since: time.Now().Add(-2 * time.Second), Goroutines: 1}
	for _, set := range set {
		set(&w)
	}
	return w
}

// TestObject checks that the JSON object of a lock has all of these fields. Scripts rely on them,
// so they are never renamed.
func TestObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		info := admin.Info{Kind: admin.KindRW, Name: "report", Readers: []admin.Holder{*hold("web-1", func(h *admin.Holder) {
			h.Meta, h.Broken = map[string]string{"k": "v"}, &admin.Broken{By: "ada@ops", Reason: "it hangs", At: time.Now()}
		})}, Queue: []admin.Waiter{waiter("web-2")}}
		var out strings.Builder
		require.NoError(t, PrintJSON(&out, []admin.Info{info, {Kind: admin.KindMutex, Name: "report"}}))
		require.Equal(t, `[
  {
    "kind": "rw",
    "name": "report",
    "mode": "shared",
    "holder": null,
    "readers": [
      {
        "token": 64,
        "id": "ID",
        "owner": "web-1",
        "host": "a",
        "pid": 4711,
        "since": "1999-12-31T23:58:30Z",
        "held": 90,
        "waited": 0,
        "grants": 0,
        "waiting": 0,
        "ttl": 15,
        "expires": "2000-01-01T00:00:12Z",
        "overdue": false,
        "meta": {
          "k": "v"
        },
        "broken": {
          "by": "ada@ops",
          "reason": "it hangs",
          "at": "2000-01-01T00:00:00Z"
        },
        "revision": 7,
        "unreadable": false,
        "lingers": false,
        "idle": false,
        "purpose": "",
        "slot": 0,
        "of": 0
      }
    ],
    "permits": [],
    "queue": [
      {
        "ticket": 65,
        "id": "ID2",
        "owner": "web-2",
        "host": "z",
        "pid": 12,
        "since": "1999-12-31T23:59:58Z",
        "waited": 2,
        "mode": "exclusive",
        "purpose": "",
        "goroutines": 1,
        "of": 0,
        "overdue": false
      }
    ],
    "writer_waits": false,
    "both_kinds": true
  },
  {
    "kind": "mutex",
    "name": "report",
    "mode": "free",
    "holder": null,
    "readers": [],
    "permits": [],
    "queue": [],
    "writer_waits": false,
    "both_kinds": true
  }
]
`, out.String())
	})
}

// TestHostile checks that other clients' names and records cannot control a terminal, and that JSON
// preserves them.
func TestHostile(t *testing.T) {
	t.Parallel()
	evil := "\x1b[2J\u009b2J\u202e\U000e0001"
	info := admin.Info{Kind: admin.KindMutex, Name: evil, Holder: hold(evil, func(h *admin.Holder) { h.Meta = map[string]string{"k": evil} })}
	for name, print := range map[string]func(*strings.Builder){
		"object": func(b *strings.Builder) { require.NoError(t, PrintJSON(b, []admin.Info{info})) },
		"text":   func(b *strings.Builder) { PrintInfo(b, info) },
	} {
		var out strings.Builder
		print(&out)
		require.False(t, strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }), "%s: %q", name, out.String())
		require.Contains(t, out.String(), map[string]string{"object": `"name": "\u001b[2J\u009b2J\u202e\udb40\udc01"`, "text": `mutex "\x1b[2J\u009b2J\u202e\U000e0001": held`}[name])
	}
}

// TestInfoText checks that the first line and the row for the lease describe the state of a lock,
// and that "lockctl info" prints the other rows.
func TestInfoText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mutex := func(h *admin.Holder, queue ...admin.Waiter) admin.Info {
			return admin.Info{Kind: admin.KindMutex, Name: "x", Holder: h, Queue: queue}
		}
		readers := []admin.Holder{*hold("one", func(h *admin.Holder) { h.Idle = true }), *hold("two", func(h *admin.Holder) { h.Idle = true })}
		inside := []admin.Holder{readers[0], *hold("two")}
		for name, c := range map[string]struct {
			info  admin.Info
			state string
			rows  []string
		}{
			"held":    {mutex(hold("web-1")), "held", []string{"holder    web-1 on a:4711", "held      1m30s, since ", "expires   in 12s unless renewed, TTL 15s", "id        ID", "revision  7"}},
			"waits":   {mutex(hold("web-1"), waiter("web-2", func(w *admin.Waiter) { w.Goroutines = 3 })), "held", []string{"queue of 3\n      1  web-2 on z:12 and 2 more in that client  exclusive  waits 2.0s  ticket 65"}},
			"free":    {mutex(nil, waiter("web-2")), "free, with clients waiting", []string{"queue of 1"}},
			"fixed":   {mutex(hold("web-1", func(h *admin.Holder) { h.Fixed, h.Purpose = true, "script" })), "held", []string{"expires   in 12s, TTL 15s: its holder does not renew it", "for       script"}},
			"endless": {mutex(hold("web-1", func(h *admin.Holder) { h.Expires = time.Time{} })), "held", []string{"expires   never: it has no TTL; break it to free the lock"}},
			"overdue": {mutex(hold("web-1", func(h *admin.Holder) { h.Overdue, h.Expires = true, time.Now().Add(-time.Minute) })), "overdue: no longer held, the next acquire gets it",
				[]string{"expires   1m00s ago: the server has not removed the record"}},
			"broken": {mutex(hold("web-1", func(h *admin.Holder) { h.Broken = &admin.Broken{By: "ada@ops", Reason: "it sleeps", At: time.Now()} })), "broken, its holder may still be stopping",
				[]string{"web-1 on a:4711 (broken)", "free      within 12s", "broken    0.00ms ago by ada@ops: it sleeps"}},
			"unreadable": {mutex(&admin.Holder{Unreadable: true, Holder: natslock.Holder{ID: "unreadable-7", Expires: time.Now().Add(time.Minute)}}), "held",
				[]string{"holder    unknown (unreadable record)", "expires   in 1m00s", "id        unreadable-7"}},
			"lingers": {mutex(hold("web-1", func(h *admin.Holder) { h.Lingers = true })), "held", []string{"lingers   its client may keep it idle until another client waits"}},
			"idle":    {mutex(hold("web-1", func(h *admin.Holder) { h.Lingers, h.Idle = true, true })), "held, idle when last renewed", []string{"lingers   idle when last renewed: another waiting client gets it"}},
			"handed on": {mutex(hold("web-1", func(h *admin.Holder) { h.Grants, h.Waiting, h.Waited = 5, 2, time.Second })), "held",
				[]string{"waited    1.0s for it", "grants    5, handed over within its client", "waiting   2 more in that client"}},
			"idle readers":    {admin.Info{Kind: admin.KindRW, Name: "x", Readers: readers}, "held by 2 readers, idle when last renewed", []string{"reader 1  one on a:4711", "reader 2  two on a:4711"}},
			"a reader inside": {admin.Info{Kind: admin.KindRW, Name: "x", Readers: inside}, "held by 2 readers", nil},
			"a writer":        {admin.Info{Kind: admin.KindRW, Name: "x", Holder: hold("web-1")}, "held by a writer", []string{"writer    web-1 on a:4711"}},
			"behind readers":  {admin.Info{Kind: admin.KindRW, Name: "x", Holder: hold("web-1"), Readers: inside}, "held by 2 readers; a writer is waiting for them to leave", []string{"waits     1m30s, since 1999", ", for the readers to leave"}},
			"permits": {admin.Info{Kind: admin.KindSemaphore, Name: "x", Permits: []admin.Holder{*hold("one", func(h *admin.Holder) { h.Slot, h.Of = 1, 2 })}, Queue: []admin.Waiter{waiter("two", func(w *admin.Waiter) { w.Of = 2 })}},
				"1 of 2 permits taken", []string{"slot 1    one on a:4711", "permits   2, according to its client", "two on z:12  one of 2  waits 2.0s"}},
		} {
			var out strings.Builder
			PrintInfo(&out, c.info)
			first, rest, _ := strings.Cut(out.String(), "\n")
			require.Equal(t, c.info.Kind.String()+" x: "+c.state, first, name)
			for _, row := range c.rows {
				require.Contains(t, rest, row, name)
			}
			if name == "held" {
				require.NotContains(t, rest, "lingers")
			}
		}
	})
}

// TestBreakQuestion checks that the question before a break says who gets in and when.
func TestBreakQuestion(t *testing.T) {
	t.Parallel()
	idle := func(h *admin.Holder) { h.Idle = true }
	for want, c := range map[string]struct {
		h   Holding
		now bool
	}{
		"Break it? No client gets in before the holder has stopped or its lease has ended, within 15s": {h: Holding{Holder: *hold("a")}},
		"Break it? No writer gets in before the reader has stopped or its lease has ended, within 15s": {
			h: Holding{Holder: *hold("a"), Kind: admin.KindRW, Mode: admin.Shared}},
		"Break it? No client gets its permit before the holder has stopped or its lease has ended": {
			h: Holding{Holder: *hold("a", func(h *admin.Holder) { h.Expires = time.Time{} }), Kind: admin.KindSemaphore}},
		"Break it NOW? The next client gets in while the holder may still be working": {h: Holding{Holder: *hold("a")}, now: true},
		"Break it? No client gets in before the holder has stopped or its lease has ended, within 15s. The lock was idle when last renewed: its client gives it up to any other client that waits": {
			h: Holding{Holder: *hold("a", idle)}},
	} {
		require.Equal(t, want, BreakQuestion(c.h, c.now))
	}
}
