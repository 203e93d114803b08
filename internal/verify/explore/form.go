package explore

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"github.com/natslock/locks/internal/clock"
)

// Form is the canonical form of worlds: which fields count, and how. It is compiled for each type that is
// met, so everything has to be declared before the first use. It is not for concurrent use.
type Form struct {
	// Wall is the wall-clock time at an instant: a [time.Time] is encoded as its age then. nil: the origin of
	// instants is that of unix time.
	Wall func(now clock.Instant) time.Time

	horizon time.Duration
	rules   map[fieldOf]rule
	types   map[typeKey]*typ
	all     []*typ // by id
	todo    []*typ
	dynamic map[reflect.Type]*held
	epoch   int // of the compiled types: an encoding of another one cannot be compared
	copier  *copier
	encoder *encoder
}

type fieldOf struct {
	of    reflect.Type
	field int
}

// rule is what was declared about a field.
type rule struct {
	ignored, shared, revision, bag bool
	horizon                        time.Duration
	reason                         string
}

// Horizon has all instants and times that are longer ago than d encoded as long ago. 0: none is.
func (f *Form) Horizon(d time.Duration) { f.horizon = d }

// HorizonOf is [Form.Horizon] for some fields of a struct.
func (f *Form) HorizonOf(of any, d time.Duration, fields ...string) {
	for _, name := range fields {
		f.declare(of, name, func(r *rule) { r.horizon = d })
	}
}

// Revision declares that fields of a struct are revisions, or slices or maps of them: the uint64 in them
// are encoded by their rank among all revisions of the world. 0 stays 0.
func (f *Form) Revision(of any, fields ...string) {
	for _, name := range fields {
		f.declare(of, name, func(r *rule) { r.revision = true })
	}
}

// Unordered declares that fields of a struct are slices whose order does not matter.
func (f *Form) Unordered(of any, fields ...string) {
	for _, name := range fields {
		f.declare(of, name, func(r *rule) { r.bag = true })
	}
}

// Ignore leaves a field out of the encoding, for a reason. It is copied.
func (f *Form) Ignore(of any, field, reason string) {
	if reason == "" {
		panic("explore: a field is ignored for a reason")
	}
	f.declare(of, field, func(r *rule) { r.ignored, r.reason = true, reason })
}

// Share has copies share what a field refers to, and leaves it out of the encoding, for a reason: a function,
// or what never changes.
func (f *Form) Share(of any, field, reason string) {
	if reason == "" {
		panic("explore: a field is shared for a reason")
	}
	f.declare(of, field, func(r *rule) { r.ignored, r.shared, r.reason = true, true, reason })
}

