package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// patience limits steps that should take no time. It ends only cases that have already failed.
const patience = 20 * time.Second

// soon is how long the judge waits for something that the program does on its own when one of
// its timers fires.
const soon = 10 * time.Second

// settled is how long nothing must happen before the judge concludes that nothing will.
const settled = 300 * time.Millisecond

// violation is what a case reports when the program under test fails to do what it must.
type violation struct {
	Must, Expected, Seen string
	certain              bool // true even on a slow machine
}

// fault ends a case that cannot be judged because something other than the program failed.
type fault struct{ error }

// tooSlow is an error that blames a slow machine.
type tooSlow string

func (s tooSlow) Error() string { return "the machine is too slow: " + string(s) }

// lateness measures the longest delay of this process's timers.
func lateness() (most func() time.Duration, stop func()) {
	const tick = 20 * time.Millisecond
	var longest atomic.Int64
	end := make(chan struct{})
	go func() {
		for due := time.Now().Add(tick); ; due = time.Now().Add(tick) {
			select {
			case <-time.After(tick):
			case <-end:
				return
			}
			if late := int64(time.Since(due)); late > longest.Load() {
				longest.Store(late)
			}
		}
	}()
	return func() time.Duration { return time.Duration(longest.Load()) }, func() { close(end) }
}

// trial is a single run of a case: a bucket, a program behind a wire, and its opponents.
type trial struct {
	*Case
	ctx     context.Context
	run     *run
	url     string // the server's URL
	bucket  string
	ttl     time.Duration // the TTL that the program is opened with
	extends bool          // the program is made to extend locks with other TTLs
	margin  time.Duration // as the program has stated it, or the default
	nc      *nats.Conn    // the judge's own connection
	js      jetstream.JetStream
	stream  jetstream.Stream
	notify  string // the prefix of notification subjects
	wire    *wire
	program *program
	cleanup []func()
}

func (t *trial) last(f func()) { t.cleanup = append(t.cleanup, f) }

func (t *trial) end() {
	for i := len(t.cleanup) - 1; i >= 0; i-- {
		t.cleanup[i]()
	}
}

// expect ends the case as failed unless ok is true.
func (t *trial) expect(ok bool, expected, seen string, args ...any) {
	if !ok {
		t.violated(t.Must, expected, seen, args...)
	}
}

func (t *trial) violated(must, expected, seen string, args ...any) {
	panic(violation{must, expected, fmt.Sprintf(seen, args...), false})
}

// need aborts the case without a verdict if err is not nil.
func (t *trial) need(err error) {
	if err != nil {
		panic(fault{err})
	}
}

// prepare connects the judge to a server and creates the bucket.
func (t *trial) prepare(url string) {
	t.url = url
	var err error
	t.nc, err = nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	t.need(err)
	t.last(t.nc.Close)
	t.js, err = jetstream.New(t.nc)
	t.need(err)
	if t.NoBucket {
		return
	}
	t.rival() // creates the bucket
	t.stream, err = t.js.Stream(t.ctx, "KV_"+t.bucket)
	t.need(err)
	t.notify = strings.TrimSuffix(t.stream.CachedInfo().Config.RePublish.Destination, ">")
}

// server starts a server for this case, with its data in dir. If user is not nil, the server
// treats the program as that user.
func (t *trial) server(dir string, user *server.User) (stop func()) {
	var users []*server.User
	if user != nil {
		users = []*server.User{user, {Username: "judge", Password: "judge"}}
	}
	s, err := startServer(dir, 0, users...)
	t.need(err)
	url := s.ClientURL()
	if user != nil {
		url = strings.Replace(url, "nats://", "nats://judge:judge@", 1)
	}
	t.prepare(url)
	return func() { stopServer(s) }
}

// ownServer starts a server with an empty directory, and returns a function that restarts the
// server.
func (t *trial) ownServer(user *server.User) (restart func()) {
	dir, err := os.MkdirTemp("", "lockconform-")
	t.need(err)
	t.last(func() { _ = os.RemoveAll(dir) })
	stop := t.server(dir, user)
	t.last(func() { stop() })
	return func() {
		u, err := url.Parse(t.url)
		t.need(err)
		port, err := strconv.Atoi(u.Port())
		t.need(err)
		stop()
		t.pause(4 * settled) // so that the program notices, even while it waits for an answer
		s, err := startServer(dir, port)
		t.need(err)
		stop = func() { stopServer(s) }
		end := time.Now().Add(patience)
		for _, err = t.stream.Info(t.ctx); err != nil && time.Now().Before(end); _, err = t.stream.Info(t.ctx) {
			t.pause(20 * time.Millisecond)
		}
		t.need(err)
	}
}

