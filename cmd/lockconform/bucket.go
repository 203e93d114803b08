package main

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// rows are settings that a client must refuse, expressed as changes to a stream info. None of our servers can create
// a bucket with such a setting unless it has other settings that are refused as well.
var rows = []struct {
	row    string
	change func(c map[string]any)
}{
	{"persist_mode async", func(c map[string]any) { c["persist_mode"] = "async" }},
	{"a mirror", func(c map[string]any) { c["mirror"] = map[string]any{"name": "OTHER"} }},
	{"sources", func(c map[string]any) { c["sources"] = []any{map[string]any{"name": "OTHER"}} }},
	{"a subject_transform", func(c map[string]any) { c["subject_transform"] = map[string]any{"src": ">", "dest": ">"} }},
	{"no_ack", func(c map[string]any) { c["no_ack"] = true }},
	{"sealed", func(c map[string]any) { c["sealed"] = true }},
	{"allow_msg_counter", func(c map[string]any) { c["allow_msg_counter"] = true }},
}

// refuses requires the program not to open a bucket that looks like this.
func (t *trial) refuses(row string, change func(c map[string]any)) {
	t.wire.show(func(i map[string]any) {
		if c, ok := i["config"].(map[string]any); ok {
			change(c)
		}
	})
	a := t.ask(t.opening())
	t.expect(a.Result == "error", `"error" of open for `+row, "%s", a)
	t.wire.show(nil)
}

func bucketRows(t *trial) {
	t.start()
	for _, one := range rows {
		t.refuses("a bucket with "+one.row, one.change)
	}
	t.wire.show(func(i map[string]any) {
		if c, ok := i["config"].(map[string]any); ok {
			maps.Copy(c, map[string]any{"allow_direct": false, "max_consumers": 9, "description": x, "of_a_later_server": true})
		}
	})
	a := t.ask(t.opening())
	t.expect(a.Result == "ok", `"ok" for a bucket that is fit, with a setting of a later server`, "%s", a)
}

// mirrored makes a stream info look like that of a mirrored bucket on a cluster.
func mirrored(i map[string]any) {
	replicated(i, true)
	if c, ok := i["config"].(map[string]any); ok {
		c["num_replicas"] = 1
		i["alternates"] = []any{map[string]any{"name": "OTHER", "cluster": "conform"}, map[string]any{"name": c["name"], "cluster": "conform"}}
	}
	if c, ok := i["cluster"].(map[string]any); ok {
		delete(c, "replicas")
	}
}

// bucketAlone shows the program a bucket with a mirror, and one with replicas, and answers the program's reads from a
// state in which the lock was still held. The program must either refuse these buckets, or be of level 5 and know that
// such an answer does not prove that the lock is held.
func bucketAlone(t *trial) {
	old := "MV_" + t.bucket // as long as the bucket's stream name
	for i, of := range []struct {
		what  string
		shown func(i map[string]any)
	}{{"a mirror", mirrored}, {"three replicas", func(i map[string]any) { replicated(i, true) }}} {
		name := fmt.Sprintf("%s.%d", x, i)
		t.start()
		t.wire.show(of.shown)
		a := t.ask(t.opening())
		if a.Result != "ok" {
			t.expect(a.Result == "error", `"error" of open for a bucket with `+of.what, "%s", a)
			continue
		}
		t.margin = t.usual()
		holder := t.put("lock."+name, record(1, "HOLDER", time.Minute, nil), 0, time.Minute)
		end := t.copied(old, holder)
		t.wire.lag("KV_"+t.bucket, old, of.what != "a mirror")
		t.erase("lock."+name, 4, "HOLDER", holder)
		a = t.try(name)
		t.expect(a.Result != "refused", `"error" of open for a bucket with `+of.what+", or, for level 5, no refusal: the lock is free", "%s from a try, based on an answer from an older state", a)
		end()
	}
}

// copied creates a stream with the bucket's current records. The copy does not follow later changes.
func (t *trial) copied(name string, last uint64) (end func()) {
	c := jetstream.StreamConfig{Name: name, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 1, AllowDirect: true, Mirror: &jetstream.StreamSource{Name: "KV_" + t.bucket}}
	s, err := t.js.CreateStream(t.ctx, c)
	t.need(err)
	t.eventually("the records in a mirror", "not there", func() bool {
		info, err := s.Info(t.ctx)
		return err == nil && info.State.LastSeq >= last
	})
	c.Mirror = nil
	_, err = t.js.UpdateStream(t.ctx, c)
	t.need(err)
	return func() { t.need(t.js.DeleteStream(t.ctx, name)) }
}

func bucketServers(t *trial) {
	t.start()
	metadata := func(change func(m map[string]any)) func(c map[string]any) {
		return func(c map[string]any) {
			if m, ok := c["metadata"].(map[string]any); ok {
				change(m)
			}
		}
	}
	t.refuses("a server of level 1", metadata(func(m map[string]any) { m["_nats.level"] = "1" }))
	t.refuses("a server without a level", metadata(func(m map[string]any) { delete(m, "_nats.level") }))
	a := t.ask(t.opening())
	t.expect(a.Result == "ok", `"ok" for a server that is fit`, "%s", a)
}