// declare changes the rule about a field, which may be one of an embedded struct.
func (f *Form) declare(of any, name string, change func(r *rule)) {
	if f.all != nil {
		panic("explore: the form is in use already")
	}
	t := reflect.TypeOf(of)
	if t == nil || t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("explore: %T is no struct", of))
	}
	field, ok := t.FieldByName(name)
	if !ok {
		panic(fmt.Sprintf("explore: %v has no field %s", t, name))
	}
	for _, i := range field.Index[:len(field.Index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	if f.rules == nil {
		f.rules = map[fieldOf]rule{}
	}
	key := fieldOf{t, field.Index[len(field.Index)-1]}
	r := f.rules[key]
	change(&r)
	f.rules[key] = r
}

// mode is how the values inside a field are encoded, down to the next struct or pointer.
type mode struct {
	revision bool
	bag      bool
	horizon  time.Duration // -1: the form's
}

var plainly = mode{horizon: -1}

type typeKey struct {
	t reflect.Type
	m mode
}

// typ is a compiled type.
type typ struct {
	id     int
	base   *typ // the same type, in no field that something was declared about
	rt     reflect.Type
	mode   mode
	path   string // to a field that has it
	size   uintptr
	copies []op // in the order of memory
	refs   []op // those of copies that lead to other memory
	codes  []op // in the order of fields
	raw    bool // there is no pointer in it
	isMap  bool
	key    *typ // of a map
	elem   *typ // of a map

	target bool // something points to it: it may be met twice
	inside bool // it is part of other types
	local  bool // its encoding does not depend on what was visited before

	reflected []reflect.Value // scratch of a map: key and value to read, value to write
}

type opKind uint8

const (
	asBytes    opKind = iota // n of them
	asWord                   // a pointer that is shared
	asString                 //
	asPointer                // to a t
	asSlice                  // of t
	asBag                    // a slice of t whose order does not matter
	asMap                    // t
	asAny                    // an empty interface
	asMethods                // another interface, of type rt
	asError                  // an error, which is shared
	asArray                  // n of t
	asObject                 // a t that something may point to
	asInstant                //
	asTime                   //
	asRevision               //
)

// op is what is done with a part of a value.
type op struct {
	do      opKind
	off, n  uintptr
	t       *typ
	rt      reflect.Type
	horizon int64
}

var (
	instantType = reflect.TypeFor[clock.Instant]()
	timeType    = reflect.TypeFor[time.Time]()
	errorType   = reflect.TypeFor[error]()
)

// compile returns the compiled type. It has compiled all types that this one leads to.
func (f *Form) compile(rt reflect.Type, path string) *typ {
	if f.types == nil {
		f.types, f.dynamic = map[typeKey]*typ{}, map[reflect.Type]*held{}
	}
	t := f.typeOf(rt, plainly, path)
	if fresh := !t.target; fresh || len(f.todo) > 0 {
		t.target = true
		f.settle()
	}
	return t
}

// held is the type of a value in an interface.
type held struct {
	t     *typ
	id    int
	boxed bool // it is no pointer
}

func (f *Form) held(rt reflect.Type, path string) *held {
	if h := f.dynamic[rt]; h != nil {
		return h
	}
	h := &held{id: len(f.dynamic) + 1}
	path += ".(" + rt.String() + ")"
	switch {
	case rt.Kind() == reflect.Pointer:
		h.t = f.compile(rt.Elem(), path)
	case direct(rt):
		panic("explore: " + path + " is no pointer, and looks like one")
	default:
		h.boxed, h.t = true, f.typeOf(rt, plainly, path)
		f.settle()
	}
	f.dynamic[rt] = h
	return h
}

// direct says whether an interface has the value itself where it has a pointer to others.
func direct(rt reflect.Type) bool {
	switch rt.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return true
	case reflect.Struct:
		return rt.NumField() == 1 && direct(rt.Field(0).Type)
	case reflect.Array:
		return rt.Len() == 1 && direct(rt.Elem())
	}
	return false
}

func (f *Form) typeOf(rt reflect.Type, m mode, path string) *typ {
	key := typeKey{rt, f.within(rt, m)}
	if t := f.types[key]; t != nil {
		return t
	}
	t := &typ{id: len(f.all), rt: rt, mode: key.m, path: path, size: rt.Size(), isMap: rt.Kind() == reflect.Map}
	f.types[key] = t
	if t.base = t; key.m != plainly {
		t.base = f.typeOf(rt, plainly, path)
	}
	f.all = append(f.all, t)
	f.todo = append(f.todo, t)
	return t
}

// settle compiles what is still to be compiled.
func (f *Form) settle() {
	for len(f.todo) > 0 {
		t := f.todo[0]
		f.todo = f.todo[1:]
		f.copies(t)
	}
	f.epoch++
	for i := 0; i < len(f.all); i++ { // which types are targets is known now
		t := f.all[i]
		t.codes = nil
		if !t.isMap {
			f.code(t, t.rt, t.mode, 0, true)
		}
		for ; len(f.todo) > 0; f.todo = f.todo[1:] { // types of objects in modes
			f.copies(f.todo[0])
		}
	}
	found := map[reflect.Type]bool{}
	for _, t := range f.all {
		parts(t.rt, found)
		for _, o := range t.copies {
			if o.do == asSlice || o.do == asArray {
				found[o.t.rt] = true
			}
		}
	}
	local := map[*typ]int{}
	for _, t := range f.all {
		t.inside, t.local = found[t.rt], isLocal(t, local)
	}
}

