package record

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
)

// bodies returns records as the library writes them.
func bodies() []Body {
	return []Body{
		{Status: StatusHeld, ID: "A", Client: "C", Attempt: 1, TTL: 15, Since: 1, Owner: "o", Host: "h", PID: 7, Started: 2, Meta: map[string]string{"k": "v"}},
		{Status: StatusHeld, ID: "A", Renewal: math.MaxInt64, Token: math.MaxInt64, TTL: int64(clock.MaxFixedTTL / time.Second), Fixed: true},
		{Status: StatusWaiting, ID: "A", Mode: uint8(Shared), TTL: 15},
		{Status: StatusBroken, ID: "A", Token: 9, TTL: 15, BrokenBy: "me", Reason: strings.Repeat("r", 1<<10), BrokenAt: 3},
		{Status: StatusGone, ID: "A"},
		{Status: StatusGranted, ID: "A", Token: 9},
		{Status: StatusPassed, ID: "A", Token: 9},
		{Status: StatusHeld, ID: "A", Renewal: 2, Token: 9, TTL: 3, Fixed: true},
	}
}

// hostile returns values that abuse the format: they announce more than they contain, nest
// deeper than is sane, or use unexpected types.
func hostile() map[string][]byte {
	head := "\x84\xa1v\x01\xa1s\x01\xa2id\xa1x"
	return map[string][]byte{
		"map of four billion":    []byte("\xdf\xff\xff\xff\xff"),
		"meta of four billion":   []byte(head + "\xa1d\xdf\xff\xff\xff\xff"),
		"meta of thousands":      []byte(head + "\xa1d\xde\x20\x00" + strings.Repeat("\xa0\xa0", 7000)),
		"meta with numbers":      []byte(head + "\xa1d\x81\x01\xa1v"),
		"number for meta":        []byte(head + "\xa1d\x01"),
		"meta in meta":           []byte(head + "\xa1d\x81\xa1k\x81\xa1k\xa1v"),
		"string of four billion": []byte(head + "\xa1o\xdb\xff\xff\xff\xffabc"),
		"bytes for a string":     []byte(head + "\xa1o\xc4\x02ab"),
		"unknown and deep":       append([]byte(head+"\xa1z"), bytes.Repeat([]byte{0x91}, kvstore.MaxRecord-20)...),
		"unknown and long":       []byte(head + "\xa1z\xdd\xff\xff\xff\xff"),
		"extension":              []byte(head + "\xa1z\xc9\xff\xff\xff\xff\x01"),
		"nil for a number":       []byte("\x84\xa1v\x01\xa1s\xc0\xa2id\xa1x\xa1l\x01"),
		"status beyond a byte":   []byte("\x84\xa1v\x01\xa1s\xcd\x01\x01\xa2id\xa1x\xa1l\x01"),
		"TTL as a float":         []byte(head + "\xa1l\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00"),
		"TTL without end":        []byte(head + "\xa1l\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
		"twice":                  []byte("\x85\xa1v\x01\xa1s\x01\xa2id\xa1x\xa1l\x01\xa2id\xa1y"),
		"array for a map":        []byte("\x94\x01\x01\xa1x\xa1y"),
	}
}

func TestRecord(t *testing.T) {
	for _, b := range bodies() {
		v, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Decode(v); err != nil || !reflect.DeepEqual(back, b) {
			t.Errorf("%+v comes back as %+v (%v)", b, back, err)
		}
	}
	large := bodies()[0]
	large.Meta = map[string]string{"k": strings.Repeat("x", kvstore.MaxRecord)}
	if v, err := large.Encode(); err == nil {
		t.Errorf("a record of %d bytes", len(v))
	}
}

// A record of a few bytes cannot make its readers allocate much for a length that it merely
// announces. For a string, the codec allocates up to a megabyte. Every client that lists
// keys reads the record, although its writer may write no other key.
func TestHostileRecord(t *testing.T) {
	const reads = 50
	for what, v := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range reads {
			if e := Of(kvstore.Record{Key: "lock.x", Value: v, Revision: 7}); !e.Live() {
				t.Errorf("%s: holds nothing", what)
			}
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / reads; n > 4<<20 {
			t.Errorf("%s: %d bytes make %d", what, len(v), n)
		}
	}
}

// FuzzRecord checks that any value is read without a panic. A value that is not a record of
// this library still holds the key, and a record of this library survives being written
// again.
func FuzzRecord(f *testing.F) {
	for _, b := range bodies() {
		v, _ := b.Encode()
		f.Add("lock.x", v)
	}
	for _, v := range hostile() {
		f.Add("wait.x.A", v)
	}
	f.Add("read.a.b.A", []byte(nil))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		e := Of(kvstore.Record{Key: key, Value: value, Revision: 7, TTL: time.Second})
		if !e.Live() || e.TokenOrTicket() == 0 || e.Unreadable && e.TokenOrTicket() != TokenOrTicket(key, 7) || e.Unreadable && e.From(e.ID) {
			t.Fatalf("%+v", e)
		}
		if k, ok := ParseKey(key); ok {
			if again, err := EncodeName(k.Name); err != nil || !strings.Contains("."+key+".", "."+again+".") {
				t.Fatalf("%q is about %q (%v)", key, k.Name, err)
			}
		}
		if e.Unreadable {
			return
		}
		if e.ID == "" || e.Status < StatusHeld || e.Status > StatusPassed || e.Body.TTL < 0 || len(e.Meta) > len(value) {
			t.Fatalf("read as %+v", e.Body)
		}
		v, err := e.Encode()
		if err != nil {
			return // larger than its source, which need not use the shortest forms
		}
		back, err := Decode(v)
		if err != nil || !sameBody(back, e.Body) {
			t.Fatalf("%+v comes back as %+v (%v)", e.Body, back, err)
		}
	})
}

