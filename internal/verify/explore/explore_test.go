package explore

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
)

// The toy is a lock of the kind that the package is for: a server with one record, clients that write it at
// a revision and let it expire, and messages that may get lost.
type toy struct {
	Now     clock.Instant
	Server  toyServer
	Clients []*toyClient
	Sent    []toyWrite
}

type toyServer struct {
	Revision uint64
	Holder   *toyClient
	Until    clock.Instant
	Last     uint64 // revision of the stream
}

type toyClient struct {
	ID    int
	Until clock.Instant // it believes so
	Waits bool
	Knows uint64
	Tries int
	In    int
}

type toyWrite struct {
	From   *toyClient
	Expect uint64
	Sent   clock.Instant
}

const (
	toyTick = iota
	toySend
	toyArrive
	toyLose
)

const toyTTL = 3

type toyRules struct {
	clients, tries int
	loses          bool
	late           bool // the defect: the lease counts from the answer
	sticky         bool // the defect: a record never expires
}

func (r toyRules) model() Model[toy] {
	f := new(Form)
	f.Revision(toyServer{}, "Revision", "Last")
	f.Revision(toyClient{}, "Knows")
	f.Revision(toyWrite{}, "Expect")
	f.Unordered(toy{}, "Sent")
	f.Horizon(toyTTL + 1)
	f.HorizonOf(toyClient{}, 1, "Until") // a write that is as old as the horizon makes one that is over for longer
	return Model[toy]{
		Name: "toy",
		Form: f,
		Init: func() *toy {
			w := &toy{Now: 100}
			for i := range r.clients {
				w.Clients = append(w.Clients, &toyClient{ID: i, Waits: true})
			}
			return w
		},
		Now: func(w *toy) clock.Instant { return w.Now },
		Moves: func(w *toy, to []Move) []Move {
			to = append(to, Move{Kind: toyTick})
			for i, c := range w.Clients {
				if c.Waits && c.Tries < r.tries && !slices.ContainsFunc(w.Sent, func(x toyWrite) bool { return x.From == c }) {
					to = append(to, Move{Kind: toySend, A: int32(i)})
				}
			}
			for i := range w.Sent {
				to = append(to, Move{Kind: toyArrive, A: int32(i)})
				if r.loses {
					to = append(to, Move{Kind: toyLose, A: int32(i), Fault: true})
				}
			}
			return to
		},
		Take: func(w *toy, m Move) { r.take(w, m) },
		Broken: func(w *toy) string {
			inside := 0
			for _, c := range w.Clients {
				if c.Until > w.Now {
					inside++
				}
			}
			if inside > 1 {
				return "one at a time"
			}
			return ""
		},
		Goal: func(w *toy) bool { return !slices.ContainsFunc(w.Clients, func(c *toyClient) bool { return c.Waits }) },
		Say: func(w *toy, m Move) string {
			return [...]string{"a second passes", "a client sends", "a write arrives", "a write is lost"}[m.Kind]
		},
		Show: func(w *toy) string {
			if w.Server.Holder == nil {
				return "free"
			}
			return "held"
		},
	}
}

func (r toyRules) take(w *toy, m Move) {
	s := &w.Server
	switch m.Kind {
	case toyTick:
		w.Now++
		if s.Holder != nil && w.Now >= s.Until && !r.sticky {
			s.Last++
			s.Holder, s.Revision = nil, s.Last
		}
	case toySend:
		c := w.Clients[m.A]
		c.Tries++
		w.Sent = append(w.Sent, toyWrite{c, c.Knows, w.Now})
	case toyArrive:
		x := w.Sent[m.A]
		w.Sent = slices.Delete(w.Sent, int(m.A), int(m.A)+1)
		if s.Holder != nil || s.Revision != x.Expect {
			x.From.Tries--
			x.From.Knows = s.Revision
			return
		}
		s.Last++
		s.Holder, s.Revision, s.Until = x.From, s.Last, w.Now+toyTTL
		x.From.Until = x.Sent + toyTTL
		if r.late {
			x.From.Until = w.Now + toyTTL + 1
		}
		x.From.Waits = false
	case toyLose:
		w.Sent = slices.Delete(w.Sent, int(m.A), int(m.A)+1)
	}
}

func TestExploreToTheEnd(t *testing.T) {
	res := Explore(toyRules{clients: 2, tries: 1}.model(), Limits{})
	require.Empty(t, res.Violated)
	require.Empty(t, res.Story)
	require.True(t, res.Exhausted)
	require.Equal(t, countByHand(toyRules{clients: 2, tries: 1}), res.States)
	again := Explore(toyRules{clients: 2, tries: 1}.model(), Limits{})
	require.Equal(t, []int{res.States, res.Transitions, res.Depth}, []int{again.States, again.Transitions, again.Depth})
}

