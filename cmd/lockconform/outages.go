package main

import (
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// least returns a user who is allowed to use the locks under "orders." and nothing else.
// docs/permissions.conf grants the same permissions to a service.
func (t *trial) least() *server.User {
	return &server.User{Username: "orders", Password: "orders", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$KV." + t.bucket + ".*.orders.>", "$JS.API.STREAM.INFO.KV_" + t.bucket,
			"$JS.API.DIRECT.GET.KV_" + t.bucket + ".$KV." + t.bucket + ".*.orders.>",
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"natslock." + t.bucket + ".*.*.orders.>", "_INBOX.>"}},
	}}
}

func leastPrivilege(t *trial) {
	t.ownServer(t.least())
	t.open()
	const name = "orders.x"
	t.take(name)
	a := t.ask(request{Do: "unlock", Name: name})
	t.expect(a.Result == "ok", `"ok" from unlock`, "%s", a)
	l := t.rivalTakes(name)
	before := t.read("lock." + name)
	a = t.try(name)
	t.expect(a.Result == "refused", `"refused": the lock is held`, "%s", a)
	t.untouched(before)
	t.need(l.Unlock(t.ctx))
	t.take(name)
	place := "wait.orders.y.OTHER"
	t.put(place, record(2, "OTHER", 15*time.Second, nil), 0, 15*time.Second)
	t.put("lock.orders.y", record(1, "HOLDER", time.Minute, nil), 0, time.Minute)
	t.erase("lock.orders.y", 4, "HOLDER", t.read("lock.orders.y").revision)
	a = t.try("orders.y")
	t.expect(a.Result == "refused", `"refused": another client waits for the lock`, "%s", a)
}

func leastPrivilegeQueue(t *trial) {
	t.ownServer(t.least())
	t.open()
	const name = "orders.x"
	l := t.rivalTakes(name)
	other := t.rivalWaits(name, 1)
	_, granted := t.waits(name)
	t.need(l.Unlock(t.ctx))
	l = t.rivalGranted(other)
	t.need(l.Unlock(t.ctx))
	granted()
	a := t.ask(request{Do: "unlock", Name: name})
	t.expect(a.Result == "ok", `"ok" from unlock`, "%s", a)
}

func refusedPermission(t *trial) {
	t.ownServer(t.least())
	t.open()
	a := t.try("others.x")
	t.expect(a.Result == "error", `"error": the user of the program may not write to this lock, and it is free`, "%s", a)
	t.notHeld("others.x", "not held: its user may not write to it")
	t.take("orders.x")
}

// bufferedWrite makes the program try a lock while the program has no connection.
func bufferedWrite(t *trial) {
	t.open()
	t.take("first")
	back := t.wire.cut()
	t.pause(settled) // until the program notices, because a write to the old connection would be lost
	r := request{Do: "try", Name: x}
	ch := t.send(r)
	var a *answer
	select {
	case got := <-ch:
		a = &got
		t.expect(got.Result != "ok", "no grant: it has no connection", "%s", got)
	case <-time.After(2 * time.Second):
	}
	at := time.Now()
	before := t.wire.infosShown()
	back()
	t.eventually("a reconnect", "none", func() bool { return t.wire.infosShown() > before })
	if a == nil {
		t.answered(r, ch)
	}
	t.pause(settled)
	for _, w := range t.wire.seen("lock." + x) {
		made := time.UnixMilli(int64(number(w.fields["at"])))
		t.expect(w.deletes() || a == nil && at.Sub(made) < time.Second, "no write from the time without a connection", "a %s, created %v before the reconnect", w.String(), at.Sub(made).Round(time.Millisecond))
	}
}

// reconnect frees the lock while a waiter has no connection.
func reconnect(t *trial) {
	t.open()
	b := t.waitsBehind(x, 0)
	back := t.wire.cut()
	b.free()
	t.pause(settled)
	back()
	b.granted()
}

// restartHeld restarts the server while the program holds a lock.
func restartHeld(t *trial) {
	restart := t.ownServer(nil)
	t.open()
	s := t.take(x)
	first := t.wire.seen(s.key)[0]
	restart()
	t.pauseUntil(first.at.Add(t.validity() + settled))
	t.expect(t.status(x).Held, "held: the server was down for less than the validity", "not held; its writes: %s", t.writes())
	t.expect(!t.program.toldLost(x), "no lost lock", `{"event":"lost"}`)
	now := t.read(s.key)
	t.expect(text(now.fields["id"]) == text(s.fields["id"]) && now.live(), "its record", "%s", now)
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
}

// restartWaiter restarts the server while the program waits.
func restartWaiter(t *trial) {
	restart := t.ownServer(nil)
	t.open()
	b := t.waitsBehind(x, 0)
	restart()
	b.free()
	a := b.granted()
	t.expect(a.Token>>6 > b.holder.revision, "a token above the previous holder's", "%d", a.Token)
}
