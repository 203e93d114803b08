package explore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Model is a transition system over worlds of type W.
type Model[W any] struct {
	Name string
	Init func() *W
	// Moves appends the moves that are enabled, in a fixed order. Like all functions here but Take and Canon
	// it must not change the world.
	Moves func(w *W, to []Move) []Move
	// Take changes a world, which is a private copy. What it does depends on the world and on the move only.
	Take func(w *W, m Move)
	// Broken names the invariant that a world violates; "": none.
	Broken func(w *W) string
	// Goal says whether a world is a goal, which has to be reachable from every state without another
	// fault. nil: there is none.
	Goal func(w *W) bool
	// Now is the instant from which ages are counted.
	Now func(w *W) clock.Instant
	// Say is a move in words, before it is taken.
	Say func(w *W, m Move) string
	// Show is a world in words.
	Show func(w *W) string
	// Canon clears what neither a later move reads nor an invariant or a goal. It may be nil.
	Canon func(w *W)
	// Form is the canonical form of worlds. nil: no revisions, all ages count.
	Form *Form
}

// Move is one step of a world. What its numbers mean is the model's.
type Move struct {
	Kind    uint8
	Fault   bool // no waiter may depend on it
	A, B, C int32
}

// Stuck is the name of the violated invariant where no goal can be reached.
const Stuck = "every waiter can still get in"

// Limits bound an exploration.
type Limits struct {
	States int    // at most about so many; 0: as many as there are
	Only   string // the one invariant that counts; "": all
	// Worlds is how many worlds of states that are still to be expanded are kept, of some ten kilobytes each. Those of
	// others are made again from the beginning, which takes as many moves as they are deep. 0: 65,536.
	Worlds int
	// Recheck has every so many-th world that is a state met before compared with the one of that state: the
	// same moves have to lead from both to the same states, or the form leaves out what matters. What matters to the form
	// alone counts too: an age that no move reads any more wants a shorter horizon, or Canon. 0: none.
	Recheck int
}

// Alike is the name of the violated invariant where two worlds of one state do not go on alike.
const Alike = "two worlds of one state go on alike"

// Result is the result of an exploration.
type Result struct {
	Name        string
	States      int
	Transitions int
	Depth       int // of the deepest state that was expanded
	Exhausted   bool
	Took        time.Duration
	Violated    string   // the invariant; "": none
	Story       []string // the shortest way there, a line per move
	Moves       []Move   // of the story
}

// state is a state that was met.
type state struct {
	hash   [2]uint64
	parent uint32
	move   Move
}

// pageSize is how many states are kept in one piece of memory.
const pageSize = 1 << 14

// seen is the set of states met, in the order in which they were met.
type seen struct {
	pages [][]state
	table []place
	n     int
}

// place is a place in the table of all states: empty when next is 0.
type place struct{ hash, next uint32 } // a part of the state's hash, and its index + 1

func newSeen() *seen { return &seen{table: make([]place, 1<<12)} }

func (x *seen) at(i int) *state { return &x.pages[i/pageSize][i%pageSize] }

// add returns the index of a state, and whether it is new.
func (x *seen) add(s state) (int, bool) {
	if 3*x.n >= 2*len(x.table) {
		old := x.table
		x.table = make([]place, 2*len(old))
		for _, p := range old {
			if p.next != 0 {
				slot := int(p.hash)
				for x.table[slot&(len(x.table)-1)].next != 0 {
					slot++
				}
				x.table[slot&(len(x.table)-1)] = p
			}
		}
	}
	hash := uint32(s.hash[0])
	slot := int(hash) & (len(x.table) - 1)
	for ; x.table[slot].next != 0; slot = (slot + 1) & (len(x.table) - 1) {
		if p := x.table[slot]; p.hash == hash && x.at(int(p.next-1)).hash == s.hash {
			return int(p.next - 1), false
		}
	}
	if x.n%pageSize == 0 {
		x.pages = append(x.pages, make([]state, 0, pageSize))
	}
	page := &x.pages[x.n/pageSize]
	*page = append(*page, s)
	x.n++
	x.table[slot] = place{hash, uint32(x.n)}
	return x.n - 1, true
}

// visit is the world of a state on the way to the one that is being expanded.
type visit[W any] struct {
	state int
	w     *W
	arena *arena
}

// explorer explores a model.
type explorer[W any] struct {
	m       Model[W]
	met     *seen
	kept    map[int]visit[W] // the worlds of states that are still to be expanded, as many as there is room for
	way     way[W]           // to a state whose world is not kept
	step    *arena           // of the world after the move that is being tried
	free    []*arena
	other   way[W] // to the state that a world is compared with
	compare arena
	buf     []byte
	todo    []int
}

// way has the worlds on the way to a state, by depth.
type way[W any] []*visit[W]