// rival returns a client that uses the library.
func (t *trial) rival() *natslock.Client {
	nc, err := nats.Connect(t.url, nats.MaxReconnects(-1))
	t.need(err)
	t.last(nc.Close)
	c, err := natslock.New(t.ctx, nc, natslock.WithBucket(t.bucket), natslock.WithTTL(time.Minute), natslock.WithOwner("lockconform"), natslock.WithLogger(slog.New(slog.DiscardHandler)),
		natslock.WithTuning(natslock.Tuning{WatchAfter: -1})) // its first renewal is due after a third of the minute
	t.need(err)
	t.last(func() { _ = c.Close(context.WithoutCancel(t.ctx)) })
	return c
}

// rivalTakes makes a client that uses the library take a mutex.
func (t *trial) rivalTakes(name string) *natslock.Lock {
	l, err := t.rival().Lock(t.ctx, name, natslock.MaxWait(patience))
	t.need(err)
	t.keep(l)
	return l
}

// keep releases a lock at the end of the case, because the lock's client would not close until
// then.
func (t *trial) keep(l *natslock.Lock) {
	t.last(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), time.Second)
		defer cancel()
		_ = l.Unlock(ctx)
	})
}

// start runs the program behind a wire.
func (t *trial) start() {
	var err error
	t.wire, err = newWire(t.url, t.bucket)
	t.need(err)
	t.last(t.wire.close)
	t.program, err = startProgram(t.run.Program)
	t.need(err)
	t.last(t.program.end)
}

// open starts the program and makes it open the bucket.
func (t *trial) open() {
	t.start()
	t.opened()
}

// opened makes the running program open the bucket.
func (t *trial) opened() {
	a := t.ask(t.opening())
	if a.Result != "ok" {
		t.violated("The protocol of lines: a bucket that is fit is opened.", `"ok"`, "%s", a)
	}
	t.says(a)
}

// usual returns the margin of a program that has not stated one.
func (t *trial) usual() time.Duration { return max(min(t.whole()/10, time.Second), t.whole()/1000) }

// says records the margin that the program states when it opens the bucket.
func (t *trial) says(a answer) {
	if t.margin = t.usual(); a.Margin > 0 {
		t.margin = time.Duration(a.Margin) * time.Millisecond
		if t.margin < t.whole()/1000 || t.margin > t.whole()/2 {
			t.violated(mustHaveMargin, "a margin from T/1000 to T/2", "%v for a TTL of %v", t.margin, t.whole())
		}
	}
}

func (t *trial) opening() request {
	return request{Do: "open", URL: "nats://" + t.wire.address(), Bucket: t.bucket, TTL: t.ttl.Milliseconds(), Level: t.run.Level}
}

// send sends a request, and answered waits for its answer.
func (t *trial) send(r request) <-chan answer {
	ch, err := t.program.send(r)
	if err != nil {
		t.gone(r)
	}
	return ch
}

func (t *trial) gone(r request) {
	select { // read its last line first
	case <-t.program.ended:
	case <-time.After(grace):
	}
	panic(violation{"The protocol of lines: each request has one answer.", "an answer to " + r.Do, "the program has ended; " + t.program.complaint(), true})
}

// ask sends a request and waits for its answer.
func (t *trial) ask(r request) answer { return t.answered(r, t.send(r)) }

func (t *trial) answered(r request, ch <-chan answer) (a answer) {
	limit := time.NewTimer(patience + time.Duration(r.Wait)*time.Millisecond)
	defer limit.Stop()
	select {
	case a = <-ch:
	case <-t.program.ended:
		select {
		case a = <-ch:
		default:
			t.gone(r)
		}
	case <-limit.C:
		t.violated("The protocol of lines: each request has one answer.", "an answer to "+r.Do, "none in %v; %s", patience, t.program.complaint())
	case <-t.ctx.Done():
		t.need(context.Cause(t.ctx))
	}
	switch a.Result {
	case "ok", "refused", "lost", "error":
	default:
		t.violated("The protocol of lines: a result is ok, refused, lost or error.", "one of these", "%s", a)
	}
	return a
}

