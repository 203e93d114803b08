package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
)

// MaxGiven limits the size of a record that contains what its owner supplied. It leaves room for what a claim, a
// renewal and a break add.
const MaxGiven = kvstore.MaxRecord - 2<<10

// recordVersion is the version of the record format.
const recordVersion = 1

// Status is the state of a record.
type Status uint8

const (
	// StatusHeld marks a holder's record.
	StatusHeld Status = iota + 1
	// StatusWaiting marks a place in a queue.
	StatusWaiting
	// StatusBroken marks a holder's record that an operator has broken. The record keeps others out until the holder
	// has stopped or the lease is over.
	StatusBroken
	// StatusGone marks a tombstone whose claim was released or given up.
	StatusGone
	// StatusGranted marks the tombstone of a waiter that was granted the lock with no place ahead of its own, so its
	// successor is now first.
	StatusGranted
	_ // 6, 7 and 8 are unused
	_
	_
	// StatusPassed marks the tombstone of a waiter that was granted the lock while others were ahead of it, either out
	// of turn or alongside other readers, so its successor is not necessarily first.
	StatusPassed
)

// Body is the value of a record, a msgpack map.
type Body struct {
	Version version `msgpack:"v"`
	Status  Status  `msgpack:"s"`
	// Fixed marks a lease that is not renewed. A holder that leaves its record behind, for an adopter or for the rest
	// of a minimum hold, sets it in its last renewal.
	Fixed bool `msgpack:"f,omitempty"`
	// Mode is the claim's [Mode]. It is Shared in a reader's record and place.
	Mode uint8 `msgpack:"m,omitempty"`
	// Size is the number of goroutines behind the record: the waiters at a place or, for a lock, the holder and
	// the waiters behind it. 0 means 1.
	Size int32 `msgpack:"n,omitempty"`
	// ID is the claim's id: 128 random bits, never reused.
	ID string `msgpack:"id"`
	// Client is the id of the client that made the claim.
	Client string `msgpack:"c,omitempty"`
	// Attempt is the number of the attempt that wrote an acquisition record, counting from 1. It is 0 in renewals.
	Attempt int `msgpack:"a,omitempty"`
	// Renewal is the number of the renewal, counting from 1. It is 0 in acquisition records.
	Renewal uint64 `msgpack:"r,omitempty"`
	// Token is the fencing token, or the ticket of a place: see [TokenOrTicket]. It is 0 in the write that first named
	// this claim, because the token is derived from that write's revision.
	Token uint64 `msgpack:"t,omitempty"`
	// TTL is the TTL of the lease in seconds.
	TTL int64 `msgpack:"l"`
	// Since is when the claim began, in Unix milliseconds by its client's clock.
	Since int64 `msgpack:"at,omitempty"`
	// Waited is how long the claim had been waiting for the lock at Since, in milliseconds, at least 1. It is 0 for a
	// claim that did not queue.
	Waited int64 `msgpack:"w,omitempty"`
	// Grants is the number of holders that the claim has had; 0 means 1. Waits is how long the holders after the first
	// waited for the lock in total, in milliseconds.
	Grants uint64 `msgpack:"g,omitempty"`
	Waits  int64  `msgpack:"gw,omitempty"`
	// Lingers marks a lease that its client may keep idle for a while. In such a lease, InUse means that a goroutine
	// was inside when the record was written.
	Lingers bool    `msgpack:"k,omitempty"`
	Permits Permits `msgpack:"q,omitempty"` // of the semaphore, according to the claim; 0 for other locks
	InUse   bool    `msgpack:"u,omitempty"`
	// By is set by a process that extends the lock using only its handle. The renewal is void unless the server stored
	// it before By, in Unix milliseconds by the servers' clock. If By is 0, there is no such limit.
	By int64 `msgpack:"by,omitempty"`

	// Purpose is for operators. No protocol rule reads it.
	Purpose Purpose  `msgpack:"y,omitempty"`
	Owner   string   `msgpack:"o,omitempty"`
	Host    string   `msgpack:"h,omitempty"`
	PID     int      `msgpack:"p,omitempty"`
	Started int64    `msgpack:"ps,omitempty"` // start of the process, in Unix milliseconds
	Meta    metadata `msgpack:"d,omitempty"`

	// In a broken record: the operator who broke it, the reason, and the time.
	BrokenBy string `msgpack:"bb,omitempty"`
	Reason   string `msgpack:"br,omitempty"`
	BrokenAt int64  `msgpack:"ba,omitempty"`
}

