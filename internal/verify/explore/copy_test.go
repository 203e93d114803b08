package explore

import (
	"fmt"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// knot has all kinds of pointers.
type knot struct {
	Name   string
	Next   *knot
	Held   any
	Named  map[string]*knot
	Boxes  []box
	First  [1]box
	Inner  *box
	Lists  [][]int
	ByName map[string]int
	Err    error
	hidden *knot
}

type box struct {
	N int
	K *knot
}

func TestCopyKeepsIdentity(t *testing.T) {
	boxed := &box{N: 7}
	k := &knot{Name: "a", Held: boxed, Named: map[string]*knot{}, ByName: map[string]int{"x": 1}}
	k.Next = &knot{Name: "b", Next: k, hidden: k, Named: k.Named, Held: "text"}
	k.Named["b"], k.Named["a"] = k.Next, k
	k.Boxes = k.First[:0:1]
	k.Boxes = append(k.Boxes, box{1, k})
	k.Inner = &k.First[0]
	array := []int{1, 2, 3, 4}
	k.Lists = [][]int{array[:2], array[1:3], array[:0], nil, array[3:]}

	c := Copy(k)
	require.NotSame(t, k, c)
	require.NotSame(t, k.Next, c.Next)
	require.Same(t, c, c.Next.Next)
	require.Same(t, c, c.Next.hidden)
	require.Same(t, c.Next, c.Named["b"])
	require.Same(t, c, c.Named["a"])
	require.Equal(t, reflect.ValueOf(c.Named).Pointer(), reflect.ValueOf(c.Next.Named).Pointer(), "one map")
	require.NotSame(t, boxed, c.Held)
	require.Equal(t, boxed, c.Held)
	require.Equal(t, "text", c.Next.Held)
	require.Same(t, &c.First[0], &c.Boxes[0], "a slice of its own array")
	require.Same(t, &c.First[0], c.Inner)
	require.Same(t, c, c.Inner.K)
	require.Equal(t, k.Lists, c.Lists)
	c.Lists[0][1] = 20
	require.Equal(t, []int{20, 3}, c.Lists[1], "slices that overlap have one array")
	require.Equal(t, 4, c.Lists[4][0])
	require.Nil(t, c.Lists[3])
	require.NotNil(t, c.Lists[2])

	c.Next.Name, c.ByName["x"], c.Inner.N = "changed", 2, 9
	c.Held.(*box).N = 8
	delete(c.Named, "b")
	require.Equal(t, "b", k.Next.Name)
	require.Equal(t, 1, k.ByName["x"])
	require.Equal(t, 1, k.First[0].N)
	require.Equal(t, 7, boxed.N)
	require.Len(t, k.Named, 2)
	require.Equal(t, []int{1, 2, 3, 4}, array)
}

// TestCopyOfSlices: a slice that is met as a pointer first, or as a shorter one, is copied in its whole length, and has
// no room behind it.
func TestCopyOfSlices(t *testing.T) {
	type world struct {
		Early  *box
		Chain  *knot
		First  *box
		Short  []box
		Long   []box
		Plain  any
		Number *int
		Behind [2][]int
	}
	w := &world{Long: make([]box, 3, 8), Plain: new(int), Number: new(int), Behind: [2][]int{make([]int, 1, 8), {7}}}
	w.Long[2].K = &knot{Next: &knot{Name: "last"}}
	late := make([]box, 2)
	late[1].K = &knot{Name: "late"}
	w.Early, w.Chain = &late[0], &knot{Next: &knot{Boxes: late}}
	w.First, w.Short = &w.Long[0], w.Long[:2]
	c := Copy(w)
	require.Same(t, c.First, &c.Long[0])
	require.Same(t, &c.Short[1], &c.Long[1])
	require.Equal(t, "last", c.Long[2].K.Next.Name)
	require.NotSame(t, w.Long[2].K.Next, c.Long[2].K.Next)
	require.Same(t, c.Early, &c.Chain.Next.Boxes[0])
	require.Equal(t, "late", c.Chain.Next.Boxes[1].K.Name)
	require.Equal(t, 3, cap(c.Long))
	require.Equal(t, 3, cap(c.Short), "as before, it shows a part of the array")
	require.NotSame(t, w.Plain, c.Plain)
	_ = append(c.Behind[0], 1)
	require.Equal(t, []int{7}, c.Behind[1])
	*c.Number = 5
	require.Zero(t, *w.Number)
}

// TestCopyRefuses: what is no data is copied only if the form says how.
func TestCopyRefuses(t *testing.T) {
	type inner struct{ On func() }
	type outer struct{ In []inner }
	require.PanicsWithValue(t, "explore: explore.outer.In[].On is a func(), and the form neither shares nor ignores it",
		func() { Copy(&outer{}) })
	f := new(Form)
	f.Share(inner{}, "On", "it has no state")
	type held struct {
		Part struct{ In inner }
		N    int
	}
	whole := new(Form)
	whole.Ignore(held{}, "Part", "a test")
	require.NotPanics(t, func() { CopyAs(whole, &held{}) })
	require.Equal(t, Encode(whole, &held{N: 1}, 0, nil), Encode(whole, &held{N: 1, Part: struct{ In inner }{inner{func() {}}}}, 0, nil))

	called := 0
	c := CopyAs(f, &outer{In: []inner{{func() { called++ }}}})
	c.In[0].On()
	require.Equal(t, 1, called)
	require.Panics(t, func() { f.Ignore(inner{}, "On", "too late") })
	require.Panics(t, func() { new(Form).Ignore(inner{}, "Off", "there is no such field") })
	require.Panics(t, func() { new(Form).Ignore(inner{}, "On", "") })
}

// engine is a world of core types: two clients with lines and runs, what they know of each other, a claim.
type engine struct {
	Now     clock.Instant
	Clients []*core.Client
	Lines   []*core.Line
	Members []*core.Member
	Claims  []*core.Claim
	Queue   []record.Entry
}

func newEngine(at clock.Instant, base uint64) *engine {
	e := &engine{Now: at}
	for i := range 2 {
		c := &core.Client{ID: fmt.Sprint("client", i), Turn: 100 * time.Millisecond, Most: 8}
		l := new(core.Line)
		l.Begin(c, c)
		want := &core.Want{TTL: 10 * time.Second, Meta: map[string]string{"host": "a"}}
		for range 4 {
			m := &core.Member{Want: want}
			l.Ask(m, at)
			e.Members = append(e.Members, m)
		}
		l.Ask(&core.Member{Want: &core.Want{TTL: 20 * time.Second}}, at)
		l.Others = new(core.Others)
		l.Others.Subscribed(false)
		l.Runs[0].Claiming(at)
		for n := range 2 {
			e.Queue = append(e.Queue, record.Entry{
				Record: kvstore.Record{Key: fmt.Sprint("w.", i, n), Revision: base + 10*uint64(i) + uint64(n), TTL: 10 * time.Second, Time: time.Unix(0, int64(at))},
				Body:   record.Body{Status: record.StatusWaiting, ID: fmt.Sprint("id", i, n), Client: "other"},
			})
		}
		l.Runs[0].PlaceAt(base+3, at)
		l.Listed(e.Queue, base, nil, at, at, time.Unix(0, int64(at)))
		x := new(core.Claim)
		x.Begin("claim")
		x.Send(core.Attempt{Expect: base, Sent: at, Floor: base})
		x.Answered(core.Reply{N: 1, Answer: core.Answer{Revision: base + 4}, At: at}, false)
		e.Clients, e.Lines, e.Claims = append(e.Clients, c), append(e.Lines, l), append(e.Claims, x)
		c.Effects = nil
	}
	return e
}

func TestCopyOfTheCore(t *testing.T) {
	e := newEngine(1e9, 100)
	c := Copy(e)
	require.Equal(t, e, c)
	l, m := e.Lines[0], c.Lines[0]
	require.NotSame(t, l.Runs[0], m.Runs[0])
	at := func(l *core.Line) uintptr { return uintptr(unsafe.Pointer(l.Runs[0])) - uintptr(unsafe.Pointer(l)) }
	require.Equal(t, at(l), at(m), "the first run is part of its line")
	require.Same(t, m, m.Runs[0].Line)
	require.Same(t, c.Clients[0], m.Owner)
	assert.Greater(t, objects(e), 30)
	before := Encode(new(Form), e, e.Now, nil)
	m.Runs[0].Granted(m.Runs[0].Members[0], core.Lease{Revision: 200, Until: 5e9}, 1e9)
	require.Equal(t, before, Encode(new(Form), e, e.Now, nil))
	require.NotEqual(t, before, Encode(new(Form), c, c.Now, nil))
}

func objects[T any](root *T) int {
	f := new(Form)
	CopyAs(f, root)
	return len(f.copier.objects)
}