func (t *trial) try(name string) answer { return t.ask(request{Do: "try", Name: name}) }

// take makes the program take a free mutex, and returns the mutex's record.
func (t *trial) take(name string) stored {
	a := t.try(name)
	t.expect(a.Result == "ok", "ok: the lock is free", "%s", a)
	return t.granted(name, a)
}

// granted judges a grant by its record, and returns the record.
func (t *trial) granted(name string, a answer) stored {
	s := t.read("lock." + name)
	t.expect(s.live() && number(s.fields["s"]) == 1, "a record of status 1 under lock."+name+" after the answer ok", "%s", s)
	t.expect(t.wrote(s.key, s.revision), "a grant of the program's own record", "%s, which another client wrote", s)
	t.within(name, a, time.Time{})
	return s
}

// wrote reports whether the program wrote the given revision of key.
func (t *trial) wrote(key string, revision uint64) bool {
	for _, w := range t.wire.seen(key) {
		if w.stored == revision {
			return true
		}
	}
	return false
}

// status requests the state of a lock, and judges its validity.
func (t *trial) status(name string) answer {
	asked := time.Now()
	a := t.ask(request{Do: "status", Name: name})
	if a.Held {
		t.within(name, a, asked)
	}
	return a
}

// rounding is how far off a number of milliseconds can be.
const rounding = 2 * time.Millisecond

// within judges a validity, which must not outlast what the last write allows. The program
// answered after asked, so it considers the lock held at least until asked plus the time left.
func (t *trial) within(name string, a answer, asked time.Time) {
	bound, w := t.bound(name)
	if asked.IsZero() { // a grant cannot be earlier than its write
		asked = w.at
	}
	left := time.Duration(a.Left) * time.Millisecond
	if over := asked.Add(left - rounding).Sub(bound); over > 0 {
		t.violated(mustEndInTime,
			fmt.Sprintf("a validity that ends %v after the sending of %s", t.validity(), w.String()), "%v left, which ends %v later than that", left, over.Round(time.Millisecond))
	}
}

// whole returns the TTL in whole seconds.
func (t *trial) whole() time.Duration {
	return (t.ttl + time.Second - 1).Truncate(time.Second)
}

// seconds returns the TTL as written in a header.
func (t *trial) seconds() string { return strconv.Itoa(int(t.whole().Seconds())) + "s" }

func (t *trial) validity() time.Duration { return t.whole() - t.margin }

// bound returns the latest possible end of the validity, and the last stored write, which
// determines it.
func (t *trial) bound(name string) (bound time.Time, of write) {
	for _, w := range t.wire.seen("lock." + name) {
		if w.stored > 0 && !w.deletes() && w.stored > of.stored {
			of = w
		}
	}
	return of.at.Add(t.validity()), of
}

// notHeld requires that the program not consider the lock held.
func (t *trial) notHeld(name, expected string) {
	a := t.status(name)
	t.expect(!a.Held, expected, "held, with %d ms left", a.Left)
}

// lost waits until the program has reported a lock as lost.
func (t *trial) lost(name, expected string) {
	t.eventually(expected+`: {"event":"lost","name":"`+name+`"}`, "no such line", func() bool { return t.program.toldLost(name) })
	t.notHeld(name, expected)
}

// eventually waits until ok returns true.
func (t *trial) eventually(expected, otherwise string, ok func() bool) {
	for end := time.Now().Add(soon); !ok(); t.pause(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.expect(false, expected, "%s after %v; its writes: %s", otherwise, soon, t.writes())
		}
	}
}

// writes describes the program's latest writes.
func (t *trial) writes() string {
	all := t.wire.seen("")
	if len(all) == 0 {
		return "none"
	}
	words := []string{}
	for _, w := range all[max(0, len(all)-5):] {
		words = append(words, w.String())
	}
	return strings.Join(words, ", ")
}

func (t *trial) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
		t.need(context.Cause(t.ctx))
	}
}

func (t *trial) pauseUntil(at time.Time) { t.pause(time.Until(at)) }

// stored is a message in the bucket.
type stored struct {
	key      string
	revision uint64 // 0 if there is no message
	at       time.Time
	header   nats.Header
	data     []byte
	fields   map[string]any
}

func (s stored) deleted() bool { return s.header.Get("KV-Operation") != "" }
func (s stored) live() bool    { return s.revision > 0 && !s.deleted() }

