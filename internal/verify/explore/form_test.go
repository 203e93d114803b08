package explore

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// coreForm is a form with all revisions of the core that the engine of the tests has.
func coreForm() *Form {
	f := new(Form)
	f.Revision(record.Entry{}, "Revision")
	f.Revision(core.Lease{}, "Revision")
	f.Revision(core.Run{}, "Ticket")
	f.Revision(core.Answer{}, "Revision", "Last")
	f.Revision(core.Attempt{}, "Expect", "Floor")
	f.Revision(core.Others{}, "from")
	declareFields(f, reflect.TypeFor[core.Others](), "places", "ticket")
	declareFields(f, reflect.TypeFor[core.Others](), "gone", "revision")
	declareFields(f, reflect.TypeFor[core.Others](), "gate", "revision")
	return f
}

// declareFields declares a revision in a struct without an exported name: that in a field of another one.
func declareFields(f *Form, of reflect.Type, field, name string) {
	t, _ := of.FieldByName(field)
	inner := t.Type
	if inner.Kind() == reflect.Map {
		inner = inner.Elem()
	}
	f.Revision(reflect.Zero(inner).Interface(), name)
}

func encodeEngine(f *Form, e *engine) []byte { return Encode(f, e, e.Now, nil) }

func TestEncodeIsCanonical(t *testing.T) {
	f := coreForm()
	one := encodeEngine(f, newEngine(1e9, 100))
	require.Equal(t, one, encodeEngine(f, newEngine(1e9, 100)), "another graph that is alike")
	require.Equal(t, one, encodeEngine(f, newEngine(7e9, 100)), "at another time")
	require.Equal(t, one, encodeEngine(f, newEngine(1e9, 5000)), "after other revisions")
	require.Equal(t, one, encodeEngine(f, Copy(newEngine(2e9, 300))), "a copy")
	require.NotEqual(t, one, encodeEngine(new(Form), newEngine(1e9, 5000)), "nothing says that they are revisions")
	for range 20 { // maps have no order
		require.Equal(t, one, encodeEngine(f, newEngine(1e9, 100)))
	}
	older := newEngine(1e9, 100)
	older.Now++
	require.NotEqual(t, one, encodeEngine(f, older))
}

// TestEncodeHasEachField changes each value of a graph of core types in turn, and finds that the encoding changes.
func TestEncodeHasEachField(t *testing.T) {
	f := coreForm()
	type all struct {
		Engine    *engine
		Drain     *core.Drain
		First     *core.First
		Successor *core.Successor
		Validity  *core.Validity
	}
	w := &all{Engine: newEngine(1e9, 100), Drain: new(core.Drain), First: new(core.First), Successor: new(core.Successor), Validity: new(core.Validity)}
	fresh := uint64(1)
	for _, part := range []any{w.Drain, w.First, w.Successor, w.Validity} {
		fill(reflect.ValueOf(part).Elem(), &fresh)
	}
	before := Encode(f, w, 1e9, nil)
	require.Equal(t, before, Encode(f, Copy(w), 1e9, nil))
	changed := 0
	change(reflect.ValueOf(w), "w", map[unsafe.Pointer]bool{}, func(path string) {
		changed++
		assert.NotEqual(t, before, Encode(f, w, 1e9, nil), path)
	})
	require.Equal(t, before, Encode(f, w, 1e9, nil), "all is as before")
	require.Greater(t, changed, 600)
}

// writable is v without the protection of fields that are not exported.
func writable(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
}

// fill gives each field a value of its own.
func fill(v reflect.Value, fresh *uint64) {
	*fresh++
	switch v = writable(v); v.Kind() {
	case reflect.Struct:
		if v.Type() == timeType {
			v.Set(reflect.ValueOf(time.Unix(int64(*fresh), 0)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), fresh)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), fresh)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), fresh)
		fill(v.Index(1), fresh)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, fresh)
		fill(elem, fresh)
		v.SetMapIndex(key, elem)
	case reflect.String:
		v.SetString(fmt.Sprint(*fresh))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*fresh % 100))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(*fresh % 100)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), fresh)
	}
}

