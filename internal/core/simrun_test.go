package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// play runs some steps.
func play(c choices, steps int, tell bool) (s *sim, digest uint64) {
	s, sum := newSim(c, 3, tell)
	for range steps {
		if s.step(); s.wrong != "" {
			break
		}
	}
	made := s.made
	if s.wrong == "" {
		s.calm()
	}
	s.made = made
	return s, sum.Sum64()
}

func seeded(seed uint64) choices { return choices{drawn: rand.New(rand.NewPCG(seed, 1))} }

// shrink returns fewer choices that go wrong in the same way.
func shrink(made []uint32, wrong string, steps int) []uint32 {
	fails := func(made []uint32) bool {
		s, _ := play(choices{made: made, given: true}, steps, false)
		return kindOf(s.wrong) == kindOf(wrong)
	}
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

// scripts are the calls of the claims that were granted last, as the body of a table test.
func (s *sim) scripts() string {
	var b strings.Builder
	for _, c := range s.clients {
		if id := s.granted[c.id]; id != "" {
			fmt.Fprintf(&b, "\n\n// client %s\nvar c Claim\nc.Begin(%q)\n%s", c.id, id, strings.Join(s.script[id], "\n"))
		}
	}
	return b.String()
}

// stored is a record as the scripts name it.
func stored(revision uint64, id string, attempt int, status record.Status) record.Entry {
	e := record.Entry{}
	e.Revision, e.ID, e.Attempt, e.Status = revision, id, attempt, status
	return e
}

// TestOfScripts has tests as the simulator prints them: found with the line taken out that they are
// about, and shrunk.
func TestOfScripts(t *testing.T) {
	t.Parallel()
	terms := clock.Terms{TTL: 6 * time.Second, Margin: time.Second}
	t.Run("a late answer", func(t *testing.T) {
		var c Claim
		c.Begin("a101")
		c.Send(Attempt{Expect: 0, Terms: terms, Sent: 1})
		c.Answered(Reply{N: 1, Answer: Answer{Refusal: 0, Revision: 102, Last: 0}, At: 5514000001}, true)
		r, _ := c.Next()
		require.Equal(t, Verdict{Outcome: Lost, Delete: 102}, c.Judge(r, 1, 5514000001))
	})
	t.Run("an own record that an operator has broken", func(t *testing.T) {
		var c Claim
		c.Begin("c118")
		c.Send(Attempt{Expect: 0, Terms: terms, Sent: 1})
		c.Send(Attempt{Expect: 0, Terms: terms, Sent: 701000001})
		c.Answered(Reply{N: 2, Answer: Answer{Refusal: 1, Revision: 0, Last: 120}, At: 702000001}, true)
		require.Equal(t, Verdict{Outcome: Lost, Delete: 120}, c.Found(stored(120, "c118", 1, record.StatusBroken), 702000001))
	})
	t.Run("a late renewal", func(t *testing.T) { // of what was sent at 1623000001
		v := ValidFrom(1, terms)
		require.False(t, v.InTime(5205000001))
	})
	t.Run("an attempt that counts from its own sending", func(t *testing.T) {
		var c Claim
		c.Begin("b147")
		c.Send(Attempt{Expect: 0, Terms: terms, Sent: 9992000001})
		c.Send(Attempt{Expect: 0, Terms: terms, Sent: 12809000001})
		c.Answered(Reply{N: 2, Answer: Answer{Refusal: 1, Revision: 0, Last: 149}, At: 12809000001}, true)
		require.Equal(t, Verdict{Outcome: Granted, N: 1, Revision: 149}, c.Found(stored(149, "b147", 1, record.StatusHeld), 12809000001))
	})
}

// kindOf is a finding without its names and numbers.
func kindOf(wrong string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, strings.NewReplacer("a ", "", "b ", "", "c ", "").Replace(wrong))
}

// TestSim: whatever the network does, and whenever goroutines ask, give up and leave, one client
// is inside, in a lease that is valid. When the network is calm again, nobody waits for ever. A run
// that goes wrong is shrunk to its fewest events, and its claims are printed as a test.
func TestSim(t *testing.T) {
	t.Parallel()
	const seeds, steps = 1500, 700
	grants := 0
	for seed := range uint64(seeds) {
		s, _ := play(seeded(seed), steps, false)
		if grants += s.grants; s.wrong == "" {
			continue
		}
		fewest := shrink(s.made, s.wrong, steps)
		told, _ := play(choices{made: fewest, given: true}, steps, true)
		t.Fatalf("seed %d, in %d choices: %v\n%s", seed, len(fewest), fewest, strings.Join(told.story, "\n")+told.scripts())
	}
	t.Logf("%d steps, %d grants", seeds*steps, grants)
	require.Greater(t, grants, 10*seeds)
}

// TestSimReplays: a seed is the run, bit for bit.
func TestSimReplays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		s, first := play(seeded(seed), 600, false)
		for range 100 {
			_, again := play(seeded(seed), 600, false)
			require.Equal(t, first, again)
		}
		_, given := play(choices{made: s.made, given: true}, 600, false)
		require.Equal(t, first, given, "the choices of the seed")
	}
}
