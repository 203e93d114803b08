package explore

import (
	"fmt"
	"reflect"
	"sync"
	"unsafe"
)

// Copy copies a graph. Two pointers to one object point to one copy, also where the object is part of another
// one; slices of one array are slices of one array again. A slice has no room for more than what the
// graph shows of its array.
func Copy[T any](root *T) *T {
	f := copying.Get().(*Form)
	defer copying.Put(f)
	return CopyAs(f, root)
}

var copying = sync.Pool{New: func() any { return new(Form) }}

// CopyAs copies a graph, and shares what the form says.
func CopyAs[T any](f *Form, root *T) *T { return copyInto(f, new(arena), root) }

// copyInto copies a graph into an arena.
func copyInto[T any](f *Form, a *arena, root *T) *T {
	if f.copier == nil {
		f.copier = &copier{f: f}
	}
	return (*T)(f.copier.copy(a, unsafe.Pointer(root), f.compile(reflect.TypeFor[T](), reflect.TypeFor[T]().String())))
}

// arena is memory for one graph. When it is reset, the graph must not be used any more.
type arena struct {
	slabs []slab // by the id of the type
}

// slab is memory for values of one type.
type slab struct {
	at        unsafe.Pointer
	room, n   int
	recycled  []reflect.Value // maps
	contained int             // of those that are in use
}

func (a *arena) reset() {
	for i := range a.slabs {
		a.slabs[i].n, a.slabs[i].contained = 0, 0
	}
}

// take returns memory for values, which may have been used before.
func (s *slab) take(t *typ, n int) unsafe.Pointer {
	at := unsafe.Add(s.at, uintptr(s.n)*t.size)
	s.n += n
	return at
}

// sliceHeader is how a slice lies in memory.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

// object is something that is copied as a whole.
type object struct {
	src, dst unsafe.Pointer
	t        *typ
	n        int // that many in a row
	within   int // another object, -1: none
	slice    bool
}

func (o *object) end() uintptr { return uintptr(o.src) + uintptr(o.n)*o.t.size }

type copier struct {
	f       *Form
	objects []object
	scanned int
	counts  []int
	known   table
}

// table numbers places in memory.
type table struct {
	slots []placeOf
	round uint32
	n     int
	log   []uint32 // the slots in use, in order
}

type placeOf struct {
	addr  uintptr
	t     *typ
	round uint32
	i     int32
}

func (x *table) clear() {
	x.round++
	x.n, x.log = 0, x.log[:0]
	if x.slots == nil {
		x.slots = make([]placeOf, 256)
	}
}

// at returns the number of a place of a type, and whether it had one. A new one gets the next number.
func (x *table) at(p unsafe.Pointer, t *typ) (i int, known bool) {
	if 2*x.n >= len(x.slots) {
		x.grow()
	}
	addr := uintptr(p)
	mask := uint32(len(x.slots) - 1)
	s := hashOf(addr, t) & mask
	for ; x.slots[s].round == x.round; s = (s + 1) & mask {
		if x.slots[s].addr == addr && x.slots[s].t == t {
			return int(x.slots[s].i), true
		}
	}
	x.slots[s] = placeOf{addr, t, x.round, int32(x.n)}
	x.log = append(x.log, s)
	x.n++
	return x.n - 1, false
}

func hashOf(addr uintptr, t *typ) uint32 {
	return uint32((uint64(addr>>3) + uint64(t.id)<<40) * 0x9E3779B97F4A7C15 >> 32)
}

func (x *table) grow() {
	old := *x
	x.slots, x.round, x.log = make([]placeOf, 2*len(old.slots)), 1, nil
	mask := uint32(len(x.slots) - 1)
	for _, from := range old.log {
		p := old.slots[from]
		s := hashOf(p.addr, p.t) & mask
		for x.slots[s].round == x.round {
			s = (s + 1) & mask
		}
		p.round = x.round
		x.slots[s] = p
		x.log = append(x.log, s)
	}
}

// forget forgets all but the first n places.
func (x *table) forget(n int) {
	for ; x.n > n; x.n-- { // the last one first, or the chain of others would break
		last := len(x.log) - 1
		x.slots[x.log[last]].round = x.round - 1
		x.log = x.log[:last]
	}
}

func (c *copier) copy(a *arena, root unsafe.Pointer, t *typ) unsafe.Pointer {
	c.known.clear()
	c.objects, c.scanned = c.objects[:0], 0
	c.meet(root, t, 1, false)
	for ; c.scanned < len(c.objects); c.scanned++ {
		o := c.objects[c.scanned]
		c.scan(o.t, o.src, 0, o.n)
	}
	c.nest()
	c.allocate(a)
	for i := range c.objects {
		if o := &c.objects[i]; o.within < 0 {
			c.fill(a, o.t, o.dst, o.src, o.n)
		}
	}
	dst := c.objects[0].dst
	clear(c.objects) // keeps nothing alive
	return dst
}

