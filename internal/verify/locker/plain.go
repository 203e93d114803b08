package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/natslock"
)

// plain is a locker written from docs/protocol, for a single server. It shares only the names
// of errors with the library.
type plain struct {
	nc     *nats.Conn
	bucket string
	id     string // the client's id
	ttl    time.Duration
	notify string // must not change while waiters subscribe
	*state
	weak string // the rule that it breaks; "" for none
}

// The rules that a plain locker can break, as values of -weak. TestConformWeak lists the
// lockconform case that catches each of them.
const (
	fromAnswer    = "validity-from-answer"
	lateCounts    = "late-answers"
	unconditional = "unconditional-delete"
	droppedTTL    = "dropped-ttl"
	truncatedTTL  = "truncated-ttl"
	hintIsProof   = "notification-as-proof"
	anySettings   = "any-bucket"
	adoptsBroken  = "adopts-broken"
	zeroRenewal   = "renews-at-zero"
	believesPlace = "believes-place"
	inFlightHeld  = "in-flight-is-held"
	overHeld      = "late-write-ignored"
	hastyExtend   = "extends-unanswered"
	keepsLonger   = "keeps-the-longer-ttl"
	earlyTurn     = "early-out-of-turn"
	oneWindow     = "keeps-the-window"
	gapCounts     = "bridges-the-gap"
	hintsFree     = "free-by-notification"
	anyHead       = "deletes-the-renewed-head"
	allDead       = "deletes-all-before"
	verifiesOnce  = "verifies-once"
	anyCreation   = "ignores-the-creation"
	settingsFirst = "settings-before-creation"
	dropsUnfit    = "drops-what-it-holds"
	waitersGo     = "waiters-go-on"
	anyFloor      = "ignores-the-floor"
	buffersAll    = "buffers-writes"
	silenceHeld   = "silence-is-held"
	needsMulti    = "needs-many-keys"
	noTimers      = "reads-at-notifications"
	noOutage      = "fails-in-an-outage"
	dropsAtOnce   = "drops-at-a-disconnect"
	oneID         = "one-id"
	anyPlace      = "any-place"
	noTicket      = "renews-without-ticket"
	comparesKeys  = "compares-keys"
	ownClock      = "own-clock"
	hintsOverdue  = "overdue-by-notification"
	guardsRenewal = "renews-with-guard"
	noGuard       = "joins-without-guard"
	joinsAgain    = "joins-again-by-one-id"
	passesWriters = "passes-writers"
	waitsReaders  = "waits-for-readers"
	firstOfAny    = "first-behind-readers"
	writerPasses  = "writers-pass-readers"
	noDrain       = "does-not-drain"
	hintDrains    = "drains-by-notification"
	oldDrain      = "drains-by-an-old-answer"
	anyAnswer     = "drains-by-any-bucket"
	brokenIsGone  = "takes-the-broken-for-gone"
	clearsGate    = "clears-the-gate"
	joinsHeld     = "joins-at-a-live-gate"
	highSlots     = "claims-foreign-slots"
	passesQueue   = "passes-the-queue"
	twoClaims     = "claims-two-slots"
	anyVacancy    = "any-free-slot"
	renewsBroken  = "renews-the-broken"
	saysReleased  = "says-released"
	noTime        = "renews-without-time"
	leavesLate    = "leaves-a-late-renewal"
	anyExtension  = "extends-by-any-ttl"
	byRevision    = "orders-by-revision"
	waitsForNone  = "waits-for-nobody"
	lateUnfit     = "grants-in-an-unfit-bucket"
	zeroIsHeld    = "zero-is-held"
	busyIsHeld    = "unavailable-is-held"
	anyReply      = "takes-any-answer"
	staleReply    = "takes-an-earlier-answer"
	oneSecond     = "margin-of-a-second"
	errorEnds     = "ends-at-an-error"
	floatTTL      = "writes-floats"
)

func newPlain(nc *nats.Conn, bucket string, ttl time.Duration, weak string) (*plain, error) {
	p := &plain{nc: nc, bucket: bucket, id: rand.Text(), weak: weak, state: &state{}}
	if ttl < time.Second || ttl > 24*time.Hour {
		return nil, fmt.Errorf("a TTL of %v: from 1s to 24h", ttl)
	}
	p.ttl = (ttl + time.Second - 1).Truncate(time.Second)
	if weak == truncatedTTL {
		p.ttl = ttl.Truncate(time.Second)
	}
	if err := p.verify(); err != nil {
		return nil, err
	}
	if p.unfit.Load() {
		return nil, errUnfit
	}
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			p.denied.Add(1)
		}
	})
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, l := range p.kept {
			if weak == dropsAtOnce {
				l.cancel(natslock.ErrLost)
			}
		}
	})
	if weak != verifiesOnce {
		nc.SetReconnectHandler(func(*nats.Conn) { _ = p.verify() })
	}
	return p, nil
}

var errUnfit = errors.New("the bucket is not fit for locks")