// TestExploreKeepsWorlds: which worlds are kept, and which are made again, changes nothing.
func TestExploreKeepsWorlds(t *testing.T) {
	count := func(worlds int) []int {
		res := Explore(toyRules{clients: 3, tries: 1}.model(), Limits{Worlds: worlds})
		require.True(t, res.Exhausted, res.Violated)
		return []int{res.States, res.Transitions, res.Depth}
	}
	all := count(0)
	require.Greater(t, all[0], 5000, "the first thousand are made again anyway")
	for _, worlds := range []int{-1, 1, 100} {
		require.Equal(t, all, count(worlds))
	}
	require.Empty(t, Explore(toyRules{clients: 3, tries: 1}.model(), Limits{Recheck: 20}).Violated)
}

// countByHand counts the states of the toy with a form that is written for it, and without copies.
func countByHand(r toyRules) int {
	m := r.model()
	code := func(w *toy) string {
		revisions := []uint64{w.Server.Revision, w.Server.Last}
		for _, c := range w.Clients {
			revisions = append(revisions, c.Knows)
		}
		for _, x := range w.Sent {
			revisions = append(revisions, x.Expect)
		}
		slices.Sort(revisions)
		revisions = slices.Compact(append([]uint64{0}, revisions...))
		rank := func(v uint64) int { return slices.Index(revisions, v) }
		ago := func(at, horizon clock.Instant) string {
			if at == 0 {
				return "never"
			}
			return fmt.Sprint(min(w.Now-at, horizon+1))
		}
		holder := -1
		if w.Server.Holder != nil {
			holder = w.Server.Holder.ID
		}
		text := fmt.Sprint(holder, rank(w.Server.Revision), rank(w.Server.Last), ago(w.Server.Until, toyTTL+1))
		for _, c := range w.Clients {
			text += fmt.Sprint(" client ", ago(c.Until, 1), c.Waits, rank(c.Knows), c.Tries, c.In)
		}
		var sent []string
		for _, x := range w.Sent {
			sent = append(sent, fmt.Sprint(" write ", x.From.ID, rank(x.Expect), ago(x.Sent, toyTTL+1)))
		}
		slices.Sort(sent)
		return text + strings.Join(sent, "")
	}
	ways, met := [][]Move{nil}, map[string]bool{code(m.Init()): true}
	replay := func(way []Move) *toy {
		w := m.Init()
		for _, mv := range way {
			m.Take(w, mv)
		}
		return w
	}
	for ; len(ways) > 0; ways = ways[1:] {
		for _, mv := range m.Moves(replay(ways[0]), nil) {
			way := append(slices.Clone(ways[0]), mv)
			if c := code(replay(way)); !met[c] {
				met[c] = true
				ways = append(ways, way)
			}
		}
	}
	return len(met)
}

// counter is a world whose number of states can be counted by hand.
type counter struct{ A, B int }

func counting() Model[counter] {
	return Model[counter]{
		Name: "counter", Init: func() *counter { return new(counter) },
		Moves: func(w *counter, to []Move) []Move {
			if w.A < 9 {
				to = append(to, Move{Kind: 1})
			}
			if w.B < 4 {
				to = append(to, Move{Kind: 2})
			}
			return to
		},
		Take: func(w *counter, m Move) {
			if m.Kind == 1 {
				w.A++
			} else {
				w.B++
			}
		},
		Broken: func(*counter) string { return "" },
		Goal:   func(w *counter) bool { return w.A == 9 && w.B == 4 },
		Now:    func(*counter) clock.Instant { return 0 },
		Say:    func(*counter, Move) string { return "" }, Show: func(*counter) string { return "" },
	}
}

func TestExploreCounts(t *testing.T) {
	m := counting()
	res := Explore(m, Limits{})
	require.Equal(t, Result{Name: "counter", States: 50, Transitions: 9*5 + 10*4, Depth: 13, Exhausted: true, Took: res.Took}, res)

	moves := m.Moves
	m.Moves = func(w *counter, to []Move) []Move { // the last one is a fault
		for _, mv := range moves(w, nil) {
			mv.Fault = w.A == 8 && mv.Kind == 1
			to = append(to, mv)
		}
		return to
	}
	require.Equal(t, Stuck, Explore(m, Limits{}).Violated)
	m.Moves = moves

	limited := Explore(m, Limits{States: 20})
	require.False(t, limited.Exhausted)
	require.GreaterOrEqual(t, limited.States, 20)
	require.Less(t, limited.States, 25)

	m.Canon = func(w *counter) { w.B = 0 } // moves read it, so that the ways differ
	require.Panics(t, func() {
		m.Broken = func(w *counter) string {
			if w.A == 3 {
				return "three"
			}
			return ""
		}
		m.Take = func(w *counter, m Move) { w.A += 1 + w.B; w.B = 1 }
		Explore(m, Limits{})
	})
}

