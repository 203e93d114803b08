package explore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/natslock/locks/internal/clock"
)

// Encode appends the canonical form of a graph at an instant.
func Encode[T any](f *Form, root *T, now clock.Instant, to []byte) []byte {
	if f.encoder == nil {
		f.encoder = &encoder{f: f}
	}
	e := f.encoder
	t := f.compile(reflect.TypeFor[T](), reflect.TypeFor[T]().String())
	for {
		epoch := f.epoch
		e.begin(now, to)
		e.pointer(unsafe.Pointer(root), t)
		if epoch == f.epoch { // else a type has been met for the first time
			break
		}
	}
	e.rank()
	out := e.buf
	e.buf = nil
	return out
}

type encoder struct {
	f         *Form
	now       clock.Instant
	wall      int64
	buf       []byte
	revisions []revisionAt
	known     table
	kept      []entry // values of maps, whose places are numbered
	// Scratch.
	values    []uint64
	parts     []part
	spare     []byte
	spareRevs []revisionAt
}

// revisionAt is where the encoding has a revision, for which its rank is put there in the end. Until then the
// revision itself stands there: it has the same order.
type revisionAt struct {
	off int
	v   uint64
}

// part is a part of the encoding that is put in order.
type part struct {
	from, to       int
	revFrom, revTo int
}

// entry is an entry of a map.
type entry struct {
	key, value reflect.Value
	code       string
}

func (e *encoder) begin(now clock.Instant, to []byte) {
	e.now, e.buf, e.revisions = now, to, e.revisions[:0]
	if e.wall = int64(now); e.f.Wall != nil {
		e.wall = e.f.Wall(now).UnixNano()
	}
	e.known.clear()
	clear(e.kept)
	e.kept = e.kept[:0]
}

// rank replaces the revisions by their ranks. Equal ones have the same.
func (e *encoder) rank() {
	if len(e.revisions) == 0 {
		return
	}
	e.values = e.values[:0]
	for _, r := range e.revisions {
		e.values = append(e.values, r.v)
	}
	slices.Sort(e.values)
	for _, r := range e.revisions {
		i, _ := slices.BinarySearch(e.values, r.v)
		binary.BigEndian.PutUint64(e.buf[r.off:], uint64(i)+1)
	}
}

func (e *encoder) uint64(v uint64) { e.buf = binary.BigEndian.AppendUint64(e.buf, v) }

func (e *encoder) count(n int) { e.buf = binary.AppendUvarint(e.buf, uint64(n)) }

// The first byte of an instant or of a time.
const (
	sentinel = iota
	age
	longAgo
)

// pointer encodes what p points to: its number, and its value at the first visit.
func (e *encoder) pointer(p unsafe.Pointer, t *typ) {
	if p == nil {
		e.count(0)
		return
	}
	i, known := e.known.at(p, t.base)
	e.count(i + 1)
	if !known {
		e.value(p, t)
	}
}

func (e *encoder) value(at unsafe.Pointer, t *typ) {
	if t.isMap {
		e.mapped(at, t)
		return
	}
	for k := range t.codes {
		o := &t.codes[k]
		p := unsafe.Add(at, o.off)
		switch o.do {
		case asBytes:
			e.buf = append(e.buf, unsafe.Slice((*byte)(p), o.n)...)
		case asString:
			s := *(*string)(p)
			e.count(len(s))
			e.buf = append(e.buf, s...)
		case asInstant:
			e.instant(*(*int64)(p), o.horizon)
		case asTime:
			e.time(*(*time.Time)(p), o.horizon)
		case asRevision:
			e.revision(*(*uint64)(p))
		case asPointer:
			e.pointer(*(*unsafe.Pointer)(p), o.t)
		case asObject:
			e.pointer(p, o.t)
		case asSlice:
			s := (*sliceHeader)(p)
			e.count(s.len)
			e.row(s.data, o.t, s.len)
		case asBag:
			s := (*sliceHeader)(p)
			e.count(s.len)
			e.bag(s.data, o.t, s.len)
		case asArray:
			e.row(p, o.t, int(o.n))
		case asMap:
			e.pointerToMap(*(*unsafe.Pointer)(p), o.t)
		case asAny, asMethods:
			switch h, q := e.f.value(p, o, t); {
			case h == nil:
				e.count(0)
			case h.boxed:
				e.count(h.id)
				e.value(q, h.t)
			default:
				e.count(h.id)
				e.pointer(q, h.t)
			}
		case asError:
			err := *(*error)(p)
			text := ""
			if err != nil {
				text = fmt.Sprintf("%T %v", err, err)
			}
			e.count(len(text))
			e.buf = append(e.buf, text...)
		}
	}
}

// row encodes values in a row.
func (e *encoder) row(at unsafe.Pointer, t *typ, n int) {
	if n > 0 && len(t.codes) == 1 && t.codes[0].do == asBytes && t.codes[0].n == t.size && !t.base.target {
		e.buf = append(e.buf, unsafe.Slice((*byte)(at), int(t.size)*n)...)
		return
	}
	for i := range n {
		p := unsafe.Add(at, uintptr(i)*t.size)
		if t.base.target {
			e.pointer(p, t)
		} else {
			e.value(p, t)
		}
	}
}

func (e *encoder) instant(v, horizon int64) {
	if v == 0 || v == math.MaxInt64 || v == math.MinInt64 {
		e.buf = append(e.buf, sentinel)
		e.uint64(uint64(v))
		return
	}
	e.age(int64(e.now)-v, horizon)
}