// state is what a client knows about the bucket.
type state struct {
	unfit   atomic.Bool
	highest atomic.Uint64 // the highest acknowledged revision
	denied  atomic.Int64  // the number of denied permissions
	// keyByKey reports that the user is not allowed to read many keys at once.
	keyByKey atomic.Bool

	mu      sync.Mutex
	created string
	kept    []*lease
	waiting []chan result // for a client that cannot tell answers apart
}

// keep remembers a lease or a place that ends with the bucket.
func (b *state) keep(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, l)
}

// verify judges the bucket, first by its creation time and then by its settings.
func (p *plain) verify() error {
	var info struct {
		Created    string
		Alternates []struct{ Name string } // its mirrors, and the stream itself
		Config     map[string]any
	}
	if err := p.api("STREAM.INFO.KV_"+p.bucket, &info); err != nil {
		return err
	}
	c := info.Config
	metadata, _ := c["metadata"].(map[string]any)
	said, _ := metadata["_nats.level"].(string)
	level, _ := strconv.Atoi(said)
	number := func(name string) float64 { n, _ := c[name].(float64); return n }
	limited := number("max_msgs") > 0 || number("max_bytes") > 0
	fit := c["max_msgs_per_subject"] == 1.0 && c["allow_msg_ttl"] == true && fmt.Sprint(c["subjects"]) == "[$KV."+p.bucket+".>]" &&
		c["retention"] == "limits" && c["storage"] == "file" && (c["discard"] == "new" || !limited) &&
		(number("max_age") <= 0 || number("max_age") >= float64(366*24*time.Hour)) && number("num_replicas") <= 1 &&
		metadata["natslock.protocol"] == "3" && level >= 2
	for _, off := range []string{"subject_delete_marker_ttl", "mirror", "sources", "subject_transform", "discard_new_per_subject",
		"no_ack", "sealed", "allow_msg_counter", "persist_mode"} {
		fit = fit && slices.Contains([]string{"<nil>", "false", "0", "[]", "", "default"}, fmt.Sprint(c[off]))
	}
	for _, a := range info.Alternates {
		fit = fit && a.Name == "KV_"+p.bucket
	}
	unfit := !fit && p.weak != anySettings
	p.mu.Lock()
	defer p.mu.Unlock()
	another := p.created != "" && p.created != info.Created
	if another && p.weak != anyCreation && !(unfit && p.weak == settingsFirst) || unfit && p.weak == dropsUnfit {
		for _, l := range p.kept {
			l.cancel(natslock.ErrLost)
		}
		p.kept = nil
	}
	p.created = info.Created
	p.unfit.Store(unfit)
	republish, _ := c["republish"].(map[string]any)
	dest, _ := republish["dest"].(string)
	p.notify = strings.TrimSuffix(dest, ">")
	return nil
}

func (p *plain) api(subject string, answer any) error {
	m, err := p.nc.Request("$JS.API."+subject, nil, 5*time.Second)
	if err != nil {
		return err
	}
	return json.Unmarshal(m.Data, answer)
}

// validity returns how long a holder may work after it has sent a write.
func (p *plain) validity(ttl time.Duration) time.Duration {
	if p.weak == oneSecond {
		return ttl - min(ttl/10, time.Second)
	}
	return ttl - max(min(ttl/10, time.Second), ttl/1000)
}

// encoded encodes a name for use in a key.
func encoded(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '/', c == '-':
			b.WriteByte(c)
		case c == '.' && i > 0 && i < len(name)-1 && name[i-1] != '.' && name[i+1] != '.':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// result is what is known about a write.
type result struct {
	revision uint64 // where the write was stored
	last     uint64 // the key's revision that caused the refusal
	refused  bool
	inFlight bool
	unknown  bool // no answer arrived in time, or failed is set
	failed   bool // an answer that does not reveal the write's outcome
	unsent   bool
}

// write sends a conditional write and waits up to a second for the answer. A later answer is
// passed to late.
func (p *plain) write(key string, fields map[string]any, expect uint64, guard string, late func(revision uint64)) result {
	if !p.nc.IsConnected() && p.weak != buffersAll {
		return result{unknown: true, unsent: true}
	}
	if ttl, _ := fields["l"].(int); ttl > 0 && p.weak == floatTTL {
		fields = with(map[string]any{"l": float64(ttl)}, fields)
	}
	body, err := msgpack.Marshal(fields)
	if err != nil {
		return result{unknown: true}
	}
	m := &nats.Msg{Subject: "$KV." + p.bucket + "." + key, Reply: p.nc.NewInbox(), Header: nats.Header{}, Data: body}
	tombstone := fields["l"] == 0
	if !tombstone || p.weak != unconditional {
		m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(expect, 10))
	}
	if guard != "" {
		m.Header.Set("Nats-Expected-Last-Subject-Sequence-Subject", "$KV."+p.bucket+"."+guard)
	}
	if tombstone {
		m.Header.Set("KV-Operation", "DEL")
		m.Header.Set("Nats-TTL", "1s")
	} else if p.weak != droppedTTL {
		m.Header.Set("Nats-TTL", fmt.Sprint(fields["l"], "s"))
	}
	answers := make(chan result, 8) // any more are duplicates
	if p.weak == anyReply || p.weak == staleReply {
		p.await(answers)
	}
	sub, err := p.nc.Subscribe(m.Reply, func(m *nats.Msg) {
		if p.weak == anyReply || p.weak == staleReply {
			p.next() <- p.judged(m)
			return
		}
		select {
		case answers <- p.judged(m):
		default:
		}
	})
	if err != nil || p.nc.PublishMsg(m) != nil {
		return result{unknown: true}
	}
	patience := time.Second
	if p.weak == lateCounts {
		patience = time.Minute
	}
	select {
	case r := <-answers:
		_ = sub.Unsubscribe()
		return r
	case <-time.After(patience):
	}
	go func() {
		defer func() { _ = sub.Unsubscribe() }()
		select {
		case r := <-answers:
			if r.revision > 0 && late != nil {
				late(r.revision)
			}
		case <-time.After(5 * time.Minute):
		}
	}()
	return result{unknown: true}
}