func TestExploreTellsTheShortestStory(t *testing.T) {
	res := Explore(toyRules{clients: 2, tries: 1, late: true}.model(), Limits{})
	require.Equal(t, "one at a time", res.Violated)
	require.False(t, res.Exhausted)
	for _, line := range res.Story {
		t.Log(line)
	}
	// One is inside for a second longer than its record lives: it sends, it arrives, three seconds, and the other one
	// learns the new revision and gets in.
	require.Len(t, res.Story, 9)
	require.Len(t, res.Moves, 9)
	require.Regexp(t, `^3ns +a client sends +\| free$`, res.Story[7])
	require.Empty(t, Explore(toyRules{clients: 2, tries: 1, late: true}.model(), Limits{Only: Stuck}).Violated)
}

func TestExploreFindsWhereNoGoalIsReached(t *testing.T) {
	res := Explore(toyRules{clients: 2, tries: 1, loses: true}.model(), Limits{})
	require.Equal(t, Stuck, res.Violated)
	require.True(t, res.Exhausted)
	require.Len(t, res.Story, 2, "the only try is lost")
	require.Contains(t, res.Story[1], "!a write is lost")

	res = Explore(toyRules{clients: 2, tries: 2, sticky: true}.model(), Limits{})
	require.Equal(t, Stuck, res.Violated)
	require.Empty(t, res.Story, "the first one keeps it, so that the other one is stuck from the beginning")
	require.Empty(t, Explore(toyRules{clients: 2, tries: 2, sticky: true}.model(), Limits{Only: "one at a time"}).Violated)
}

// TestExploreRechecks: a form that leaves out what matters is found.
func TestExploreRechecks(t *testing.T) {
	rules := toyRules{clients: 2, tries: 1}
	require.Empty(t, strings.Join(Explore(rules.model(), Limits{Recheck: 1}).Story, "\n"))
	for field, of := range map[string]any{"Until": toyServer{}, "Knows": toyClient{}} {
		m := rules.model()
		m.Form.Ignore(of, field, "a mistake")
		res := Explore(m, Limits{Recheck: 1})
		require.Equal(t, Alike, res.Violated, field)
		require.Contains(t, res.Story[len(res.Story)-1], "That is the state after\n")
		require.False(t, res.Exhausted)
		require.Empty(t, Explore(m, Limits{Only: "one at a time", Recheck: 1}).Violated, field)
	}
	m := rules.model()
	m.Form.Horizon(1)
	require.Equal(t, Alike, Explore(m, Limits{Recheck: 1}).Violated)

	for _, only := range []int{0, 1} { // one of the two worlds has another move
		one := counting()
		one.Goal, one.Form = nil, new(Form)
		one.Form.Ignore(counter{}, "B", "a mistake")
		one.Moves = func(w *counter, to []Move) []Move {
			if w.B == only && w.A == 0 {
				to = append(to, Move{Kind: 1})
			}
			return append(to, Move{Kind: 2})
		}
		require.Equal(t, Alike, Explore(one, Limits{Recheck: 1}).Violated)
	}

	two := counting() // what only an invariant reads, or a goal
	two.Form = new(Form)
	two.Form.Ignore(counter{}, "B", "no move reads it")
	two.Moves = func(w *counter, to []Move) []Move { return append(to, Move{Kind: 2}) }
	two.Goal = func(w *counter) bool { return w.B > 0 }
	require.Equal(t, Alike, Explore(two, Limits{Recheck: 1}).Violated)
	two.Goal = nil
	require.Empty(t, Explore(two, Limits{Recheck: 1}).Violated)
	two.Broken = func(w *counter) string {
		if w.B > 0 {
			return "none"
		}
		return ""
	}
	require.Equal(t, Alike, Explore(two, Limits{Recheck: 1}).Violated)
}

func TestExplorePanics(t *testing.T) {
	m := toyRules{clients: 1, tries: 1}.model()
	take := m.Take
	m.Take = func(w *toy, mv Move) {
		if mv.Kind == toyArrive && w.Now > 101 {
			panic("late")
		}
		take(w, mv)
	}
	res := Explore(m, Limits{})
	require.Equal(t, "no panic: late", res.Violated)
	require.Len(t, res.Story, 4)
	require.Equal(t, uint8(toyArrive), res.Moves[3].Kind)

	calls := 0
	m.Take = func(w *toy, mv Move) { take(w, mv); calls++; w.Clients[0].In = calls }
	require.PanicsWithValue(t, "explore: toy: {Kind:0 Fault:false A:0 B:0 C:0} does not do again what it did: it depends on more than the world", func() { Explore(m, Limits{}) })

	m = toyRules{clients: 1, tries: 1}.model()
	moves := m.Moves
	m.Moves = func(w *toy, to []Move) []Move { w.Clients[0].In++; return moves(w, to) }
	require.PanicsWithValue(t, "explore: toy: a function that only reads changes the world, or a copy shares something", func() { Explore(m, Limits{}) })
}

func BenchmarkExplore(b *testing.B) {
	for b.Loop() {
		res := Explore(toyRules{clients: 3, tries: 2, loses: true}.model(), Limits{Only: "one at a time"})
		b.ReportMetric(float64(res.Transitions)/res.Took.Seconds(), "transitions/s")
		b.ReportMetric(float64(res.States), "states")
	}
}