// change changes each value that v leads to, tells, and takes the change back.
func change(v reflect.Value, path string, done map[unsafe.Pointer]bool, tell func(path string)) {
	try := func(to reflect.Value) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(to)
		tell(path)
		v.Set(was)
	}
	simple := func() reflect.Value { return reflect.New(v.Type()).Elem() }
	if v.CanAddr() {
		v = writable(v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && !done[v.UnsafePointer()] {
			done[v.UnsafePointer()] = true
			change(v.Elem(), path, done, tell)
		}
		if v.CanSet() {
			if v.IsNil() {
				try(reflect.New(v.Type().Elem()))
			} else {
				try(simple())
			}
		}
	case reflect.Struct:
		if v.Type() == timeType {
			try(reflect.ValueOf(v.Interface().(time.Time).Add(1)))
			return
		}
		for i := range v.NumField() {
			change(v.Field(i), path+"."+v.Type().Field(i).Name, done, tell)
		}
	case reflect.Array:
		for i := range v.Len() {
			change(v.Index(i), fmt.Sprintf("%s[%d]", path, i), done, tell)
		}
	case reflect.Slice:
		for i := range v.Len() {
			change(v.Index(i), fmt.Sprintf("%s[%d]", path, i), done, tell)
		}
		longer := reflect.MakeSlice(v.Type(), v.Len()+1, v.Len()+1)
		reflect.Copy(longer, v)
		try(longer)
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			was := v.MapIndex(key)
			change(value, path+"[]", done, func(path string) {
				v.SetMapIndex(key, value)
				tell(path)
				v.SetMapIndex(key, was)
			})
		}
		longer := reflect.MakeMap(v.Type())
		for _, key := range v.MapKeys() {
			longer.SetMapIndex(key, v.MapIndex(key))
		}
		longer.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		try(longer)
	case reflect.Interface:
		if v.IsNil() {
			try(reflect.ValueOf("something"))
		} else {
			try(simple())
		}
	case reflect.String:
		to := simple()
		to.SetString(v.String() + "x")
		try(to)
	case reflect.Bool:
		to := simple()
		to.SetBool(!v.Bool())
		try(to)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		to := simple()
		to.SetInt(v.Int() + 1)
		try(to)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		to := simple() // a revision: one more may have the same rank
		if v.Uint() == 0 {
			to.SetUint(7)
		}
		try(to)
	default:
		panic(path + " is a " + v.Kind().String())
	}
}

func TestEncodeAges(t *testing.T) {
	type world struct {
		At   clock.Instant
		Wall time.Time
	}
	f := new(Form)
	f.Horizon(10)
	code := func(now, at clock.Instant) string { return string(Encode(f, &world{At: at}, now, nil)) }
	require.Equal(t, code(100, 95), code(200, 195))
	require.NotEqual(t, code(100, 95), code(100, 96))
	require.Equal(t, code(100, 89), code(100, 5), "both are long ago")
	require.NotEqual(t, code(100, 90), code(100, 89))
	require.NotEqual(t, code(100, 1), code(100, 0), "0 means never")
	require.NotEqual(t, code(100, 200), code(100, 201), "the future has no horizon")
	for _, v := range []clock.Instant{math.MaxInt64, math.MinInt64} {
		require.Equal(t, code(100, v), code(200, v))
		require.NotEqual(t, code(100, v), code(100, v/2))
	}

	begun := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Wall = func(now clock.Instant) time.Time { return begun.Add(time.Duration(now)) }
	wall := func(now clock.Instant, at time.Time) string { return string(Encode(f, &world{Wall: at}, now, nil)) }
	require.Equal(t, wall(100, begun.Add(95)), wall(200, begun.Add(195)))
	require.Equal(t, wall(100, begun.Add(95)), wall(100, begun.Add(95).In(time.FixedZone("", 3600))))
	require.NotEqual(t, wall(100, begun.Add(95)), wall(100, begun.Add(96)))
	require.Equal(t, wall(100, begun), wall(100, begun.Add(-5)))
	require.NotEqual(t, wall(100, begun), wall(100, time.Time{}))
}

func TestEncodeRevisions(t *testing.T) {
	type world struct {
		One   uint64
		Other uint64
		Seen  map[string]uint64
		By    map[uint64]string
		List  []uint64
	}
	f := new(Form)
	f.Revision(world{}, "One", "Seen", "By", "List")
	code := func(base, other uint64) string {
		return string(Encode(f, &world{base, other, map[string]uint64{"a": base + 1, "b": base}, map[uint64]string{base + 250: "x", base + 300: "y"}, []uint64{0, base + 5}}, 0, nil))
	}
	require.Equal(t, code(1, 1), code(1000, 1))
	require.NotEqual(t, code(1, 1), code(1, 2), "a counter")
	require.NotEqual(t, code(0, 1), code(1, 1), "0 is none")
}