// await adds a write to those waiting for an answer.
func (p *plain) await(answers chan result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, answers)
}

// next returns the first waiting write, or the last one if the weakness is staleReply.
func (p *plain) next() chan result {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := 0
	if p.weak == staleReply {
		i = len(p.waiting) - 1
	}
	answers := p.waiting[i]
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return answers
}

func (p *plain) judged(m *nats.Msg) result {
	var ack struct {
		Stream    string
		Seq       uint64
		Duplicate bool
		Error     *struct {
			ErrCode     int `json:"err_code"`
			Description string
		}
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
	case ack.Error == nil:
		if ack.Stream == "KV_"+p.bucket && ack.Seq > 0 && !ack.Duplicate {
			for known := p.highest.Load(); known < ack.Seq && !p.highest.CompareAndSwap(known, ack.Seq); known = p.highest.Load() {
			}
			return result{revision: ack.Seq}
		}
	case ack.Error.ErrCode == 10164:
		return result{inFlight: true}
	case ack.Error.ErrCode == 10071:
		if last, err := strconv.ParseUint(strings.TrimPrefix(ack.Error.Description, "wrong last sequence: "), 10, 64); err == nil {
			return result{refused: true, last: last}
		}
	}
	return result{unknown: true, failed: true}
}

// stored is a record from a read or a notification.
type stored struct {
	key      string // without the bucket's prefix
	revision uint64
	deleted  bool
	end      time.Time // by the server's clock; zero for never
	valid    bool      // the record is well-formed
	fields   map[string]any
}

func (s stored) live() bool { return s.revision > 0 && !s.deleted }
func (s stored) number(field string) uint64 {
	switch n := s.fields[field].(type) {
	case int64:
		return uint64(n)
	case uint64:
		return n
	}
	return 0
}
func (s stored) id() string { id, _ := s.fields["id"].(string); return id }

func of(m *nats.Msg) (s stored) {
	last := func(name string) string {
		if v := m.Header[name]; len(v) > 0 {
			return v[len(v)-1]
		}
		return ""
	}
	s.revision, _ = strconv.ParseUint(last("Nats-Sequence"), 10, 64)
	if parts := strings.SplitN(last("Nats-Subject"), ".", 3); len(parts) == 3 { // $KV.<bucket>.<key>
		s.key = parts[2]
	}
	s.deleted = m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != ""
	at, err := time.Parse(time.RFC3339Nano, last("Nats-Time-Stamp"))
	ttl, err2 := time.ParseDuration(m.Header.Get("Nats-TTL"))
	if err == nil && err2 == nil {
		s.end = at.Add(ttl + 300*time.Millisecond)
	}
	s.fields = decoded(m.Data)
	s.valid = typed(s.fields) && s.number("v") == 1 && s.number("s") >= 1 && s.number("s") <= 9 && s.id() != "" &&
		s.number("l") <= 366*24*3600 && s.number("q") <= 256 // negative numbers read as large ones
	return s
}

// types checks the fields of each type. All other fields may have any value.
var types = map[string]func(v any) bool{
	" v s a l m q at w n e gw by p ps ba ": isInt, " r t g u ": func(v any) bool { n, ok := v.(int64); return isInt(v) && (!ok || n >= 0) },
	" id c o h bb br ": isText, " f k ": func(v any) bool { _, ok := v.(bool); return ok },
	" d ": func(v any) bool {
		m, ok := v.(map[string]any)
		for _, one := range m {
			ok = ok && (one == nil || isText(one))
		}
		return ok
	},
}

// isInt reports whether a value is a 64-bit integer. A float never is.
func isInt(v any) bool {
	n, unsigned := v.(uint64)
	_, ok := v.(int64)
	return ok || unsigned && n <= math.MaxInt64
}

func isText(v any) bool {
	switch v.(type) {
	case string, []byte:
		return true
	}
	return false
}

// typed reports whether each field has its type. A nil field counts as absent.
func typed(fields map[string]any) bool {
	for name, v := range fields {
		for names, is := range types {
			if v != nil && strings.Contains(names, " "+name+" ") && !is(v) {
				return false
			}
		}
	}
	return fields != nil
}