// Explore visits the states of a model breadth first until an invariant is violated, all have been seen, or the
// limit is reached. It panics if what a move does depends on more than the world.
func Explore[W any](m Model[W], lim Limits) Result {
	begun := time.Now()
	if m.Form == nil {
		m.Form = new(Form)
	}
	for {
		x := &explorer[W]{m: m, met: newSeen()}
		if res, same := x.explore(lim, m.Form.epoch); same {
			res.Took = time.Since(begun)
			return res
		}
	}
}

// explore is false when a type was met that is new to the form: then the encodings before have another form.
func (x *explorer[W]) explore(lim Limits, epoch int) (res Result, same bool) {
	m := x.m
	res.Name = m.Name
	g := graph{kept: m.Goal != nil}
	var goals []bool
	violated, where := "", -1
	var last *Move // the move after that which panicked
	counts := func(v string) bool { return v != "" && (lim.Only == "" || v == lim.Only) }
	judge := func(w *W, i int) {
		if v := m.Broken(w); counts(v) && where < 0 {
			violated, where = v, i
		}
		if m.Goal != nil {
			goals = append(goals, m.Goal(w))
		}
	}
	first := m.Init()
	if m.Canon != nil {
		m.Canon(first)
	}
	x.met.add(state{hash: x.hash(first)})
	x.way, x.other = way[W]{{w: first}}, way[W]{{w: first}}
	x.kept, x.step = map[int]visit[W]{}, new(arena)
	judge(first, 0)
	if m.Form.epoch != epoch {
		return res, false
	}
	worlds := cmp.Or(lim.Worlds, 1<<16)
	var moves []Move
	merged, difference := 0, ""
	from, level := 0, 1 // level is where the states of the next depth begin
	for ; from < x.met.n && where < 0 && (lim.States == 0 || x.met.n < lim.States); from++ {
		if from == level {
			res.Depth++
			level = x.met.n
		}
		v, known := x.kept[from]
		w := v.w
		if !known || from < 1000 { // a kept one is made again to see that it can be
			w = x.world(&x.way, from, res.Depth)
		}
		moves = m.Moves(w, moves[:0])
		for _, mv := range moves {
			res.Transitions++
			x.step.reset()
			n := copyInto(m.Form, x.step, w)
			if v := x.take(n, mv); v != "" {
				if lim.Only == "" && where < 0 {
					violated, where, last = v, from, &mv
				}
				continue
			}
			i, fresh := x.met.add(state{hash: x.hash(n), parent: uint32(from), move: mv})
			g.edge(from, i, mv.Fault)
			if fresh {
				judge(n, i)
				if len(x.kept) < worlds {
					x.kept[i] = visit[W]{i, n, x.step}
					x.step = new(arena)
					if last := len(x.free) - 1; last >= 0 {
						x.step, x.free = x.free[last], x.free[:last]
					}
				}
				continue
			}
			if merged++; lim.Recheck > 0 && merged%lim.Recheck == 0 && where < 0 && (lim.Only == "" || lim.Only == Alike) {
				if difference = x.unlike(n, i); difference != "" {
					violated, where, last = Alike, from, &mv
				}
			}
		}
		if from < 1000 && x.hash(w) != x.met.at(from).hash {
			panic("explore: " + m.Name + ": a function that only reads changes the world, or a copy shares something")
		}
		if m.Form.epoch != epoch {
			return res, false
		}
		if known {
			delete(x.kept, from)
			x.free = append(x.free, v.arena)
		}
	}
	res.Exhausted = where < 0 && from == x.met.n
	if res.Exhausted && m.Goal != nil && (lim.Only == "" || lim.Only == Stuck) {
		if i := g.lost(x.met.n, goals); i >= 0 {
			violated, where = Stuck, i
		}
	}
	res.States, res.Violated = x.met.n, violated
	if where >= 0 {
		res.Story, res.Moves = x.story(where, last)
		if difference != "" {
			res.Story = append(res.Story, difference)
		}
	}
	return res, true
}

// take takes a move. A panic is a violation.
func (x *explorer[W]) take(w *W, m Move) (violated string) {
	defer func() {
		if p := recover(); p != nil {
			violated = fmt.Sprintf("no panic: %v", p)
		}
	}()
	x.m.Take(w, m)
	if x.m.Canon != nil {
		x.m.Canon(w)
	}
	return ""
}

func (x *explorer[W]) hash(w *W) [2]uint64 {
	x.buf = Encode(x.m.Form, w, x.m.Now(w), x.buf[:0])
	sum := sha256.Sum256(x.buf)
	return [2]uint64{binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])}
}

