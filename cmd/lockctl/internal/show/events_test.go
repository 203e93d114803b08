package show

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestEvents checks both forms of an event: a line for people and a JSON object for scripts, whose
// fields are never renamed.
func TestEvents(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 12, 0, 1, 234e6, time.UTC)
	of := func(typ admin.EventType, set func(*admin.Event, *admin.Holder)) admin.Event {
		h := &admin.Holder{Holder: natslock.Holder{Owner: "web-1", Host: "a", PID: 4711, Since: at.Add(-90 * time.Second), Expires: at.Add(15 * time.Second)}, TTL: 15 * time.Second}
		ev := admin.Event{Type: typ, Time: at, Kind: admin.KindMutex, Mode: admin.Exclusive, Name: "deploy", ID: "ID", Token: 64, Holder: h}
		set(&ev, h)
		return ev
	}
	as := func(*admin.Event, *admin.Holder) {}
	const begin, same = `{"time":"2026-11-23T12:00:01.234Z","event":`, `,"kind":"mutex","name":"deploy","mode":"exclusive"`
	const who, still = `"id":"ID","owner":"web-1","host":"a","pid":4711,"meta":{},`, `"ttl":15,"expires":"2026-11-23T12:00:16.234Z",`
	const end = `"unreadable":false,"lingers":false,"idle":false,"slot":0,"of":0,"after":null}`
	for name, c := range map[string]struct {
		ev           admin.Event
		line, object string
	}{
		"queued": {of(admin.EventQueued, as), "queued    mutex         deploy  web-1 on a:4711  ticket 64",
			begin + `"queued"` + same + `,"ticket":64,` + who + still + `"waited":null,"grants":0,"held":null,"broken":null,` + end},
		"granted": {of(admin.EventGranted, func(ev *admin.Event, h *admin.Holder) {
			ev.Waited, ev.Grants, h.Meta = 2*time.Second, 1, map[string]string{"ticket": "OPS-1"}
		}), "granted   mutex         deploy  web-1 on a:4711  token 64  waited 2.0s",
			begin + `"granted"` + same + `,"token":64,"id":"ID","owner":"web-1","host":"a","pid":4711,"meta":{"ticket":"OPS-1"},` + still + `"waited":2,"grants":1,"held":null,"broken":null,` + end},
		"granted at once": {of(admin.EventGranted, as), "granted   mutex         deploy  web-1 on a:4711  token 64", ""},
		"renewed": {of(admin.EventRenewed, as), "renewed   mutex         deploy  web-1 on a:4711  token 64  held 1m30s",
			begin + `"renewed"` + same + `,"token":64,` + who + still + `"waited":null,"grants":0,"held":90,"broken":null,` + end},
		"late": {of(admin.EventRenewed, func(ev *admin.Event, _ *admin.Holder) { ev.Late = 11 * time.Second }),
			"late      mutex         deploy  web-1 on a:4711  token 64  11s after the last renewal, TTL 15s  held 1m30s",
			begin + `"late"` + same + `,"token":64,` + who + still + `"waited":null,"grants":0,"held":90,"broken":null,"unreadable":false,"lingers":false,"idle":false,"slot":0,"of":0,"after":11}`},
		"released": {of(admin.EventReleased, as), "released  mutex         deploy  web-1 on a:4711  token 64  held 1m30s",
			begin + `"released"` + same + `,"token":64,` + who + `"ttl":null,"expires":null,"waited":null,"grants":0,"held":90,"broken":null,` + end},
		"released when idle": {of(admin.EventReleased, func(_ *admin.Event, h *admin.Holder) { h.Lingers, h.Idle = true, true }),
			"released  mutex         deploy  web-1 on a:4711  token 64  idle",
			begin + `"released"` + same + `,"token":64,` + who + `"ttl":null,"expires":null,"waited":null,"grants":0,"held":null,"broken":null,"unreadable":false,"lingers":true,"idle":true,"slot":0,"of":0,"after":null}`},
		"expired": {of(admin.EventExpired, as), "expired   mutex         deploy  web-1 on a:4711  token 64  held 1m30s",
			begin + `"expired"` + same + `,"token":64,` + who + `"ttl":null,"expires":null,"waited":null,"grants":0,"held":90,"broken":null,` + end},
		"of one that was never seen": {of(admin.EventExpired, func(ev *admin.Event, _ *admin.Holder) { ev.Holder = nil }), "expired   mutex         deploy  unknown  token 64",
			begin + `"expired"` + same + `,"token":64,"id":"ID","owner":"","host":"","pid":0,"meta":{},"ttl":null,"expires":null,"waited":null,"grants":0,"held":null,"broken":null,` + end},
		"broken": {of(admin.EventBroken, func(_ *admin.Event, h *admin.Holder) {
			h.Broken = &admin.Broken{By: "ada@ops", Reason: "it hangs", At: at}
		}), "broken    mutex         deploy  web-1 on a:4711  token 64  held 1m30s  by ada@ops: it hangs",
			begin + `"broken"` + same + `,"token":64,` + who + still + `"waited":null,"grants":0,"held":90,"broken":{"by":"ada@ops","reason":"it hangs","at":"2026-11-23T12:00:01.234Z"},` + end},
		"gave up": {of(admin.EventGaveUp, func(ev *admin.Event, _ *admin.Holder) { ev.Waited = 90 * time.Second }), "gave up   mutex         deploy  web-1 on a:4711  ticket 64  waited 1m30s",
			begin + `"gave_up"` + same + `,"ticket":64,` + who + `"ttl":null,"expires":null,"waited":90,"grants":0,"held":null,"broken":null,` + end},
		"a reader": {of(admin.EventGranted, func(ev *admin.Event, _ *admin.Holder) { ev.Kind, ev.Mode = admin.KindRW, admin.Shared }), "granted   rw shared     deploy  web-1 on a:4711  token 64", ""},
		"a permit": {of(admin.EventGranted, func(ev *admin.Event, h *admin.Holder) { ev.Kind, h.Slot, h.Of = admin.KindSemaphore, 2, 3 }), "granted   semaphore 2   deploy  web-1 on a:4711  token 64", ""},
		"hostile":  {of(admin.EventGranted, func(ev *admin.Event, h *admin.Holder) { ev.Name, h.Owner = "x\x1by", "\x1b[2J" }), `granted   mutex         "x\x1by"  "\x1b[2J on a:4711"  token 64`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, clockMillis(at)+"  "+c.line, EventLine(c.ev))
			if c.object != "" {
				require.Equal(t, c.object, EventObject(c.ev))
			}
		})
	}
}