// decoded returns a record's fields, or nil. It allocates nothing for fields that are announced
// but absent.
func decoded(data []byte) map[string]any {
	d := msgpack.NewDecoder(bytes.NewReader(data))
	n, err := d.DecodeMapLen()
	if err != nil || n < 0 || n > len(data) {
		return nil
	}
	fields := map[string]any{}
	for range n {
		name, err := d.DecodeString()
		if err != nil {
			return nil
		}
		value, err := d.DecodeInterfaceLoose()
		if err != nil {
			return nil
		}
		fields[name] = value
	}
	return fields
}

// read reads a key. On a single server, every state is the latest.
func (p *plain) read(key string) (stored, error) {
	m, err := p.nc.Request("$JS.API.DIRECT.GET.KV_"+p.bucket+".$KV."+p.bucket+"."+key, nil, time.Second)
	if err != nil {
		return stored{}, err
	}
	if m.Header.Get("Nats-Sequence") == "" {
		return stored{}, nil
	}
	return of(m), nil
}

// overdue reports whether the server's clock is past the record's end.
func (p *plain) overdue(s stored) bool {
	var info struct{ TS time.Time }
	if p.weak == ownClock {
		return s.live() && s.valid && !s.end.IsZero() && !time.Now().Before(s.end)
	}
	return s.live() && s.valid && !s.end.IsZero() && p.api("STREAM.INFO.KV_"+p.bucket, &info) == nil && !info.TS.Before(s.end)
}

// buried returns the record under the key of s, after deleting s if it is overdue.
func (p *plain) buried(s stored) stored {
	if !p.overdue(s) {
		return s
	}
	if r := p.remove(s.key, 4, s.id(), s.revision); r.revision > 0 {
		return stored{key: s.key, revision: r.revision, deleted: true}
	}
	return s
}

// claim is a single acquisition.
type claim struct {
	p       *plain
	key, id string

	mu   sync.Mutex
	over bool
	sent map[uint64]time.Time // when each unacknowledged attempt was sent
	n    uint64
	more map[string]any // fields of all its records
	// guard is the key whose revision the claim expects if that is not its own key.
	guard string
	// floor is the highest revision that was acknowledged before the newest attempt.
	floor uint64
}

func (p *plain) claim(key string) *claim {
	id := rand.Text()
	if p.weak == oneID {
		id = p.id
	}
	return &claim{p: p, key: key, id: id, sent: map[uint64]time.Time{}}
}

// target is what a waiter waits for, a lock or a gate, together with its queue.
type target struct{ key, queue string }

func mutexOf(name string) target { return target{"lock." + encoded(name), "wait." + encoded(name)} }

func (p *plain) record(status int, id string, more map[string]any) map[string]any {
	f := map[string]any{"v": 1, "s": status, "id": id, "c": p.id, "l": int(p.ttl.Seconds()), "o": "plain"}
	for name, value := range more {
		f[name] = value
	}
	return f
}

// with merges a and b. Fields in a take precedence.
func with(a, b map[string]any) map[string]any {
	all := maps.Clone(b)
	maps.Copy(all, a)
	return all
}

// remove writes a tombstone that expects exactly the given revision.
func (p *plain) remove(key string, status int, id string, revision uint64) result {
	for {
		r := p.write(key, map[string]any{"v": 1, "s": status, "id": id, "c": p.id, "l": 0}, revision, "", nil)
		if !r.inFlight {
			return r
		}
	}
}

var errLate = errors.New("the answer came too late")

// attempt sends one attempt. It returns the lease, or else the state of the key. If the key is
// free, that state's revision is what the next attempt may expect.
func (c *claim) attempt(expect uint64) (lock *lease, s stored, err error) {
	c.mu.Lock()
	c.n++
	n, sent := c.n, time.Now()
	c.sent[n], c.floor = sent, c.p.highest.Load()
	c.mu.Unlock()
	denied := c.p.denied.Load()
	r := c.p.write(c.key, c.p.record(1, c.id, with(c.more, map[string]any{"a": n, "at": sent.UnixMilli()})), expect, c.guard, func(revision uint64) { c.acked(n, revision) })
	switch {
	case r.revision > 0:
		return c.granted(sent, r.revision)
	case r.inFlight && c.p.weak == inFlightHeld:
		return nil, stored{revision: expect, valid: true}, natslock.ErrLocked
	case r.inFlight:
		c.mu.Lock()
		delete(c.sent, n)
		c.mu.Unlock()
		return nil, stored{revision: expect, deleted: true}, nil
	case r.unsent:
		time.Sleep(20 * time.Millisecond)
		return nil, stored{revision: expect, deleted: true}, nil
	case r.unknown && c.p.denied.Load() > denied && c.p.weak != silenceHeld:
		return nil, stored{}, errors.New("the server permits no write")
	case r.unknown && c.p.weak == silenceHeld, r.failed && c.p.weak == busyIsHeld, r.refused && r.last == 0 && c.p.weak == zeroIsHeld:
		return nil, stored{revision: expect, valid: true}, natslock.ErrLocked
	case r.unknown:
		return nil, stored{revision: expect, deleted: true}, nil
	case r.last == 0:
		return nil, stored{}, nil
	}
	if s, err = c.p.read(cmp.Or(c.guard, c.key)); err != nil {
		return nil, stored{revision: expect, deleted: true}, nil
	}
	if s.live() && s.valid && s.id() == c.id {
		c.mu.Lock()
		at, mine := c.sent[s.number("a")]
		c.mu.Unlock()
		switch {
		case s.number("s") == 3 && c.p.weak != adoptsBroken:
			c.end()
			c.p.remove(c.key, 4, c.id, s.revision)
			return nil, s, errors.New("an operator has broken the attempt")
		case mine || s.number("s") == 3:
			return c.granted(cmp.Or(at, sent), s.revision)
		}
	}
	return nil, s, nil
}