// isLocal says whether nothing in a value of the type is numbered. known: 1 is being judged, 2 no, 3 yes.
func isLocal(t *typ, known map[*typ]int) bool {
	if known[t] != 0 {
		return known[t] == 3
	}
	known[t] = 1
	local := true
	if t.isMap {
		local = isLocal(t.key, known) && isLocal(t.elem, known)
	}
	for _, o := range t.codes {
		switch o.do {
		case asPointer, asAny, asMethods, asObject:
			local = false
		case asSlice, asBag, asArray:
			local = local && !o.t.base.target && isLocal(o.t, known)
		case asMap:
			local = local && isLocal(o.t, known)
		}
	}
	known[t] = 2
	if local {
		known[t] = 3
	}
	return local
}

// copies compiles how a type is copied.
func (f *Form) copies(t *typ) {
	if t.isMap {
		t.key = f.typeOf(t.rt.Key(), t.mode, t.path+"[key]")
		t.elem = f.typeOf(t.rt.Elem(), t.mode, t.path+"[]")
		for _, rt := range []reflect.Type{t.rt.Key(), t.rt.Elem(), t.rt.Elem()} {
			t.reflected = append(t.reflected, reflect.New(rt).Elem())
		}
		return
	}
	f.copyPart(t, t.rt, t.mode, 0, t.path, rule{})
	t.raw = true
	for _, o := range t.copies {
		switch o.do {
		case asPointer, asSlice, asMap, asAny, asMethods, asArray:
			t.refs = append(t.refs, o)
		}
		t.raw = t.raw && o.do == asBytes
	}
	if t.raw {
		t.copies = []op{{do: asBytes, n: t.size}}
	}
}

// copyPart adds the operations for a part of t.
func (f *Form) copyPart(t *typ, rt reflect.Type, m mode, off uintptr, path string, r rule) {
	add := func(o op) {
		o.off += off
		if last := len(t.copies) - 1; o.do == asBytes && last >= 0 && t.copies[last].do == asBytes {
			t.copies[last].n = o.off + o.n - t.copies[last].off // what lies between them is padding
			return
		}
		t.copies = append(t.copies, o)
	}
	bytes := func(off, n uintptr) { add(op{do: asBytes, off: off, n: n}) }
	word := func(off uintptr) { add(op{do: asWord, off: off}) }
	const w = unsafe.Sizeof(uintptr(0))
	if noData(rt) && !r.ignored {
		panic(fmt.Sprintf("explore: %s is a %v, and the form neither shares nor ignores it", path, rt))
	}
	switch kind := rt.Kind(); {
	case rt == timeType:
		bytes(0, 2*w)
		word(2 * w)
	case kind == reflect.Struct:
		for i := range rt.NumField() {
			field := rt.Field(i)
			inner := f.rules[fieldOf{rt, i}]
			inner.ignored = inner.ignored || r.ignored
			inner.shared = inner.shared || r.shared
			f.copyPart(t, field.Type, f.modeOf(inner), off+field.Offset, path+"."+field.Name, inner)
		}
	case kind == reflect.Array && rt.Len() <= 4:
		for i := range uintptr(rt.Len()) {
			f.copyPart(t, rt.Elem(), m, off+i*rt.Elem().Size(), path+"[]", r)
		}
	case kind == reflect.Array:
		if r.shared {
			panic("explore: " + path + " is shared, and a large array")
		}
		add(op{do: asArray, n: uintptr(rt.Len()), t: f.typeOf(rt.Elem(), m, path+"[]")})
	case kind == reflect.String:
		add(op{do: asString})
	case kind == reflect.Func, kind == reflect.Chan, kind == reflect.UnsafePointer:
		word(0)
	case r.shared && (kind == reflect.Pointer || kind == reflect.Map):
		word(0)
	case r.shared && kind == reflect.Slice:
		word(0)
		bytes(w, 2*w)
	case rt == errorType, r.shared && kind == reflect.Interface:
		word(0)
		word(w)
	case kind == reflect.Pointer:
		elem := f.typeOf(rt.Elem(), plainly, path)
		elem.target = true
		add(op{do: asPointer, t: elem})
	case kind == reflect.Slice:
		m.bag = false
		add(op{do: asSlice, t: f.typeOf(rt.Elem(), m, path+"[]")})
	case kind == reflect.Map:
		add(op{do: asMap, t: f.typeOf(rt, m, path)})
	case kind == reflect.Interface && rt.NumMethod() == 0:
		add(op{do: asAny})
	case kind == reflect.Interface:
		add(op{do: asMethods, rt: rt})
	default:
		bytes(0, rt.Size())
	}
}