// meet notes an object.
func (c *copier) meet(p unsafe.Pointer, t *typ, n int, slice bool) {
	i, known := c.known.at(p, t.base)
	if !known {
		c.objects = append(c.objects, object{src: p, t: t, n: n, within: -1, slice: slice})
		return
	}
	o := &c.objects[i]
	o.slice = o.slice || slice
	if had := o.n; n > had {
		if o.n = n; i < c.scanned || i == c.scanned {
			c.scan(t, p, had, n)
		}
	}
}

// scan meets all objects that values lead to, from one of them on.
func (c *copier) scan(t *typ, at unsafe.Pointer, from, n int) {
	if t.isMap {
		c.scanMap(t, at)
		return
	}
	if len(t.refs) == 0 {
		return
	}
	for i := from; i < n; i++ {
		base := unsafe.Add(at, uintptr(i)*t.size)
		for k := range t.refs {
			o := &t.refs[k]
			p := unsafe.Add(base, o.off)
			switch o.do {
			case asPointer:
				if q := *(*unsafe.Pointer)(p); q != nil {
					c.meet(q, o.t, 1, false)
				}
			case asMap:
				if q := *(*unsafe.Pointer)(p); q != nil {
					c.meet(q, o.t, 1, false)
				}
			case asSlice:
				if s := (*sliceHeader)(p); s.len > 0 {
					c.meet(s.data, o.t, s.len, true)
				}
			case asArray:
				c.scan(o.t, p, 0, int(o.n))
			case asAny, asMethods:
				if h, q := c.f.value(p, o, t); h.copied(q) {
					c.meet(q, h.t, 1, false)
				}
			}
		}
	}
}

// value is the type of what an interface at p leads to, and where that is. nil: nothing.
func (f *Form) value(p unsafe.Pointer, o *op, in *typ) (*held, unsafe.Pointer) {
	words := (*[2]unsafe.Pointer)(p)
	if words[0] == nil {
		return nil, nil
	}
	var rt reflect.Type
	if o.do == asAny {
		rt = reflect.TypeOf(*(*any)(p))
	} else {
		rt = reflect.NewAt(o.rt, p).Elem().Elem().Type()
	}
	h := f.dynamic[rt]
	if h == nil {
		h = f.held(rt, in.path)
	}
	return h, words[1]
}

// copied says whether a copy has its own value in an interface. One that is no pointer never changes.
func (h *held) copied(at unsafe.Pointer) bool {
	return h != nil && at != nil && (!h.boxed || len(h.t.refs) > 0 || h.t.isMap)
}

func (c *copier) scanMap(t *typ, at unsafe.Pointer) {
	if len(t.key.refs) == 0 && len(t.elem.refs) == 0 {
		return
	}
	key, elem := t.reflected[0], t.reflected[1]
	m := reflect.NewAt(t.rt, unsafe.Pointer(&at)).Elem()
	for it := m.MapRange(); it.Next(); {
		key.SetIterKey(it)
		elem.SetIterValue(it)
		c.scan(t.key, key.Addr().UnsafePointer(), 0, 1)
		c.scan(t.elem, elem.Addr().UnsafePointer(), 0, 1)
	}
}

// nest finds the objects that are part of others.
func (c *copier) nest() {
	for again := true; again; {
		again = false
		for i := range c.objects {
			o := &c.objects[i]
			if o.t.isMap || o.t.size == 0 || !o.slice && !o.t.inside {
				continue
			}
			lo, hi := uintptr(o.src), o.end()
			o.within = -1
			for j := range c.objects {
				x := &c.objects[j]
				from, to := uintptr(x.src), x.end()
				if hi <= from || to <= lo || i == j || x.t.isMap {
					continue
				}
				switch {
				case from <= lo && hi <= to && (to-from > hi-lo || j < i):
					if best := o.within; best < 0 || to-from > c.objects[best].end()-uintptr(c.objects[best].src) {
						o.within = j
					}
				case lo <= from && to <= hi:
				case lo < from: // two slices of one array that overlap
					if o.t.base != x.t.base {
						panic(fmt.Sprintf("explore: %s and %s overlap", o.t.path, x.t.path))
					}
					o.n = int((to - lo) / o.t.size)
					hi, again = o.end(), true
				}
			}
		}
	}
}