func TestEncodeBags(t *testing.T) {
	type message struct {
		Text string
		To   *box
		At   uint64
	}
	type world struct {
		To  []*box
		Bag []message
	}
	code := func(f *Form, order ...int) string {
		a, b := &box{N: 1}, &box{N: 2}
		all := []message{{"m", a, 10}, {"m", b, 20}, {"n", a, 20}, {"m", &box{N: 3}, 30}, {"m", &box{N: 4}, 40}}
		w := &world{To: []*box{a, b}}
		for _, i := range order {
			w.Bag = append(w.Bag, all[i])
		}
		return string(Encode(f, w, 0, nil))
	}
	bags, list := new(Form), new(Form)
	for _, f := range []*Form{bags, list} {
		f.Revision(message{}, "At")
	}
	bags.Unordered(world{}, "Bag")
	want := code(bags, 0, 1, 2, 3, 4)
	for _, order := range [][]int{{4, 3, 2, 1, 0}, {2, 4, 0, 3, 1}} {
		require.Equal(t, want, code(bags, order...))
		require.NotEqual(t, code(list, 0, 1, 2, 3, 4), code(list, order...))
	}
	require.NotEqual(t, want, code(bags, 0, 1, 2, 3, 3))
	require.NotEqual(t, code(bags, 2, 3), code(bags, 2, 4), "what only the bag leads to")
	require.NotEqual(t, code(bags, 0, 0), code(bags, 0))
}

func TestEncodeBagsOfValues(t *testing.T) {
	type value struct {
		Name string
		At   uint64
	}
	type world struct{ Bag []value }
	f := new(Form)
	f.Unordered(world{}, "Bag")
	f.Revision(value{}, "At")
	code := func(bag ...value) string { return string(Encode(f, &world{bag}, 0, nil)) }
	require.Equal(t, code(value{"a", 1}, value{"b", 9}, value{"a", 2}), code(value{"a", 20}, value{"b", 90}, value{"a", 10}))
	require.NotEqual(t, code(value{"a", 1}, value{"b", 2}), code(value{"a", 2}, value{"b", 1}))
}

// TestEncodeIdentity: which pointers are equal is a part of the world.
func TestEncodeIdentity(t *testing.T) {
	f := new(Form)
	code := func(k *knot) string { return string(Encode(f, k, 0, nil)) }
	a, b := &box{N: 1}, &box{N: 1}
	one, two := &knot{Held: a, Inner: a}, &knot{Held: a, Inner: b}
	require.NotEqual(t, code(one), code(two))
	part, apart := &knot{First: [1]box{{N: 1}}}, &knot{First: [1]box{{N: 1}}, Inner: b}
	part.Inner = &part.First[0]
	require.NotEqual(t, code(part), code(apart))
	require.NotEqual(t, code(&knot{Held: a}), code(&knot{Held: *a}), "a value is no pointer")
	require.NotEqual(t, code(&knot{Held: 1}), code(&knot{Held: int64(1)}))
	require.Equal(t, code(&knot{Held: 1000}), code(&knot{Held: 500 + len(make([]int, 500))}))
	require.Equal(t, code(&knot{ByName: map[string]int{}, Boxes: []box{}}), code(&knot{}))
	type texts struct{ A, B string }
	require.NotEqual(t, Encode(f, &texts{"ab", "c"}, 0, nil), Encode(f, &texts{"a", "bc"}, 0, nil))
	type cell struct{ N int }
	type rows struct {
		At map[string]struct{ L []cell }
		To *cell
	}
	row := func() []byte {
		w := &rows{At: map[string]struct{ L []cell }{}, To: new(cell)}
		for i := range 5 {
			w.At[fmt.Sprint(i)] = struct{ L []cell }{[]cell{{N: i}}}
		}
		return Encode(f, w, 0, nil)
	}
	named := func(x, y string) *knot { // values of maps that are numbered
		k := &knot{Named: map[string]*knot{x: {Name: x}, y: {Name: y}}}
		k.Named[x].Next = k.Named[y]
		return k
	}
	first := row()
	for range 20 { // maps have no order
		require.Equal(t, code(named("a", "b")), code(named("a", "b")))
		require.Equal(t, first, row())
	}
	require.NotEqual(t, code(named("a", "b")), code(named("b", "a")))
}

func BenchmarkCopy(b *testing.B) {
	w, f, a := newEngine(1e9, 100), coreForm(), new(arena)
	copyInto(f, a, w)
	b.ReportAllocs()
	for b.Loop() {
		a.reset()
		copyInto(f, a, w)
	}
	b.ReportMetric(float64(len(f.copier.objects)), "objects")
}

func BenchmarkCopyFresh(b *testing.B) {
	w := newEngine(1e9, 100)
	b.ReportAllocs()
	for b.Loop() {
		Copy(w)
	}
}

func BenchmarkEncode(b *testing.B) {
	w, f := newEngine(1e9, 100), coreForm()
	buf := Encode(f, w, w.Now, nil)
	b.ReportAllocs()
	for b.Loop() {
		buf = Encode(f, w, w.Now, buf[:0])
	}
	b.ReportMetric(float64(len(buf)), "bytes")
}