// sameBody compares bodies and treats missing metadata like empty metadata.
func sameBody(a, b Body) bool {
	if len(a.Meta) == 0 && len(b.Meta) == 0 {
		a.Meta, b.Meta = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// A record of another version is not read, and no version is mistaken for version 1 because
// of its last byte.
func TestRecordOfAnotherVersion(t *testing.T) {
	for v, readable := range map[int64]bool{1: true, 0: false, 2: false, 255: false, 257: false, 1<<32 + 1: false, -255: false} {
		value, err := msgpack.Marshal(map[string]any{"v": v, "s": 1, "id": "A", "l": 15})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := Decode(value); (err == nil) != readable {
			t.Errorf("version %d is read as %+v (%v)", v, b, err)
		}
	}
}

// The format belongs to the library rather than to a version of its codec, so a record
// written today stays readable.
func TestRecordFormat(t *testing.T) {
	b, err := Decode([]byte("\x89\xa1v\x01\xa1s\x03\xa2id\xa1A\xa1t\xcf\x00\x06\x40\x00\x00\x00\x00\x09\xa1l\x0f\xa1d\x81\xa1k\xa1v\xa2bb\xa2me\xa2br\xa3why\xa2ba\x03"))
	want := Body{Version: 1, Status: StatusBroken, ID: "A", Token: 0x6400000000009, TTL: 15, Meta: map[string]string{"k": "v"}, BrokenBy: "me", Reason: "why", BrokenAt: 3}
	if err != nil || !reflect.DeepEqual(b, want) {
		t.Fatalf("%+v (%v)", b, err)
	}
	var fields map[string]any
	v, _ := want.Encode()
	if err := msgpack.Unmarshal(v, &fields); err != nil || len(fields) != 9 {
		t.Fatalf("%v (%v)", fields, err)
	}
}

// A full bucket on one server accepts a replacement that is no larger than what it
// replaces, headers included.
func TestOneSize(t *testing.T) {
	claim := Body{Status: StatusHeld, ID: "id", TTL: 15, Attempt: 1, Owner: "o", Since: 1_700_000_000_000, PID: 7}
	size := func(b Body, expect uint64) int {
		v, err := b.EncodeKept(expect)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Decode(v); err != nil || !reflect.DeepEqual(b, back) {
			t.Fatalf("read %+v, %v", back, err)
		}
		return len(v) + len(fmt.Sprint(expect))
	}
	for _, word := range []string{"election", "member", "partition", "script", "job", rest} { // a record with a minimum hold ends as rest
		b := claim
		b.Purpose = PurposeOf(word)
		if more := size(b, 0) - size(claim, 0); more != max(len(word)-len(rest), 0) {
			t.Errorf("%s takes %d bytes more", word, more)
		}
	}
	want := size(claim, 0)
	for name, change := range map[string]func(b *Body){
		"a later attempt": func(b *Body) { b.Attempt = 300 },
		"a first renewal": func(b *Body) { b.Attempt, b.Renewal, b.Token = 0, 1, 64*1_700_000_000_000_000 },
		"a late renewal":  func(b *Body) { b.Attempt, b.Renewal, b.Token = 0, math.MaxUint32, math.MaxInt64 },
		"a full run": func(b *Body) {
			b.Attempt, b.Renewal, b.Token, b.Grants, b.Size, b.Waits, b.InUse = 0, math.MaxUint32, math.MaxInt64, math.MaxUint32, math.MaxInt32, math.MaxUint32, true
		},
		"more than 15 fields": func(b *Body) {
			b.Grants, b.Size, b.Waits, b.InUse, b.Token, b.Renewal = 2, 2, 2, true, 2, 2
		},
		"a longer lease":   func(b *Body) { b.TTL = 31_622_400 },
		"its last renewal": func(b *Body) { b.Fixed, b.Renewal, b.Purpose = true, 3, Rest },
	} {
		for _, expect := range []uint64{0, 1, 9_999_999_999_999_999} {
			b := claim
			change(&b)
			if got := size(b, expect); got != want {
				t.Errorf("%s, expecting %d: %d bytes, not %d", name, expect, got, want)
			}
		}
	}
}