func (s stored) String() string {
	switch {
	case s.revision == 0:
		return "nothing under " + s.key
	case s.deleted():
		return fmt.Sprintf("a tombstone of %s at %d", s.key, s.revision)
	}
	return fmt.Sprintf("a record of %s at %d with status %d, id %q and TTL %q%s", s.key, s.revision, number(s.fields["s"]), text(s.fields["id"]), s.header.Get("Nats-TTL"), unreadablePart(s.fields))
}

// read reads a key from the leader.
func (t *trial) read(key string) stored {
	m, err := t.stream.GetLastMsgForSubject(t.ctx, "$KV."+t.bucket+"."+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return stored{key: key}
	}
	t.need(err)
	return stored{key: key, revision: m.Sequence, at: m.Time, header: m.Header, data: m.Data, fields: decode(m.Data)}
}

// places returns the live places in a mutex's queue.
func (t *trial) places(name string) (all []stored) {
	info, err := t.stream.Info(t.ctx, jetstream.WithSubjectFilter("$KV."+t.bucket+".wait."+name+".*"))
	t.need(err)
	for subject := range info.State.Subjects {
		if s := t.read(strings.TrimPrefix(subject, "$KV."+t.bucket+".")); s.live() && number(s.fields["s"]) == 2 {
			all = append(all, s)
		}
	}
	return all
}

// place waits for the program's place in a queue.
func (t *trial) place(name string) (place stored) {
	t.eventually("a place under wait."+name, "none", func() bool {
		for _, s := range t.places(name) {
			if t.wrote(s.key, s.revision) {
				place = s
				return true
			}
		}
		return false
	})
	return place
}

// record returns the value of a record that another client could have written.
func record(status int, id string, ttl time.Duration, more map[string]any) []byte {
	f := map[string]any{"v": 1, "s": status, "id": id, "c": "CONFORM", "l": int(ttl.Seconds()), "a": 1, "o": "lockconform"}
	for name, value := range more {
		f[name] = value
	}
	data, _ := msgpack.Marshal(f) // only plain values
	return data
}

// put publishes to a key if its last revision is expect, as another client would.
func (t *trial) put(key string, data []byte, expect uint64, ttl time.Duration) uint64 {
	return t.publish(key, data, expect, nats.Header{"Nats-TTL": {strconv.Itoa(int(ttl.Seconds())) + "s"}})
}

// erase writes a tombstone, as an operator's tool would.
func (t *trial) erase(key string, status int, id string, expect uint64) uint64 {
	return t.publish(key, record(status, id, 0, nil), expect, nats.Header{"Nats-TTL": {"1s"}, "KV-Operation": {"DEL"}})
}

func (t *trial) publish(key string, data []byte, expect uint64, header nats.Header) uint64 {
	header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(expect, 10))
	ack, err := t.js.PublishMsg(t.ctx, &nats.Msg{Subject: "$KV." + t.bucket + "." + key, Header: header, Data: data})
	t.need(err)
	return ack.Sequence
}

// forge publishes a notification without a write.
func (t *trial) forge(key string, revision uint64, data []byte, deleted bool) {
	h := nats.Header{
		"Nats-Stream": {"KV_" + t.bucket}, "Nats-Subject": {"$KV." + t.bucket + "." + key},
		"Nats-Sequence": {strconv.FormatUint(revision, 10)}, "Nats-Time-Stamp": {time.Now().UTC().Format(time.RFC3339Nano)}, "Nats-Last-Sequence": {"0"},
		"Nats-TTL": {"60s"},
	}
	if deleted {
		h.Set("KV-Operation", "DEL")
		h.Set("Nats-TTL", "1s")
	}
	t.need(t.nc.PublishMsg(&nats.Msg{Subject: t.notify + key, Header: h, Data: data}))
	t.need(t.nc.Flush())
}

// forgeAt is forge for a record that was stored at a given time.
func (t *trial) forgeAt(key string, revision uint64, data []byte, at time.Time, ttl time.Duration) {
	t.need(t.nc.PublishMsg(&nats.Msg{Subject: t.notify + key, Data: data, Header: nats.Header{
		"Nats-Stream": {"KV_" + t.bucket}, "Nats-Subject": {"$KV." + t.bucket + "." + key}, "Nats-Last-Sequence": {"0"},
		"Nats-Sequence": {strconv.FormatUint(revision, 10)}, "Nats-Time-Stamp": {at.UTC().Format(time.RFC3339Nano)},
		"Nats-TTL": {strconv.Itoa(int(ttl.Seconds())) + "s"},
	}}))
	t.need(t.nc.Flush())
}