// reconnected makes the program reconnect, and waits until it has read the bucket's stream info again.
func (t *trial) reconnected() {
	before := t.wire.infosShown()
	t.wire.cut()()
	if !t.within10(func() bool { return t.wire.infosShown() > before }) {
		t.violated("A client must (M18) verify the bucket in this way when opening it and after each reconnect.", "a request for the stream info after a reconnect", "none in %v", soon)
	}
	t.pause(settled)
}

// within10 waits for up to soon until ok returns true, and reports whether it did.
func (t *trial) within10(ok func() bool) bool {
	for end := time.Now().Add(soon); !ok(); t.pause(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// configure changes the bucket's settings.
func (t *trial) configure(change func(c *jetstream.StreamConfig)) {
	c := t.stream.CachedInfo().Config
	change(&c)
	var err error
	_, err = t.js.UpdateStream(t.ctx, c)
	t.need(err)
}

func expires(c *jetstream.StreamConfig)  { c.MaxAge = time.Hour }
func asBefore(c *jetstream.StreamConfig) { c.MaxAge = 0 }

// bucketUnfit changes a setting while the program is connected.
func bucketUnfit(t *trial) {
	t.open()
	t.take("first")
	t.configure(expires)
	t.reconnected()
	a := t.try(x)
	t.expect(a.Result != "ok", "no grant: the bucket now has a max_age of 1 h", "%s", a)
	t.eventually("no record", "still there", func() bool { return !t.read("lock." + x).live() })
	t.configure(asBefore)
	t.reconnected()
	t.eventually("ok: the bucket is fit again", "no grant", func() bool { return t.try(x).Result == "ok" })
}

// anew deletes and re-creates the bucket, with first as the revision of its first record.
func (t *trial) anew(first uint64, change func(c *jetstream.StreamConfig)) {
	c := t.stream.CachedInfo().Config
	t.need(t.js.DeleteStream(t.ctx, c.Name))
	c.FirstSeq = first
	change(&c)
	made := func() (err error) {
		t.stream, err = t.js.CreateStream(t.ctx, c)
		return err
	}
	err := made()
	for try := 0; busy(err) && try < 100; try++ {
		time.Sleep(10 * time.Millisecond)
		err = made()
	}
	t.need(err)
}

// busy reports whether a server could not create a stream because it is still removing the deleted one's files.
func busy(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.ErrorCode == 10049
}

// recreated re-creates the bucket without the lock's record while the program holds the lock, and makes the program
// reconnect. No renewal gets through.
func (t *trial) recreated(change func(c *jetstream.StreamConfig)) {
	t.open()
	gate := make(chan struct{})
	t.last(func() { close(gate) })
	t.wire.govern(func(w *write) fate {
		if w.n == 1 {
			return fate{}
		}
		return fate{hold: gate}
	})
	s := t.take(x)
	t.anew(s.revision+1000, change)
	t.reconnected()
	t.notHeld(x, "not held: the bucket was deleted and re-created")
}

func bucketAnew(t *trial) { t.recreated(asBefore) }

func bucketAnewUnfit(t *trial) {
	t.recreated(expires)
	t.configure(asBefore)
	t.reconnected()
	t.notHeld(x, "not held: the lease belonged to the previous bucket")
}

// tokensBackwards re-creates the bucket with low revisions.
func tokensBackwards(t *trial) {
	t.open()
	s := t.take(x)
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
	t.anew(1, asBefore)
	for range 2 {
		a := t.try("y")
		t.expect(a.Result != "ok", "no grant: its token would be below that of the previous grant, "+s.String(), "%s, with the token %d", a, a.Token)
	}
	t.eventually("no record", "still there", func() bool { return !t.read("lock.y").live() })
}

// unfitHeld changes a setting while the program holds a lock.
func unfitHeld(t *trial) {
	t.open()
	s := t.take(x)
	t.configure(expires)
	t.reconnected()
	now := t.read(s.key)
	t.eventually("a renewal", "none", func() bool { return t.read(s.key).revision > now.revision })
	t.pause(t.ttl)
	t.expect(t.status(x).Held, "held: the bucket became unfit after the grant", "not held; its writes: %s", t.writes())
	t.expect(t.ask(request{Do: "unlock", Name: x}).Result == "ok", "ok", "no ok from unlock")
	t.expect(!t.read(s.key).live(), "no record after the release", "%s", t.read(s.key))
}

// unfitWaiter changes a setting while the program waits.
func unfitWaiter(t *trial) {
	t.open()
	b := t.waitsBehind(x, 0)
	t.configure(expires)
	t.reconnected()
	b.free()
	t.pause(2 * settled)
	s := t.read(b.holder.key)
	t.expect(!s.live(), "no grant: the bucket now has a max_age of 1 h", "%s", s)
	t.configure(asBefore)
	t.reconnected()
	if a := b.answered(); a.Result != "error" { // an acquire may fail in an unfit bucket
		t.expect(a.Result == "ok", `"ok": the bucket is fit again`, "%s", a)
		t.granted(x, a)
	}
}