// Purpose says why a record stays, or waits, for a long time by design. Alarms skip such records. Other packages define
// their own words. A Purpose takes only 8 bytes, because every lease that a client holds has one.
type Purpose struct{ word unique.Handle[string] }

// PurposeOf returns the purpose named by word, or none if word is "".
func PurposeOf(word string) (p Purpose) {
	if word != "" {
		p.word = unique.Make(word)
	}
	return p
}

func (p Purpose) String() string {
	if p == (Purpose{}) {
		return ""
	}
	return p.word.Value()
}

const (
	maxPurpose = 16 // bytes
	rest       = "rest"
)

var (
	// Job is the purpose of a finished job whose holder has left.
	Job = PurposeOf("job")
	// Rest is the purpose of the remainder of a minimum hold whose holder has left.
	Rest = PurposeOf(rest)
)

// DecodeMsgpack implements [msgpack.CustomDecoder]. A value that cannot be a purpose is treated as absent: a record
// must neither keep others out forever nor lose its place because of a field that no rule reads.
func (p *Purpose) DecodeMsgpack(d *msgpack.Decoder) error {
	*p = Purpose{}
	c, err := d.PeekCode()
	if err != nil {
		return err
	}
	if !msgpcode.IsString(c) && !msgpcode.IsBin(c) {
		return d.Skip()
	}
	s, err := d.DecodeString()
	if len(s) <= maxPurpose {
		*p = PurposeOf(s)
	}
	return err
}

type version uint8

// Permits is the number of permits of a semaphore.
type Permits uint16

// narrow decodes a number. A number that does not fit becomes the largest number of the type, which no field allows.
// The codec itself would truncate it, and read version 257 as version 1.
func narrow[T ~uint8 | ~uint16](to *T, d *msgpack.Decoder) error {
	n, err := d.DecodeInt64()
	if *to = T(n); int64(*to) != n {
		*to = ^T(0)
	}
	return err
}

// DecodeMsgpack implements [msgpack.CustomDecoder].
func (v *version) DecodeMsgpack(d *msgpack.Decoder) error { return narrow(v, d) }
func (s *Status) DecodeMsgpack(d *msgpack.Decoder) error  { return narrow(s, d) }
func (p *Permits) DecodeMsgpack(d *msgpack.Decoder) error { return narrow(p, d) }

// metadata is decoded entry by entry. The codec itself would first allocate as many entries as a record announces, say
// a million, and every client that lists reads the records of all other clients.
type metadata map[string]string