func (e *encoder) time(v time.Time, horizon int64) {
	if v.IsZero() {
		e.buf = append(e.buf, sentinel)
		return
	}
	e.age(e.wall-v.UnixNano(), horizon)
}

func (e *encoder) age(v, horizon int64) {
	if v > horizon {
		e.buf = append(e.buf, longAgo)
		return
	}
	e.buf = append(e.buf, age)
	e.uint64(uint64(v))
}

func (e *encoder) revision(v uint64) {
	if v != 0 {
		e.revisions = append(e.revisions, revisionAt{len(e.buf), v})
	}
	e.uint64(v)
}

// bag encodes the values in a row by the order of their encodings.
func (e *encoder) bag(at unsafe.Pointer, t *typ, n int) {
	if n < 2 {
		e.row(at, t, n)
		return
	}
	base, begin := len(e.parts), len(e.buf)
	revs, numbered := len(e.revisions), e.known.n
	free := t.local && !t.base.target
	for i := range n {
		p := part{from: len(e.buf), revFrom: len(e.revisions)}
		e.row(unsafe.Add(at, uintptr(i)*t.size), t, 1)
		p.to, p.revTo = len(e.buf), len(e.revisions)
		e.parts = append(e.parts, p)
		e.known.forget(numbered)
	}
	if free {
		e.sort(base)
		return
	}
	// The numbers of what is visited here depend on the order, so it is encoded again.
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return bytes.Compare(e.buf[e.parts[base+i].from:e.parts[base+i].to], e.buf[e.parts[base+j].from:e.parts[base+j].to])
	})
	e.parts, e.buf, e.revisions = e.parts[:base], e.buf[:begin], e.revisions[:revs]
	for _, i := range order {
		e.row(unsafe.Add(at, uintptr(i)*t.size), t, 1)
	}
}

// sort puts the parts from a number on in order, which are the end of the encoding.
func (e *encoder) sort(base int) {
	parts := e.parts[base:]
	if len(parts) > 1 {
		begin, revs := parts[0].from, parts[0].revFrom
		slices.SortFunc(parts, func(x, y part) int {
			return cmp.Or(bytes.Compare(e.buf[x.from:x.to], e.buf[y.from:y.to]), cmp.Compare(x.from, y.from))
		})
		e.spare, e.spareRevs = e.spare[:0], e.spareRevs[:0]
		for _, p := range parts {
			for _, r := range e.revisions[p.revFrom:p.revTo] {
				e.spareRevs = append(e.spareRevs, revisionAt{r.off - p.from + begin + len(e.spare), r.v})
			}
			e.spare = append(e.spare, e.buf[p.from:p.to]...)
		}
		copy(e.buf[begin:], e.spare)
		copy(e.revisions[revs:], e.spareRevs)
	}
	e.parts = e.parts[:base]
}

// pointerToMap encodes a map like something that is pointed to, but that an empty one is like none.
func (e *encoder) pointerToMap(p unsafe.Pointer, t *typ) {
	if p == nil || reflect.NewAt(t.rt, unsafe.Pointer(&p)).Elem().Len() == 0 {
		e.count(0)
		return
	}
	if t.local { // two fields with one map are like two with equal ones
		e.count(1)
		e.mapped(p, t)
		return
	}
	e.pointer(p, t)
}

// mapped encodes the entries of a map in the order of their encoded keys.
func (e *encoder) mapped(p unsafe.Pointer, t *typ) {
	m := reflect.NewAt(t.rt, unsafe.Pointer(&p)).Elem()
	e.count(m.Len())
	if !t.local {
		e.mappedObjects(m, t)
		return
	}
	base := len(e.parts)
	key, elem := t.reflected[0], t.reflected[1]
	k, v := key.Addr().UnsafePointer(), elem.Addr().UnsafePointer()
	for it := m.MapRange(); it.Next(); {
		key.SetIterKey(it)
		elem.SetIterValue(it)
		p := part{from: len(e.buf), revFrom: len(e.revisions)}
		e.value(k, t.key)
		e.value(v, t.elem)
		p.to, p.revTo = len(e.buf), len(e.revisions)
		e.parts = append(e.parts, p)
	}
	e.sort(base)
}

// mappedObjects encodes a map whose values lead to objects, which are numbered in the order of the keys.
func (e *encoder) mappedObjects(m reflect.Value, t *typ) {
	if !t.key.local {
		panic("explore: " + t.path + " is a map whose keys point to something: they have no order")
	}
	var all []entry
	begin, revs := len(e.buf), len(e.revisions)
	for it := m.MapRange(); it.Next(); {
		x := entry{key: reflect.New(t.rt.Key()), value: reflect.New(t.rt.Elem())}
		x.key.Elem().SetIterKey(it)
		x.value.Elem().SetIterValue(it)
		e.value(x.key.UnsafePointer(), t.key)
		x.code = string(e.buf[begin:])
		e.buf, e.revisions = e.buf[:begin], e.revisions[:revs]
		all = append(all, x)
	}
	e.kept = append(e.kept, all...)
	slices.SortFunc(all, func(x, y entry) int { return cmp.Compare(x.code, y.code) })
	for _, x := range all {
		e.value(x.key.UnsafePointer(), t.key)
		e.value(x.value.UnsafePointer(), t.elem)
	}
}