// world makes the world of a state again, from the last state on its way that is on the given one too.
func (x *explorer[W]) world(to *way[W], i, depth int) *W {
	for len(*to) <= depth {
		*to = append(*to, &visit[W]{state: -1, arena: new(arena)})
	}
	todo, at, way := x.todo[:0], depth, *to
	for s := i; way[at].state != s; s = int(x.met.at(s).parent) {
		todo = append(todo, s)
		at--
	}
	x.todo = todo
	for k := len(todo) - 1; k >= 0; k-- {
		at++
		v := way[at]
		v.arena.reset()
		v.w, v.state = copyInto(x.m.Form, v.arena, way[at-1].w), todo[k]
		s := x.met.at(todo[k])
		// Of those on the way a wrong one shows at the end.
		if x.take(v.w, s.move) != "" || k == 0 && x.hash(v.w) != s.hash {
			panic(fmt.Sprintf("explore: %s: %+v does not do again what it did: it depends on more than the world", x.m.Name, s.move))
		}
	}
	return way[depth].w
}

// unlike compares a world with the one of a state that has its encoding. It tells a difference: "": there is none.
func (x *explorer[W]) unlike(w *W, i int) string {
	depth := 0
	for s := i; s != 0; s = int(x.met.at(s).parent) {
		depth++
	}
	before := x.world(&x.other, i, depth)
	alike := func(but string) string {
		how, _ := x.story(i, nil)
		return "That is the state after\n" + strings.Join(how, "\n") + "\nbut " + but
	}
	if x.m.Broken(w) != x.m.Broken(before) {
		return alike("not the same is violated")
	}
	if x.m.Goal != nil && x.m.Goal(w) != x.m.Goal(before) {
		return alike("only one of them is a goal")
	}
	here, there := x.next(w), x.next(before)
	for h, mv := range here {
		if _, ok := there[h]; !ok {
			return alike("only the first one goes on like that with: " + x.m.Say(w, mv))
		}
	}
	for h, mv := range there {
		if _, ok := here[h]; !ok {
			return alike("only the second one goes on like that with: " + x.m.Say(before, mv))
		}
	}
	return ""
}

// next returns the moves from a world, by the states that they lead to.
func (x *explorer[W]) next(w *W) map[[2]uint64]Move {
	all := map[[2]uint64]Move{}
	for _, mv := range x.m.Moves(w, nil) {
		x.compare.reset()
		n := copyInto(x.m.Form, &x.compare, w)
		if x.take(n, mv) == "" {
			all[x.hash(n)] = mv
		}
	}
	return all
}

// story takes the moves to a state again, from the beginning, without clearing anything.
func (x *explorer[W]) story(where int, last *Move) (story []string, moves []Move) {
	m := x.m
	var path []int
	for i := where; i != 0; i = int(x.met.at(i).parent) {
		path = append(path, i)
	}
	w := m.Init()
	begun := m.Now(w)
	tell := func(mv Move) string {
		mark := " "
		if mv.Fault {
			mark = "!"
		}
		return mark + m.Say(w, mv)
	}
	for k := len(path) - 1; k >= 0; k-- {
		s := x.met.at(path[k])
		words := tell(s.move)
		m.Take(w, s.move)
		story = append(story, fmt.Sprintf("%-9v %-80s | %s", m.Now(w).Sub(begun), words, m.Show(w)))
		moves = append(moves, s.move)
		c := CopyAs(m.Form, w)
		if m.Canon != nil {
			m.Canon(c)
		}
		if x.hash(c) != s.hash {
			panic("explore: " + m.Name + ": a move depends on what Canon clears, after\n" + strings.Join(story, "\n"))
		}
	}
	if last != nil {
		story = append(story, fmt.Sprintf("%-9v %s", m.Now(w).Sub(begun), tell(*last)))
		moves = append(moves, *last)
	}
	return story, moves
}

// graph is the moves that are not faults.
type graph struct {
	kept bool
	ends [][2]uint32
}

func (g *graph) edge(from, to int, fault bool) {
	if g.kept && !fault && from != to {
		g.ends = append(g.ends, [2]uint32{uint32(from), uint32(to)})
	}
}

// lost returns the first of the states from which no goal can be reached without another fault, or -1.
func (g *graph) lost(n int, good []bool) int {
	start := make([]uint32, n+2) // where the predecessors of i begin, once filled
	for _, e := range g.ends {
		start[e[1]+2]++
	}
	for i := 1; i < len(start); i++ {
		start[i] += start[i-1]
	}
	before := make([]uint32, len(g.ends))
	for _, e := range g.ends {
		before[start[e[1]+1]] = e[0]
		start[e[1]+1]++
	}
	var todo []uint32
	for i := range n {
		if good[i] {
			todo = append(todo, uint32(i))
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range before[start[i]:start[i+1]] {
			if !good[p] {
				good[p] = true
				todo = append(todo, p)
			}
		}
	}
	for i, ok := range good {
		if !ok {
			return i
		}
	}
	return -1
}
