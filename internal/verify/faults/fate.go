package faults

import (
	"math/rand/v2"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// FateKind is the kind of a [Fate].
type FateKind uint8

// The kinds of fate. See the variables and functions of the same names.
const (
	KindPass FateKind = iota
	KindDrop
	KindLoseAnswer
	KindDelay
	KindDelayAnswer
	KindRefuse
	KindHold
	KindNotSent
	KindByRates
)

// Fate is what happens to a single write. The zero value is [Pass].
type Fate struct {
	Kind FateKind
	// After is the length of a delay. It must not be negative.
	After time.Duration
	// Err is the error with which a write is refused.
	Err error
	// Mute drops the answer to a delayed or held write as well.
	Mute bool
}

// The fates without arguments. To the caller of Send, every fate but Pass looks like a write
// without an answer.
var (
	// Pass lets the write through unharmed.
	Pass = Fate{Kind: KindPass}
	// Drop keeps the write from ever reaching the server.
	Drop = Fate{Kind: KindDrop}
	// LoseAnswer lets the write reach the server, which applies or refuses it, but loses the
	// answer.
	LoseAnswer = Fate{Kind: KindLoseAnswer}
	// Hold holds the write back until [Store.ReleaseHeld] or [HeldWrite.Release]. Its answer then
	// passes.
	Hold = Fate{Kind: KindHold}
	// ByRates leaves the decision to [Store.Random]. A rule returns it for writes that the rule
	// does not care about. Without rates, ByRates is the same as Pass.
	ByRates = Fate{Kind: KindByRates}
)

// Delay makes the write reach the server after d, and then lets its answer pass. As in reality,
// the caller's forget drops the answer but does not stop the write.
func Delay(d time.Duration) Fate { return Fate{Kind: KindDelay, After: d} }

// DelayAnswer makes the write reach the server immediately, but delays its answer by d.
func DelayAnswer(d time.Duration) Fate { return Fate{Kind: KindDelayAnswer, After: d} }

// Refuse answers the write with err, for example kvstore.ErrInFlight, without sending it to the
// server. err must not be nil.
func Refuse(err error) Fate { return Fate{Kind: KindRefuse, Err: err} }

// NotSent makes Send itself return err, which must not be nil. Nothing is sent.
func NotSent(err error) Fate { return Fate{Kind: KindNotSent, Err: err} }

// Silent returns the same fate with the answer lost. For example, Delay(d).Silent() is a
// publish that times out but is still applied. It affects only delayed and held writes, because
// the other kinds already decide what happens to the answer.
func (f Fate) Silent() Fate {
	f.Mute = true
	return f
}

// Rates are the probabilities, from 0 to 1, of the faults that [Store.Random] injects. A write
// suffers at most one of the faults for writes, so their sum must not exceed 1. The remaining
// writes pass.
type Rates struct {
	Drop        float64
	LoseAnswer  float64
	Delay       float64 // half of the delayed writes also lose their answers
	DelayAnswer float64
	Refuse      float64 // with kvstore.ErrInFlight
	NotSent     float64 // with kvstore.ErrUnavailable

	// MaxDelay limits the delays, which are distributed uniformly from 0. The default is one
	// second.
	MaxDelay time.Duration

	// DropEvent is the probability that a Put or Deleted event is lost.
	DropEvent float64
}

// Counts counts the faults of each kind. A fault is counted when it takes effect: a lost answer
// once there is an answer to lose, and a delayed write once the delay is over.
type Counts struct {
	Sends          int // all calls to Send
	Passed         int // without a fault
	Dropped        int
	AnswersLost    int // by [LoseAnswer], and by silent delayed and held writes
	Delayed        int
	AnswersDelayed int
	Refused        int
	Held           int // in total, including those released later
	Released       int
	NotSent        int
	EventsDropped  int
	EventsForged   int // deliveries, so one for each watch
	ReadsFailed    int // including those that hung
}

// Faults returns the sum of all faults. If the sum is 0, a test of faults has tested nothing.
func (c Counts) Faults() int {
	return c.Dropped + c.AnswersLost + c.Delayed + c.AnswersDelayed + c.Refused + c.Held +
		c.NotSent + c.EventsDropped + c.EventsForged + c.ReadsFailed
}

// Fate draws the fate of the n-th write. Each write has its own generator, so its fate depends
// neither on other draws nor on their order. A rule that needs to know its write's fate
// returns Fate's result instead of [ByRates].
func (r Rates) Fate(seed uint64, n int) Fate {
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))
	p, d := rnd.Float64(), time.Duration(rnd.Float64()*float64(r.MaxDelay))
	silent := rnd.IntN(2) == 0
	for _, c := range []struct {
		rate float64
		fate Fate
	}{
		{r.Drop, Drop},
		{r.LoseAnswer, LoseAnswer},
		{r.Delay, Fate{Kind: KindDelay, After: d, Mute: silent}},
		{r.DelayAnswer, DelayAnswer(d)},
		{r.Refuse, Refuse(kvstore.ErrInFlight)},
		{r.NotSent, NotSent(kvstore.ErrUnavailable)},
	} {
		if p < c.rate {
			return c.fate
		}
		p -= c.rate
	}
	return Pass
}