// untouched requires that the program has not replaced a record. The record's owner may have
// renewed it.
func (t *trial) untouched(before stored) {
	now := t.read(before.key)
	id := text(before.fields["id"])
	ok := now.revision == before.revision || now.live() && id != "" && text(now.fields["id"]) == id
	for _, w := range t.wire.seen(before.key) {
		ok = ok && w.stored <= before.revision
	}
	t.expect(ok, before.String()+", as before", "%s; its writes: %s", now, t.writes())
}

// operator returns an operator's client, which uses the library.
func (t *trial) operator() *admin.Admin { return admin.New(t.rival()) }

// forget makes a stopped server forget all TTLs, as a real server may do when it restarts.
func forget(dir string) error {
	// The state consists of a version, the number of entries, the sequence that it covers, and
	// no entries.
	state := append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, 255, 255, 255, 255, 255, 255, 255, 255)
	found := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "thw.db" {
			return err
		}
		found++
		return os.WriteFile(path, state, 0o600)
	})
	if err == nil && found == 0 {
		err = errors.New("no stream in files has a record with a TTL")
	}
	return err
}

var (
	seconds = regexp.MustCompile(`^[1-9][0-9]*s$`)
	literal = regexp.MustCompile(`^[-A-Za-z0-9_=/]+(\.[-A-Za-z0-9_=/]+)*$`)
)

// rule is a rule for every write that a locker sends. broken returns what was expected, or ""
// if the write obeys the rule.
type rule struct {
	must   string
	broken func(t *trial, w write) string
}

// Sentences that are judged in every case.
const (
	mustEndInTime     = "A client must (M46) measure it from when it sent the write, and must not (M47) work, or report that it holds the lock, after it has ended."
	mustArriveInTime  = "It must not (M48) count unless it arrives before the validity that it gives would end."
	mustHaveMargin    = "The *margin* must (M45) be at least T/1000, and at least as long as the error that the client's clock can accumulate during T."
	mustOrder         = "The waiter must (M72) list the queue, and order the places by ticket."
	mustEndQuickly    = "only in a tombstone: `DEL`, with `Nats-TTL: 1s`"
	mustRoundUp       = "A fraction must (M35) be rounded **up**."
	mustRefuseTTL     = "A client refuses all other TTLs before any I/O, even one that only rounding would raise to 1 s."
	mustNotRead       = "It must (M32) treat a value as *unreadable* in exactly these cases, because readers have to agree on a queue."
	mustRepeat        = "A renewal writes the same record with a number `r` and the token `t`, but without `a`."
	mustExpect        = "A client must not (M36) send any write, not even a deletion, without an expectation and a TTL."
	mustNotExpectZero = "It expects the last revision that the client knows of its record, and must not (M84) expect 0."
	mustGiveUp        = "A waiter that gives up writes a tombstone with status 4"
	mustNameTheEnded  = "Its `id` is that of the record it ends, even if that record is another client's"
	mustLeave         = "The tombstone must not (M77) have status 5 unless no place at all was ahead of the waiter's, because status 5 makes its successor claim immediately. Otherwise the tombstone has status 9."
)