// DecodeMsgpack implements [msgpack.CustomDecoder].
func (m *metadata) DecodeMsgpack(d *msgpack.Decoder) error {
	n, err := d.DecodeMapLen()
	if err != nil || n < 0 {
		return err
	}
	*m = make(metadata)
	for range n {
		k, err := d.DecodeString()
		if err != nil {
			return err
		}
		if (*m)[k], err = d.DecodeString(); err != nil {
			return err
		}
	}
	return nil
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Encode returns the value of a record that is not renewed. It fails if the value is too large.
func (b *Body) Encode() ([]byte, error) { return b.encode(func(int) int { return 0 }) }

// EncodeKept returns the value of a record that its client renews, for a write that expects revision expect. A full
// bucket on a single server accepts a replacement that is not larger, so all records of a claim have the same size: the
// fields that can grow, the digits of the expected revision in the headers, and the padding add up to kept. Only new
// metadata makes a record larger. EncodeKept fails if the value is too large.
func (b *Body) EncodeKept(expect uint64) ([]byte, error) {
	digits := len(strconv.AppendUint(make([]byte, 0, 20), expect, 10))
	return b.encode(func(growing int) int {
		growing += digits
		return max(kept-growing, minPadding) //safety:one-size
	})
}

const (
	// kept is the total number of bytes for the growing parts of a renewed record: 9 for Token, 5 for each of five
	// other numbers, 1 each for Fixed and InUse, 18 for the keys of all these, restSize for Purpose, 16 for the digits
	// of the expected revision, 2 more for the header of a map with more than 15 fields, and the minimum padding.
	kept = 9 + 5*5 + 2 + 18 + restSize + 16 + 2 + minPadding
	// restSize is the size of [Rest] with its key and header, which a lease's last record may contain.
	restSize = 3 + len(rest)
	// minPadding is the size of empty padding: its key and the header of its value.
	minPadding = 4
)

var spaces = strings.Repeat(" ", kept)

// encode writes the map, and adds as many bytes of padding as padding returns for the size of the growing fields.
func (b *Body) encode(padding func(growing int) int) ([]byte, error) {
	b.Version = recordVersion
	var count fieldWriter
	b.fields(&count)
	pad := padding(count.growing + mapHead(count.n+1))
	if pad > 0 {
		count.n++
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	enc := msgpack.GetEncoder()
	enc.Reset(buf)
	err := b.write(enc, count.n)
	msgpack.PutEncoder(enc)
	if pad > 0 {
		buf.Write([]byte{msgpcode.FixedStrLow | 1, 'z', msgpcode.Str8, byte(pad - minPadding)})
		buf.WriteString(spaces[:pad-minPadding])
	}
	if err == nil && buf.Len() > kvstore.MaxRecord {
		err = fmt.Errorf("record of %d bytes exceeds the limit of %d: shorten the metadata", buf.Len(), kvstore.MaxRecord)
	}
	return bytes.Clone(buf.Bytes()), err
}

// added limits what a claim and its renewals add to what the owner supplied. A break adds more, and is refused if the
// result does not fit.
const added = 256

// Fits reports whether the record, including what its owner supplied, is small enough if values are limited to most
// bytes. given is the record's size, and limit is its maximum.
func (b Body) Fits(most int) (given, limit int, ok bool) {
	limit = min(MaxGiven, most-added)
	v, err := b.Encode()
	return len(v), limit, err == nil && len(v) <= limit
}

// write writes the map that the tags above describe, with n fields and without the padding. The msgpack library itself
// would allocate once per field in every write of every lock.
func (b *Body) write(enc *msgpack.Encoder, n int) error {
	w := fieldWriter{enc: enc, err: enc.EncodeMapLen(n)}
	b.fields(&w)
	return w.err
}

func (b *Body) fields(w *fieldWriter) {
	w.must("v", int64(b.Version))
	w.must("s", int64(b.Status))
	w.text("id", b.ID)
	w.text("c", b.Client)
	w.grows("a", uint64(b.Attempt))
	w.grows("r", b.Renewal)
	w.grows("t", b.Token)
	w.growing += 2 + intSize(uint64(b.TTL))
	w.must("l", b.TTL)
	if b.Fixed {
		w.growing += 3
	}
	if w.has("f", b.Fixed) {
		w.err = w.enc.EncodeBool(true)
	}
	w.number("m", int64(b.Mode))
	w.number("q", int64(b.Permits))
	w.number("at", b.Since)
	w.number("w", b.Waited)
	w.grows("n", uint64(b.Size))
	w.grows("g", b.Grants)
	w.grows("gw", uint64(b.Waits))
	if w.has("k", b.Lingers) {
		w.err = w.enc.EncodeBool(true)
	}
	if b.InUse {
		w.growing += 3
	}
	if w.has("u", b.InUse) {
		w.err = w.enc.EncodeBool(true)
	}
	w.grows("by", uint64(b.By))
	if word := b.Purpose.String(); word != "" {
		w.text("y", word)
		w.growing += min(3+len(word), restSize)
	}
	w.text("o", b.Owner)
	w.text("h", b.Host)
	w.number("p", int64(b.PID))
	w.number("ps", b.Started)
	if w.has("d", len(b.Meta) > 0) {
		w.err = w.enc.Encode(map[string]string(b.Meta))
	}
	w.text("bb", b.BrokenBy)
	w.text("br", b.Reason)
	w.number("ba", b.BrokenAt)
}

// fieldWriter writes fields that are not zero. Without an encoder, it only counts them.
type fieldWriter struct {
	enc     *msgpack.Encoder
	n       int
	growing int // bytes of the fields that may be larger in a later record of the claim
	err     error
}

// grows writes a number that may be larger in a later record of the claim.
func (w *fieldWriter) grows(key string, v uint64) {
	if w.has(key, v != 0) {
		w.err = w.enc.EncodeUint(v)
	}
	if v != 0 {
		w.growing += 1 + len(key) + intSize(v)
	}
}

// intSize returns the number of bytes in the shortest encoding of a number.
func intSize(v uint64) int {
	switch {
	case v <= math.MaxInt8:
		return 1
	case v <= math.MaxUint8:
		return 2
	case v <= math.MaxUint16:
		return 3
	case v <= math.MaxUint32:
		return 5
	}
	return 9
}

// mapHead returns the number of bytes by which the header of a map with n fields exceeds the minimum.
func mapHead(n int) int {
	if n <= 15 {
		return 0
	}
	return 2
}

// has counts a field if it is present. If there is an encoder, has also writes the key, and reports whether the value
// must follow.
func (w *fieldWriter) has(key string, there bool) bool {
	if !there || w.err != nil {
		return false
	}
	w.n++
	if w.enc == nil {
		return false
	}
	w.err = w.enc.EncodeString(key)
	return w.err == nil
}

func (w *fieldWriter) must(key string, v int64) {
	if w.has(key, true) {
		w.err = w.enc.EncodeInt(v)
	}
}

func (w *fieldWriter) number(key string, v int64) {
	if w.has(key, v != 0) {
		w.err = w.enc.EncodeInt(v)
	}
}

func (w *fieldWriter) text(key, v string) {
	if w.has(key, v != "") {
		w.err = w.enc.EncodeString(v)
	}
}

// ErrInvalidOption means that an option or a field of a request is not usable.
var ErrInvalidOption = kvstore.ErrInvalidOption

var errUnreadable = errors.New("unreadable record")

// Decode decodes a value. A value that it cannot decode belongs to an unknown owner.
func Decode(value []byte) (Body, error) {
	var b Body
	if len(value) == 0 || len(value) > kvstore.MaxRecord {
		return Body{}, errUnreadable
	}
	// Use a new decoder. Unmarshal reuses decoders, which keep the memory they allocated for a value, so every read of
	// a value that announces a length it does not have would cost another megabyte.
	if err := msgpack.NewDecoder(bytes.NewReader(value)).Decode(&b); err != nil {
		return Body{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	// Fields of another version may have other meanings, and a record without an id names no claim.
	if b.Version != recordVersion || b.ID == "" || b.Status < StatusHeld || b.Status > StatusPassed || b.TTL < 0 || b.TTL > int64(clock.MaxFixedTTL/time.Second) { //safety:record-judged
		return Body{}, errUnreadable
	}
	if b.Permits > MaxPermits || int64(b.Token|b.Renewal|b.Grants) < 0 { // one of them is negative
		return Body{}, errUnreadable
	}
	return b, nil
}

// Entry is a record as it was read.
type Entry struct {
	kvstore.Record
	Body
	// Unreadable marks a record that this library did not write, whose holder is unknown.
	Unreadable bool
	// Overdue marks a record that was overdue by the server's clock when a view was made.
	Overdue bool
}

// Of decodes the record r.
func Of(r kvstore.Record) Entry {
	b, err := Decode(r.Value)
	// A place without a number of permits could block the queue forever.
	if err == nil && b.Status == StatusWaiting && b.Permits == 0 && strings.HasPrefix(r.Key, SWaitPrefix) { //safety:place-numbered
		err = errUnreadable
	}
	return Entry{Record: r, Body: b, Unreadable: err != nil} //safety:unknown-owner
}

// Zero reports whether there is no record.
func (e Entry) Zero() bool { return e.Revision == 0 }

// TokenOrTicket returns the claim's fencing token or ticket. For an unreadable record, it is derived from the revision,
// which shows how new the record is.
func (e Entry) TokenOrTicket() uint64 {
	if !e.Unreadable && e.Body.Token != 0 {
		return e.Body.Token
	}
	return TokenOrTicket(e.Key, e.Revision)
}

// Goroutines returns the number of goroutines behind the record, including the holder.
func (e Entry) Goroutines() int { return max(int(e.Size), 1) }

// Granted returns the number of holders that the claim has had.
func (e Entry) Granted() uint64 { return max(e.Grants, 1) }

// Left reports, for views, whether the record looks like its holder's last renewal. A renewal of a lease that has been
// fixed since its grant looks the same.
func (e Entry) Left() bool { return e.Status == StatusHeld && e.Fixed && e.Renewal > 0 && e.By == 0 }

// Done reports whether the record marks a finished job.
func (e Entry) Done() bool { return e.Left() && e.Purpose == Job }

// Adopts reports whether the record's claim adopted the lock from the claim of before, the record it replaced.
func (e Entry) Adopts(before Entry) bool {
	return e.Attempt > 0 && e.Body.Token != 0 && before.Left() && e.Body.Token == before.Body.Token && e.ID != before.ID
}

// Live reports whether the record keeps others out.
func (e Entry) Live() bool { return !e.Zero() && !e.Deleted }

// ClaimID names the claim for operators. An unreadable record names no claim, so the name is derived from its revision.
func (e Entry) ClaimID() string {
	if e.Unreadable {
		return fmt.Sprintf("unreadable-%d", e.Revision)
	}
	return e.ID
}

// BrokenBecause describes, for an error or a log, who broke the record and why.
func (e Entry) BrokenBecause() string {
	return "by " + plain.Text(e.BrokenBy) + ": " + plain.Text(e.Reason)
}

// StoredLate reports whether the record is a renewal that is void because the server stored it too late: see By.
func (e Entry) StoredLate() bool { return e.By != 0 && e.Time.UnixMilli() >= e.By }

// From reports whether the record was written by the claim with this id.
func (e Entry) From(id string) bool { return !e.Zero() && !e.Unreadable && e.ID == id }

const (
	// TombstoneLife is how long the server keeps a tombstone.
	TombstoneLife = time.Second
	// Bypass is how long after seeing an empty queue a client is allowed to take the lock again without reading the
	// queue. This keeps the hot path at one round trip, and makes a new waiter wait at most that much longer.
	Bypass = 100 * time.Millisecond
)

// OverdueSlack bounds the difference between two servers' clocks: that of the server that stamped the record and that
// of the server that reports the time.
const OverdueSlack = 300 * time.Millisecond

// OverdueAt reports whether the entry, as read, no longer has a holder when the server's clock reads server. A record
// without a TTL never becomes overdue, nor does an unreadable one, whose holder is unknown.
func (e Entry) OverdueAt(server time.Time) bool {
	return e.Live() && !e.Unreadable && e.Record.TTL > 0 && !server.Before(e.Time.Add(e.Record.TTL+OverdueSlack)) //safety:overdue
}

// Queue returns the places among records, ordered by ticket. It leaves out unreadable records, which must not hold up
// the queue.
func Queue(records []kvstore.Record) []Entry {
	queue := make([]Entry, 0, len(records))
	for _, r := range records {
		if entry := Of(r); !entry.Unreadable && entry.Status == StatusWaiting { //safety:place-readable
			queue = append(queue, entry)
		}
	}
	SortByTicket(queue)
	return queue
}

// SortByTicket sorts a queue by ticket. It cannot sort by revision, because a renewal changes the revision.
func SortByTicket(queue []Entry) {
	slices.SortFunc(queue, func(a, b Entry) int { return cmp.Compare(a.TokenOrTicket(), b.TokenOrTicket()) })
}