// allocate gives each object its copy.
func (c *copier) allocate(a *arena) {
	all := c.f.all
	for len(a.slabs) < len(all) {
		a.slabs = append(a.slabs, slab{})
	}
	for len(c.counts) < len(all) {
		c.counts = append(c.counts, 0)
	}
	clear(c.counts)
	for i := range c.objects {
		if o := &c.objects[i]; o.within < 0 && !o.t.isMap {
			c.counts[o.t.id] += o.n
		}
	}
	for id, n := range c.counts {
		if s := &a.slabs[id]; s.room-s.n < n {
			s.room, s.n = n, 0
			if s.at = nil; n == 1 {
				s.at = reflect.New(all[id].rt).UnsafePointer()
			} else {
				s.at = reflect.MakeSlice(reflect.SliceOf(all[id].rt), n, n).UnsafePointer()
			}
		}
	}
	for i := range c.objects {
		switch o := &c.objects[i]; {
		case o.within >= 0:
		case o.t.isMap:
			s := &a.slabs[o.t.id]
			if s.contained == len(s.recycled) {
				s.recycled = append(s.recycled, reflect.MakeMap(o.t.rt))
			} else {
				s.recycled[s.contained].Clear()
			}
			o.dst = s.recycled[s.contained].UnsafePointer()
			s.contained++
		default:
			o.dst = a.slabs[o.t.id].take(o.t, o.n)
		}
	}
	for i := range c.objects {
		if o := &c.objects[i]; o.within >= 0 {
			x := &c.objects[o.within]
			for x.within >= 0 { // of two with one place, the first
				x = &c.objects[x.within]
			}
			o.dst = unsafe.Add(x.dst, uintptr(o.src)-uintptr(x.src))
		}
	}
}

// copyOf is the copy of an object that has been met.
func (c *copier) copyOf(p unsafe.Pointer, t *typ) unsafe.Pointer {
	i, known := c.known.at(p, t.base)
	if !known {
		panic("explore: " + t.path + " has changed while it was copied")
	}
	return c.objects[i].dst
}

// fill copies values.
func (c *copier) fill(a *arena, t *typ, dst, src unsafe.Pointer, n int) {
	if t.isMap {
		c.fillMap(a, t, dst, src)
		return
	}
	if t.raw {
		size := int(t.size) * n
		copy(unsafe.Slice((*byte)(dst), size), unsafe.Slice((*byte)(src), size))
		return
	}
	for i := range n {
		to, from := unsafe.Add(dst, uintptr(i)*t.size), unsafe.Add(src, uintptr(i)*t.size)
		for k := range t.copies {
			o := &t.copies[k]
			p, q := unsafe.Add(to, o.off), unsafe.Add(from, o.off)
			switch o.do {
			case asBytes:
				if o.n == 8 {
					*(*uint64)(p) = *(*uint64)(q)
				} else {
					copy(unsafe.Slice((*byte)(p), o.n), unsafe.Slice((*byte)(q), o.n))
				}
			case asWord:
				*(*unsafe.Pointer)(p) = *(*unsafe.Pointer)(q)
			case asString:
				*(*string)(p) = *(*string)(q)
			case asPointer, asMap:
				if x := *(*unsafe.Pointer)(q); x != nil {
					*(*unsafe.Pointer)(p) = c.copyOf(x, o.t)
				} else {
					*(*unsafe.Pointer)(p) = nil
				}
			case asSlice:
				c.fillSlice(o.t, (*sliceHeader)(p), (*sliceHeader)(q))
			case asArray:
				c.fill(a, o.t, p, q, int(o.n))
			case asAny, asMethods:
				words := (*[2]unsafe.Pointer)(p)
				*words = *(*[2]unsafe.Pointer)(q)
				if h, x := c.f.value(q, o, t); h.copied(x) {
					words[1] = c.copyOf(x, h.t)
				}
			}
		}
	}
}

var nothing [1]uint64 // where an empty slice that is not nil begins

func (c *copier) fillSlice(t *typ, to, from *sliceHeader) {
	switch {
	case from.data == nil:
		*to = sliceHeader{}
		return
	case from.len == 0:
		*to = sliceHeader{data: unsafe.Pointer(&nothing)}
		return
	}
	i, _ := c.known.at(from.data, t.base)
	o := &c.objects[i]
	whole := o
	for whole.within >= 0 {
		whole = &c.objects[whole.within]
	}
	room := from.len
	if t.size > 0 {
		room = max(from.len, min(from.cap, int((whole.end()-uintptr(o.src))/t.size)))
	}
	*to = sliceHeader{o.dst, from.len, room}
}

func (c *copier) fillMap(a *arena, t *typ, dst, src unsafe.Pointer) {
	from := reflect.NewAt(t.rt, unsafe.Pointer(&src)).Elem()
	if from.Len() == 0 {
		return
	}
	to := reflect.NewAt(t.rt, unsafe.Pointer(&dst)).Elem()
	key, elem, changed := t.reflected[0], t.reflected[1], t.reflected[2]
	for it := from.MapRange(); it.Next(); {
		key.SetIterKey(it)
		elem.SetIterValue(it)
		if len(t.key.refs) > 0 {
			k := reflect.New(t.rt.Key())
			c.fill(a, t.key, k.UnsafePointer(), key.Addr().UnsafePointer(), 1)
			key.Set(k.Elem())
		}
		if len(t.elem.refs) > 0 {
			c.fill(a, t.elem, changed.Addr().UnsafePointer(), elem.Addr().UnsafePointer(), 1)
			to.SetMapIndex(key, changed)
		} else {
			to.SetMapIndex(key, elem)
		}
	}
}