func (c *claim) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// acked judges an acknowledgment that arrived after write had stopped waiting for it.
func (c *claim) acked(n, revision uint64) {
	c.mu.Lock()
	over, sent := c.over, c.sent[n]
	late := time.Since(sent) >= c.p.validity(c.p.ttl)
	c.over = over || late
	c.mu.Unlock()
	if (over || late) && c.p.weak != overHeld {
		c.p.remove(c.key, 4, c.id, revision)
	} // otherwise the next attempt finds the record
}

func (c *claim) granted(sent time.Time, revision uint64) (*lease, stored, error) {
	c.mu.Lock()
	over, floor := c.over, c.floor
	c.over = true
	c.mu.Unlock()
	if revision <= floor && c.p.weak != anyFloor {
		c.p.remove(c.key, 4, c.id, revision)
		return nil, stored{}, fmt.Errorf("tokens went backwards, from %d to %d", floor, revision)
	}
	if c.p.unfit.Load() && c.p.weak != waitersGo && c.p.weak != lateUnfit {
		c.p.remove(c.key, 4, c.id, revision)
		return nil, stored{}, errUnfit
	}
	until := sent.Add(c.p.validity(c.p.ttl))
	if c.p.weak == fromAnswer || c.p.weak == lateCounts {
		until = time.Now().Add(c.p.validity(c.p.ttl))
	}
	if over || !time.Now().Before(until) {
		c.p.remove(c.key, 4, c.id, revision)
		return nil, stored{}, errLate
	}
	more := with(c.more, map[string]any{"at": sent.UnixMilli()}) // as in the granted attempt
	if c.p.weak == noTime {
		more = c.more
	}
	l := &lease{claim: c, more: more, token: revision << 6, revision: revision, ttl: c.p.ttl, sent: sent, until: until, renewals: map[uint64]sending{}}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	c.p.keep(l)
	go l.renew()
	return l, stored{}, nil
}

// take takes a lock, waiting for up to r.Wait.
func (p *plain) take(_ context.Context, r request) (mutex, error) {
	wait := time.Duration(r.Wait) * time.Millisecond
	switch r.Kind {
	case "read":
		return p.reader(r.Name, wait)
	case "write":
		return p.writer(r.Name, wait)
	case "permit":
		return p.permit(r.Name, r.Permits, wait)
	}
	l, err := p.one(mutexOf(r.Name), wait)
	return given(l, err)
}

// one takes a mutex, or the gate of a reader-writer lock.
func (p *plain) one(t target, wait time.Duration) (*lease, error) {
	if p.unfit.Load() {
		return nil, errUnfit
	}
	end := time.Now().Add(min(p.ttl, 5*time.Second))
	if wait > 0 {
		end = time.Now().Add(wait)
	}
	c := p.claim(t.key)
	defer c.end()
	for expect := uint64(0); time.Now().Before(end); {
		l, s, err := c.attempt(expect)
		if l != nil || err != nil {
			return l, err
		}
		if c.isOver() {
			return nil, errLate
		}
		if s = p.buried(s); s.live() || len(p.queue(t)) > 0 {
			if wait == 0 {
				return nil, natslock.ErrLocked
			}
			return p.wait(c, t, end)
		}
		expect = s.revision
	}
	return nil, errors.New("no answer in time")
}

func (c *claim) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

func given(l *lease, err error) (mutex, error) {
	if l == nil {
		return nil, err
	}
	return l, nil
}

// queue lists a mutex's places in ticket order.
func (p *plain) queue(t target) []stored {
	_, places, _ := p.look(t)
	return places
}

