package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/verify/explore"
)

// Choices decide what happens in a run: drawn from a seed, or given. After the given ones each is 0.
type Choices struct {
	Made  []uint32
	drawn *rand.Rand
	i     int
}

// Seeded draws the choices of a seed.
func Seeded(seed uint64) *Choices { return &Choices{drawn: rand.New(rand.NewPCG(seed, 1))} }

func (c *Choices) of(n int) int {
	if c.drawn != nil {
		c.Made = append(c.Made, c.drawn.Uint32())
	}
	var v uint32
	if c.i < len(c.Made) {
		v = c.Made[c.i]
	}
	c.i++
	return int(v % uint32(n))
}

// Run is what has come of choices.
type Run struct {
	World  *World
	Moves  []explore.Move
	Story  []string // if it is told
	Digest uint64
	tell   bool
}

// Play plays a scope for some steps, as choices decide. Then it lets everything go its way: what is sent
// arrives, goroutines inside leave, and in the end nobody waits.
func Play(s Scope, c *Choices, steps int, tell bool) *Run {
	r := &Run{World: New(s), tell: tell}
	for range steps {
		if r.World.Wrong != "" {
			return r
		}
		r.step(c)
	}
	r.calm()
	return r
}

func (r *Run) take(kind uint8, a, b int) {
	m, w := explore.Move{Kind: kind, A: int32(a), B: int32(b)}, r.World
	words := ""
	if r.tell {
		words = Say(w, m)
	}
	Take(w, m)
	r.Moves = append(r.Moves, m)
	for _, v := range [...]uint64{uint64(kind), uint64(a), uint64(b), uint64(w.Now), w.Server.Seq, uint64(len(w.Net)), uint64(w.Grants)} {
		r.Digest = (r.Digest ^ v) * 1099511628211
	}
	if r.tell {
		r.Story = append(r.Story, fmt.Sprintf("%-9v %-80s | %s", time.Duration(w.Now)-100*time.Second, words, Show(w)))
	}
}

// step does one thing: mostly it delivers what has been on its way for longest.
func (r *Run) step(c *Choices) {
	w := r.World
	k := c.of(32)
	n := len(w.Net)
	x := c.of(len(w.Clients))
	client := w.Clients[x]
	switch {
	case k < 17:
		if n > 0 && w.Deposed && w.Net[0].From != fromNobody && w.Net[0].To == toServer && c.of(3) == 0 {
			r.take(mvDeposed, 0, 0)
		} else if n > 0 {
			r.take(mvDeliver, 0, 0)
		}
	case k < 21:
		if n > 0 {
			r.take(mvDeliver, c.of(n), 0)
		}
	case k < 23:
		if n > 0 {
			r.take(pick(k == 21, mvLose, mvRepeat), c.of(n), 0)
		}
	case k < 27:
		r.acts(c, x)
	case k == 27:
		r.trouble(c, x)
	case k == 28:
		if !client.Crashed {
			r.take(pick(client.Paused, mvResume, mvPause), x, 0)
		}
	case k == 29:
		if client.Paused {
			r.take(mvResume, x, 0)
		}
	case k == 30:
		r.take(mvPass, 1+c.of(900), 0)
	default:
		r.take(mvPass, 1+c.of(3000), 0)
	}
}

// acts has a goroutine of client x ask, give up, or leave.
func (r *Run) acts(c *Choices, x int) {
	client := r.World.Clients[x]
	if client.Crashed || client.Paused {
		return
	}
	if i := c.of(r.World.Scope.Most); i < len(client.Calls) {
		switch {
		case client.Calls[i].Entered && c.of(8) == 0:
			r.take(mvExtend, x, i)
		case client.Calls[i].Entered && c.of(8) == 0 && client.Calls[i].hands(r.World):
			r.take(mvHandOff, x, i)
		case client.Calls[i].Entered:
			r.take(mvUnlock, x, i)
		case c.of(4) == 0:
			r.take(mvGiveUp, x, i)
		}
		return
	}
	how := c.of(6)/4*asksLingering + c.of(2)*asksReading
	switch records := r.World.Server.Records; c.of(8) {
	case 0:
		how |= asksOnce
	case 1:
		how |= asksHolding
	case 2:
		if i := slices.IndexFunc(records, func(s stored) bool { return s.Key == gateKey && s.live() && s.holds() }); i >= 0 {
			r.take(mvAdopt, i, x)
			return
		}
	}
	r.take(mvAsk, x, how)
}

// trouble is what goes wrong now and then.
func (r *Run) trouble(c *Choices, x int) {
	w, who := r.World, r.World.Clients[x]
	records := w.Server.Records
	switch k := c.of(12); {
	case k < 6 && len(records) > 0:
		i := c.of(len(records))
		if s := &records[i]; s.live() && s.holds() {
			r.take(mvBreak, i, 0)
		}
	case k == 6 && len(records) > 0:
		if i := c.of(len(records)); records[i].live() {
			r.take(mvForget, i, 0)
		}
	case who.Crashed:
	case k < 9:
		if w.Scope.Several {
			r.take(pick(who.Lags, mvCatchUp, mvLag), x, 0)
		}
	case k == 9:
		if live := slices.DeleteFunc(slices.Clone(w.Clients), func(c *client) bool { return c.Crashed }); len(live) > 2 {
			r.take(mvCrash, x, 0)
		}
	case k == 10 && w.Scope.Several:
		r.take(mvCut, 0, 0)
	}
}

// calm lets everything go its way.
func (r *Run) calm() {
	w := r.World
	for x, c := range w.Clients {
		if !c.Crashed {
			r.take(mvCatchUp, x, 0)
			r.take(mvResume, x, 0)
		}
	}
	waits := true
	for i := 0; waits && i < 6000 && w.Wrong == ""; i++ {
		if len(w.Net) > 0 {
			r.take(mvDeliver, 0, 0)
		} else {
			r.take(mvPass, 100, 0)
		}
		waits = false
		for x, c := range w.Clients {
			for j := len(c.Calls) - 1; j >= 0 && w.Wrong == ""; j-- {
				if j < len(c.Calls) && c.Calls[j].Entered {
					r.take(mvUnlock, x, j)
				}
			}
			waits = waits || len(c.Calls) > 0
		}
	}
	if waits {
		w.fail("somebody waits for ever")
	}
}

// Shrink returns fewer choices that go wrong in the same way.
func Shrink(s Scope, made []uint32, wrong string, steps int) []uint32 {
	fails := func(made []uint32) bool { return Play(s, &Choices{Made: made}, steps, false).World.Wrong == wrong }
	for size := len(made) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(made); {
			if fewer := slices.Delete(slices.Clone(made), i, i+size); fails(fewer) {
				made = fewer
			} else {
				i += size
			}
		}
	}
	for i := range made {
		if was := made[i]; was != 0 {
			if made[i] = 0; !fails(made) {
				made[i] = was
			}
		}
	}
	return made
}

// Script is the moves as Go code, for [Replay].
func Script(moves []explore.Move) string {
	var b strings.Builder
	for _, m := range moves {
		fmt.Fprintf(&b, "{Kind: %d, Fault: %t, A: %d, B: %d},\n", m.Kind, m.Fault, m.A, m.B)
	}
	return b.String()
}

// Replay makes moves, and returns the world after them.
func Replay(s Scope, moves []explore.Move) *World {
	w := New(s)
	for _, m := range moves {
		if w.Wrong == "" {
			Take(w, m)
		}
	}
	return w
}