// rules apply to every write that the program sends, in every case.
var rules = []rule{
	{mustExpect, func(_ *trial, w write) string {
		_, err := strconv.ParseUint(w.expect(), 10, 64)
		return unless(err == nil, "Nats-Expected-Last-Subject-Sequence with a number")
	}},
	{"It must not (M37) send `Nats-Msg-Id`, because a replicated stream acknowledges a duplicate before it compares revisions.", func(_ *trial, w write) string {
		return unless(w.header.Get("Nats-Msg-Id") == "", "no Nats-Msg-Id")
	}},
	{"whole seconds with an `s`", func(_ *trial, w write) string {
		return unless(seconds.MatchString(w.header.Get("Nats-TTL")), "Nats-TTL with whole seconds")
	}},
	{"Every write is a plain publish to `$KV.<bucket>.<key>` with a reply subject and these headers:", func(_ *trial, w write) string {
		return unless(w.reply != "", "a reply subject")
	}},
	{"A key must (M24) be literal, and is at most 1,024 bytes long.", func(_ *trial, w write) string {
		return unless(literal.MatchString(w.key) && len(w.key) <= 1024, "a literal key")
	}},
	{mustEndQuickly, func(_ *trial, w write) string {
		return unless(!w.deletes() || w.header.Get("KV-Operation") == "DEL" && w.header.Get("Nats-TTL") == "1s", "KV-Operation: DEL and Nats-TTL: 1s")
	}},
	{mustNotRead, func(_ *trial, w write) string {
		return unless(w.deletes() || unreadableBy(w.fields) == "", "a record that others can read")
	}},
	{"The value of a record is a msgpack map.", func(_ *trial, w write) string {
		return unless(w.deletes() || number(w.fields["v"]) == 1 && text(w.fields["id"]) != "" && len(w.data) <= 16384, "a record with v 1, s and id")
	}},
	{"the TTL in seconds. 0 in a tombstone", func(_ *trial, w write) string {
		l := strconv.FormatUint(number(w.fields["l"]), 10)
		return unless(w.deletes() || w.header.Get("Nats-TTL") == l+"s", "Nats-TTL as the field l, which is "+l)
	}},
	{mustRoundUp, func(t *trial, w write) string {
		held := !w.deletes() && strings.HasPrefix(w.key, "lock.") && number(w.fields["s"]) == 1
		return unless(!held || t.extends || w.header.Get("Nats-TTL") == t.seconds(), "Nats-TTL of the "+t.ttl.String()+" that the bucket was opened with")
	}},
	{mustNotExpectZero, func(_ *trial, w write) string {
		return unless(w.deletes() || !w.renewal() || !w.expects(0), "a renewal that expects the last revision")
	}},
	{mustRepeat, func(_ *trial, w write) string {
		return unless(w.deletes() || !w.renewal() || number(w.fields["a"]) == 0 && number(w.fields["t"]) > 0, "r and t, and no a")
	}},
	{mustRepeat, func(t *trial, w write) string {
		if w.deletes() || !w.renewal() {
			return ""
		}
		differ := ""
		for _, of := range t.wire.seen(w.key) {
			if !of.deletes() && !of.renewal() && text(of.fields["id"]) == text(w.fields["id"]) {
				if differ = differs(of.fields, w.fields); differ == "" {
					return ""
				}
			}
		}
		return unless(differ == "", "the field "+differ+" as the attempt has it")
	}},
	{"From level 2 on, only the records of *fixed* leases, which are never renewed, contain `f`.", func(_ *trial, w write) string {
		return unless(w.deletes() || !w.renewal() || w.fields["f"] == nil || w.fields["by"] != nil, "no f in the renewal: a fixed lease is not renewed")
	}},
	{"the number of the attempt, from 1. Absent in renewals", func(_ *trial, w write) string {
		return unless(w.deletes() || w.renewal() || number(w.fields["a"]) > 0, "a, the number of the attempt")
	}},
}

// repeated lists the fields that a renewal copies from the attempt that was granted.
var repeated = []string{"at", "w", "c", "o", "h", "p", "ps", "m", "q"}

// differs returns the name of a field that a renewal failed to copy, or "".
func differs(attempt, renewal map[string]any) string {
	for _, field := range repeated {
		if number(renewal["g"]) > 1 && (field == "at" || field == "w") {
			continue // these fields describe the goroutine that has the lease now
		}
		if a, b := asText(attempt[field]), asText(renewal[field]); a != b {
			return field
		}
	}
	return ""
}

// asText returns a value as text. Absent values and zero values are treated alike.
func asText(v any) string {
	if s := fmt.Sprint(v); v != nil && s != "0" {
		return s
	}
	return ""
}

func unless(ok bool, expected string) string {
	if ok {
		return ""
	}
	return expected
}

// brokenRule judges every write that the program sent. It runs after every case, and its
// verdict takes precedence over what the case found.
func (t *trial) brokenRule() (v violation, broken bool) {
	if t.wire == nil {
		return v, false
	}
	for _, w := range t.wire.seen("") {
		if !strings.Contains(w.key, ".") && w.stored == 0 {
			continue // a write to a key that belongs to no lock, which tests whether the stream accepts writes
		}
		for _, r := range rules {
			if expected := r.broken(t, w); expected != "" {
				return violation{r.must, expected, "a " + w.String(), true}, true
			}
		}
	}
	return v, false
}