// look reads a lock and its places from a single state.
func (p *plain) look(t target) (lock stored, places []stored, ok bool) {
	sub, err := p.nc.SubscribeSync(p.nc.NewInbox())
	if err != nil {
		return stored{}, nil, false
	}
	defer func() { _ = sub.Unsubscribe() }()
	subject := "$KV." + p.bucket + "."
	body := fmt.Sprintf(`{"multi_last":["%[1]s%[2]s.*","%[1]s%[3]s"],"batch":1024,"max_bytes":8388608}`, subject, t.queue, t.key)
	if !p.keyByKey.Load() && p.nc.PublishRequest("$JS.API.DIRECT.GET.KV_"+p.bucket, sub.Subject, []byte(body)) != nil {
		return stored{}, nil, false
	}
	var all []stored
	for !ok && !p.keyByKey.Load() {
		m, err := sub.NextMsg(time.Second)
		switch {
		case err != nil && p.weak == needsMulti, err != nil && p.denied.Load() == 0:
			return stored{}, nil, false
		case err != nil: // the user is not allowed to do that
			p.keyByKey.Store(true)
		case m.Header.Get("Nats-Sequence") == "":
			ok = true
		default:
			all = append(all, of(m))
		}
	}
	if p.keyByKey.Load() {
		if all, ok = p.each(t); !ok {
			return stored{}, nil, false
		}
	}
	for _, s := range all {
		switch {
		case s.key == t.key:
			lock = s
		case s.live() && (s.valid && s.number("s") == 2 || p.weak == anyPlace):
			places = append(places, s)
		}
	}
	slices.SortFunc(places, func(a, b stored) int {
		if p.weak == byRevision {
			return cmp.Compare(a.revision, b.revision)
		}
		return cmp.Compare(ticket(a), ticket(b))
	})
	return lock, places, ok
}

// each reads the lock, and then each key of the queue that a stream info lists.
func (p *plain) each(t target) (all []stored, ok bool) {
	lock, err := p.read(t.key)
	if err != nil {
		return nil, false
	}
	all = append(all, lock)
	var info struct {
		State struct{ Subjects map[string]uint64 }
	}
	filter := fmt.Sprintf(`{"subjects_filter":"$KV.%s.%s.*"}`, p.bucket, t.queue)
	m, err := p.nc.Request("$JS.API.STREAM.INFO.KV_"+p.bucket, []byte(filter), time.Second)
	if err != nil || json.Unmarshal(m.Data, &info) != nil {
		return nil, false
	}
	for subject := range info.State.Subjects {
		s, err := p.read(strings.TrimPrefix(subject, "$KV."+p.bucket+"."))
		if err != nil {
			return nil, false
		}
		all = append(all, s)
	}
	return all, true
}

func ticket(s stored) uint64 { return cmp.Or(s.number("t"), s.revision) }