// noData says whether values of a type are no data.
func noData(rt reflect.Type) bool {
	switch rt.Kind() {
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return true
	}
	return slices.Contains([]string{"sync", "sync/atomic", "context"}, rt.PkgPath())
}

// parts adds the types of which values are part of those of a type.
func parts(rt reflect.Type, found map[reflect.Type]bool) {
	switch rt.Kind() {
	case reflect.Struct:
		for i := range rt.NumField() {
			part := rt.Field(i).Type
			found[part] = true
			if k := part.Kind(); k == reflect.Struct || k == reflect.Array {
				parts(part, found)
			}
		}
	case reflect.Array:
		found[rt.Elem()] = true
		parts(rt.Elem(), found)
	}
}

func (f *Form) modeOf(r rule) mode {
	m := mode{revision: r.revision, bag: r.bag, horizon: -1}
	if r.horizon != 0 {
		m.horizon = r.horizon
	}
	return m
}

// code compiles how a part of t is encoded. top says that the part is all of t.
func (f *Form) code(t *typ, rt reflect.Type, m mode, off uintptr, top bool) {
	add := func(o op) {
		o.off = off
		if last := len(t.codes) - 1; o.do == asBytes && last >= 0 && t.codes[last].do == asBytes && t.codes[last].off+t.codes[last].n == off {
			t.codes[last].n += o.n
			return
		}
		t.codes = append(t.codes, o)
	}
	horizon := int64(f.horizon)
	if m.horizon >= 0 {
		horizon = int64(m.horizon)
	}
	if horizon == 0 {
		horizon = math.MaxInt64
	}
	if !top && rt != timeType {
		if base := f.types[typeKey{rt, plainly}]; base != nil && base.target {
			add(op{do: asObject, t: f.typeOf(rt, f.within(rt, m), t.path)}) // see settle
			return
		}
	}
	switch kind := rt.Kind(); {
	case rt == instantType:
		add(op{do: asInstant, horizon: horizon})
	case rt == timeType:
		add(op{do: asTime, horizon: horizon})
	case m.revision && kind == reflect.Uint64:
		add(op{do: asRevision})
	case kind == reflect.Struct:
		for i := range rt.NumField() {
			if r := f.rules[fieldOf{rt, i}]; !r.ignored {
				f.code(t, rt.Field(i).Type, f.modeOf(r), off+rt.Field(i).Offset, false)
			}
		}
	case kind == reflect.Array && rt.Len() <= 4:
		for i := range uintptr(rt.Len()) {
			f.code(t, rt.Elem(), m, off+i*rt.Elem().Size(), false)
		}
	case kind == reflect.Array:
		add(op{do: asArray, n: uintptr(rt.Len()), t: f.typeOf(rt.Elem(), m, t.path)})
	case kind == reflect.String:
		add(op{do: asString})
	case kind == reflect.Pointer:
		add(op{do: asPointer, t: f.typeOf(rt.Elem(), plainly, t.path)})
	case kind == reflect.Slice:
		do := asSlice
		if m.bag {
			do = asBag
		}
		m.bag = false
		add(op{do: do, t: f.typeOf(rt.Elem(), m, t.path)})
	case kind == reflect.Map:
		add(op{do: asMap, t: f.typeOf(rt, m, t.path)})
	case rt == errorType:
		add(op{do: asError})
	case kind == reflect.Interface && rt.NumMethod() == 0:
		add(op{do: asAny})
	case kind == reflect.Interface:
		add(op{do: asMethods, rt: rt})
	case kind == reflect.Func, kind == reflect.Chan, kind == reflect.UnsafePointer: // of an ignored struct
	default:
		add(op{do: asBytes, n: rt.Size()})
	}
}

// within is the mode of a type inside a field of a mode: it ends at a struct and at a pointer.
func (*Form) within(rt reflect.Type, m mode) mode {
	switch rt.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct:
		return plainly
	}
	if rt.Kind() != reflect.Slice {
		m.bag = false
	}
	return m
}