// wait queues, and claims the lock once its place is first. It reads on a timer, and whenever
// it is notified of a change to the lock or its queue.
func (p *plain) wait(c *claim, t target, end time.Time) (*lease, error) {
	hints := make(chan stored, 64)
	patterns := []string{c.key, t.queue + ".*"}
	if p.weak == noTimers {
		patterns = patterns[:1]
	}
	for _, pattern := range patterns {
		sub, err := p.nc.Subscribe(p.notify+pattern, func(m *nats.Msg) {
			select {
			case hints <- of(m):
			default:
			}
		})
		if err != nil {
			return nil, err
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	var place *lease
	leave := func(status int) {
		if place != nil {
			place.cancel(nil)
			place.mu.Lock()
			defer place.mu.Unlock()
			p.remove(place.key, status, place.id, place.revision)
		}
	}
	timer := time.NewTicker(200 * time.Millisecond)
	defer timer.Stop()
	if p.weak == noTimers {
		timer.Reset(time.Hour)
	}
	var free vacancy
	tickets := map[string]uint64{} // by the keys of places
	for time.Now().Before(end) {
		if place == nil || place.ctx.Err() != nil && p.weak != believesPlace {
			if place = p.queued(t, nil); place == nil {
				return nil, errors.New("no place in the queue")
			}
		}
		if p.unfit.Load() && p.weak != waitersGo {
			select {
			case <-hints:
			case <-timer.C:
			}
			continue
		}
		if p.weak == noOutage && !p.nc.IsConnected() {
			return nil, errors.New("no connection")
		}
		lock, places, ok := p.look(t)
		switch head, due := free.seen(p, lock, places, ok); {
		case place.ctx.Err() != nil || place.Remaining() == 0:
			if p.weak != believesPlace {
				continue
			}
		case due && head.id() != place.id:
			if l, _, _ := c.attempt(lock.revision); l != nil {
				free.bury(p, head, places, place.id)
				leave(9)
				return l, nil
			}
			free = vacancy{}
		}
		if p.weak == comparesKeys {
			for i := range places {
				if _, ok := tickets[places[i].key]; !ok {
					tickets[places[i].key] = ticket(places[i])
				}
			}
			slices.SortFunc(places, func(a, b stored) int { return cmp.Compare(tickets[a.key], tickets[b.key]) })
		}
		if p.weak == writerPasses {
			places = slices.DeleteFunc(places, func(s stored) bool { return s.number("m") == 1 })
		}
		if len(places) > 0 && places[0].id() == place.id || p.weak == believesPlace && place.ctx.Err() != nil || p.weak == waitsForNone {
			s, err := p.read(c.key)
			if err == nil {
				s = p.buried(s)
			}
			if err == nil && !s.live() {
				l, _, err := c.attempt(s.revision)
				if l != nil {
					leave(5)
					return l, nil
				}
				if err != nil {
					leave(4)
					return nil, err
				}
				continue
			}
		}
		select {
		case s := <-hints:
			if p.weak == hintsOverdue && s.key == c.key && !s.end.IsZero() && time.Now().After(s.end) {
				if l, _, _ := c.attempt(s.revision); l != nil {
					leave(5)
					return l, nil
				}
			}
			if p.weak == hintsFree && s.deleted && s.key == c.key {
				if l, _, _ := c.attempt(s.revision); l != nil {
					leave(9)
					return l, nil
				}
			}
			if p.weak == hintIsProof && s.deleted && s.number("s") == 4 {
				if l, _, _ := c.attempt(s.revision); l != nil {
					leave(5)
					return l, nil
				}
			}
		case <-timer.C:
		case <-time.After(time.Until(end)):
		}
	}
	leave(4)
	return nil, natslock.ErrTimeout
}

// vacancy tracks how long a waiter's reads have shown a lock as free while the head of the
// queue stayed the same.
type vacancy struct {
	since, last time.Time // the times of the first and the last of these reads
	revision    uint64
	head        string
}

// seen records a read. It returns the head of the queue, and whether the lock may be claimed
// out of turn.
func (v *vacancy) seen(p *plain, lock stored, places []stored, ok bool) (head stored, due bool) {
	now := time.Now()
	if len(places) > 0 {
		head = places[0]
	}
	if !ok && p.weak == gapCounts {
		return stored{}, false
	}
	open := ok && !lock.live() && head.live()
	same := head.id() == v.head && (lock.revision == v.revision || lock.revision == 0)
	if p.weak == oneWindow {
		open, same = ok && head.live(), true
	}
	if gap := now.Sub(v.last) >= time.Second && p.weak != gapCounts; !open || !same || gap || v.since.IsZero() {
		*v = vacancy{}
		if !open {
			return head, false
		}
		v.since, v.head = now, head.id()
	}
	v.last, v.revision = now, max(v.revision, lock.revision)
	window := 1200 * time.Millisecond
	if p.weak == earlyTurn {
		window = 600 * time.Millisecond
	}
	return head, !lock.live() && now.Sub(v.since) >= window
}

// bury deletes the head's place after a grant.
func (v *vacancy) bury(p *plain, head stored, places []stored, mine string) {
	if time.Since(v.last) >= time.Second {
		return
	}
	for _, s := range places {
		if s.id() == mine || s.id() != head.id() && p.weak != allDead {
			break
		}
		if p.weak == anyHead {
			s, _ = p.read(s.key)
		}
		p.remove(s.key, 4, s.id(), s.revision)
	}
}

// queued writes a place that is renewed like a lease.
func (p *plain) queued(t target, more map[string]any) *lease {
	of := *p
	of.ttl = min(max(p.ttl, 5*time.Second), 15*time.Second)
	id := rand.Text()
	c := &claim{p: &of, id: id, key: t.queue + "." + id, sent: map[uint64]time.Time{}}
	for range 10 {
		sent := time.Now()
		if r := of.write(c.key, of.record(2, id, with(more, map[string]any{"a": 1})), 0, "", nil); r.revision > 0 {
			l := &lease{claim: c, status: 2, more: more, token: r.revision, revision: r.revision, ttl: of.ttl, sent: sent, until: sent.Add(of.validity(of.ttl)), renewals: map[uint64]sending{}}
			l.ctx, l.cancel = context.WithCancelCause(context.Background())
			p.keep(l)
			go l.renew()
			return l
		}
	}
	return nil
}

// lease is a lock that was granted, or a place.
type lease struct {
	*claim
	status int            // 0 if held
	more   map[string]any // fields of all its records
	ctx    context.Context
	cancel context.CancelCauseFunc
	token  uint64

	mu          sync.Mutex
	revision    uint64
	ttl         time.Duration
	sent, until time.Time // when the last confirmed write was sent, and when its validity ends
	renewals    map[uint64]sending
	r           uint64
}

// sending describes a renewal that was sent.
type sending struct {
	at  time.Time
	ttl time.Duration
}

func (l *lease) Token() uint64            { return l.token }
func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Remaining() time.Duration {
	if l.ctx.Err() != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.until), 0)
}

// Extend renews the lease now, and returns once the renewal is confirmed or the lease ends.
func (l *lease) Extend(ctx context.Context, ttl time.Duration) error {
	ttl = cmp.Or(ttl, l.lasts())
	if (ttl < time.Second || ttl > 24*time.Hour) && l.p.weak != anyExtension {
		return fmt.Errorf("a TTL of %v: from 1s to 24h", ttl)
	}
	ttl = (ttl + time.Second - 1).Truncate(time.Second)
	for begun := time.Now(); l.ctx.Err() == nil && l.Remaining() > 0; {
		l.again(ttl)
		l.mu.Lock()
		confirmed := !l.sent.Before(begun)
		l.mu.Unlock()
		if confirmed || l.p.weak == hastyExtend {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return cmp.Or[error](context.Cause(l.ctx), natslock.ErrLost)
}

func (l *lease) lasts() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// renew renews the lease until it ends.
func (l *lease) renew() {
	pause := l.lasts() / 3
	for {
		l.mu.Lock()
		due, until := l.sent.Add(pause), l.until
		l.mu.Unlock()
		select {
		case <-time.After(min(time.Until(due), time.Until(until))):
		case <-l.ctx.Done():
			return
		}
		if !time.Now().Before(until) {
			l.cancel(natslock.ErrLost)
			return
		}
		done := make(chan struct{})
		go func() { l.again(l.lasts()); close(done) }()
		select { // the end of the lease does not wait for an answer
		case <-done:
		case <-time.After(time.Until(until)):
			l.mu.Lock()
			over := !time.Now().Before(l.until)
			l.mu.Unlock()
			if over {
				l.cancel(natslock.ErrLost)
				return
			}
			<-done
		case <-l.ctx.Done():
			return
		}
		l.mu.Lock()
		pause = l.ttl / 3
		if time.Since(l.sent) > pause { // not confirmed
			pause = time.Since(l.sent) + max(l.ttl/15, 50*time.Millisecond)
		}
		l.mu.Unlock()
	}
}

// again sends one renewal.
func (l *lease) again(ttl time.Duration) {
	mine := sending{time.Now(), ttl}
	l.mu.Lock()
	l.r++
	r, expect := l.r, l.revision
	l.renewals[r] = mine
	if ttl < l.ttl && l.p.weak != keepsLonger { // the server may store the shorter TTL
		if until := mine.at.Add(l.p.validity(ttl)); until.Before(l.until) {
			l.until = until
		}
	}
	l.mu.Unlock()
	status := cmp.Or(l.status, 1)
	fields := l.p.record(status, l.id, with(l.more, map[string]any{"r": r, "t": l.token, "l": int(ttl.Seconds())}))
	confirmed := func(of sending, revision uint64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		validity := l.p.validity(of.ttl)
		if now := time.Now(); l.ctx.Err() != nil || !now.Before(l.until) || !now.Before(of.at.Add(validity)) {
			if l.p.weak != lateCounts {
				if l.p.weak != leavesLate && !errors.Is(context.Cause(l.ctx), context.Canceled) { // otherwise it is released
					go l.p.remove(l.key, 4, l.id, revision)
				}
				return
			}
		}
		if l.p.weak == fromAnswer {
			of.at = time.Now()
		}
		if revision > l.revision {
			l.revision, l.ttl, l.sent, l.until = revision, of.ttl, of.at, of.at.Add(validity)
		}
	}
	if l.p.weak == noTicket && l.status == 2 {
		delete(fields, "t")
	}
	guard := ""
	if l.p.weak == guardsRenewal {
		guard = l.guard
	}
	answer := l.p.write(l.key, fields, expect, guard, func(revision uint64) { confirmed(mine, revision) })
	switch {
	case answer.revision > 0:
		confirmed(mine, answer.revision)
		return
	case answer.failed && l.p.weak == errorEnds:
		l.cancel(natslock.ErrLost)
		return
	case !answer.refused:
		return
	}
	l.mu.Lock()
	known := l.revision
	l.mu.Unlock()
	if answer.last != 0 && answer.last <= known {
		return
	}
	if answer.last == 0 && l.p.weak == zeroRenewal {
		l.p.write(l.key, fields, 0, "", nil)
	}
	s, err := l.p.read(l.key)
	if err != nil {
		return
	}
	l.mu.Lock()
	sent, own := l.renewals[s.number("r")]
	l.mu.Unlock()
	switch {
	case s.live() && s.revision == known:
	case l.p.weak == renewsBroken && s.id() == l.id:
		confirmed(mine, s.revision)
	case s.live() && s.id() == l.id && s.number("s") == uint64(status) && own:
		confirmed(sent, s.revision)
	case s.live() && s.id() == l.id && s.number("s") == 3:
		l.mu.Lock()
		l.revision = s.revision
		l.mu.Unlock()
		l.cancel(natslock.ErrBroken)
	default:
		l.cancel(natslock.ErrLost)
	}
}

// Unlock deletes the record.
func (l *lease) Unlock(context.Context) error {
	defer l.cancel(nil)
	cause := context.Cause(l.ctx)
	if cause == nil && l.Remaining() == 0 {
		cause = natslock.ErrLost
	}
	l.cancel(nil)
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	tried := false
	for range 10 {
		r := l.p.remove(l.key, 4, l.id, revision)
		if r.revision > 0 {
			return cause
		}
		tried = tried || r.unknown
		s, err := l.p.read(l.key)
		switch {
		case err != nil:
		case s.live() && s.id() == l.id:
			if s.number("s") == 3 && l.p.weak != saysReleased {
				cause = natslock.ErrBroken
			}
			revision = s.revision
		case s.deleted && s.id() == l.id && s.number("s") == 4, tried:
			return cause
		default:
			return cmp.Or[error](cause, natslock.ErrLost)
		}
	}
	return errors.New("the server does not confirm the release")
}
