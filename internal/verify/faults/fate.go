package faults

import (
	"math/rand/v2"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// FateKind is the kind of a [Fate].
type FateKind uint8

// The kinds of fate. See the values and functions of the same names.
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

// Fate is what becomes of one write. The zero value is [Pass].
type Fate struct {
	Kind FateKind
	// After is how long a delay is, not negative.
	After time.Duration
	// Err is the error of a refusal.
	Err error
	// Mute drops the answer as well, of a delayed or held write.
	Mute bool
}

// The fates that need no argument. To the caller of Send, all but Pass look
// like a write without an answer.
var (
	// Pass: nothing happens to the write.
	Pass = Fate{Kind: KindPass}
	// Drop: the write never reaches the server.
	Drop = Fate{Kind: KindDrop}
	// LoseAnswer: the write reaches the server, which applies or refuses it,
	// and the answer is lost.
	LoseAnswer = Fate{Kind: KindLoseAnswer}
	// Hold: the write is kept until [Store.ReleaseHeld] or
	// [HeldWrite.Release]; its answer passes then.
	Hold = Fate{Kind: KindHold}
	// ByRates: [Store.Random] decides. A rule returns it for the writes it
	// does not care about; without rates it is Pass.
	ByRates = Fate{Kind: KindByRates}
)

// Delay has the write reach the server after d; the answer passes then. The
// caller's forget drops the answer but does not stop the write, as in life.
func Delay(d time.Duration) Fate { return Fate{Kind: KindDelay, After: d} }

// DelayAnswer has the write reach the server at once and its answer arrive d
// after it was given.
func DelayAnswer(d time.Duration) Fate { return Fate{Kind: KindDelayAnswer, After: d} }

// Refuse answers the write with err, which must not be nil, without its
// reaching the server: kvstore.ErrInFlight, for one.
func Refuse(err error) Fate { return Fate{Kind: KindRefuse, Err: err} }

// NotSent makes Send itself return err, which must not be nil. Nothing is sent.
func NotSent(err error) Fate { return Fate{Kind: KindNotSent, Err: err} }

// Silent returns the fate with the answer lost as well: Delay(d).Silent() is a
// publish that timed out and is applied nevertheless. It changes delayed and
// held writes; the answers of the others are settled by their kind.
func (f Fate) Silent() Fate {
	f.Mute = true
	return f
}

// Rates are the probabilities, 0 to 1, of what [Store.Random] makes happen.
// Those about writes exclude each other; their sum must not exceed 1, and what
// is missing to 1 passes.
type Rates struct {
	Drop        float64
	LoseAnswer  float64
	Delay       float64 // half of the delayed writes lose their answers, too
	DelayAnswer float64
	Refuse      float64 // with kvstore.ErrInFlight
	NotSent     float64 // with kvstore.ErrUnavailable

	// MaxDelay bounds the delays, which are uniform between 0 and it. Default
	// one second.
	MaxDelay time.Duration

	// DropEvent is the probability that a Put or Deleted event is lost.
	DropEvent float64
}

// Counts says how often each fault has happened. A fault is counted when it
// takes effect: a lost answer when there was one to lose, a delayed write when
// its time has come.
type Counts struct {
	Sends          int // all calls of Send
	Passed         int // without a fault
	Dropped        int
	AnswersLost    int // of [LoseAnswer], and of silent delayed and held writes
	Delayed        int
	AnswersDelayed int
	Refused        int
	Held           int // ever, those released later included
	Released       int
	NotSent        int
	EventsDropped  int
	EventsForged   int // deliveries, so one per watch
	ReadsFailed    int // those that hung included
}

// Faults returns the sum of all faults: 0 means that a test about faults has
// tested nothing.
func (c Counts) Faults() int {
	return c.Dropped + c.AnswersLost + c.Delayed + c.AnswersDelayed + c.Refused + c.Held +
		c.NotSent + c.EventsDropped + c.EventsForged + c.ReadsFailed
}

// Fate draws the fate of the n-th write. Every write has a generator of its own,
// so that it does not matter who else draws, or in which order. A rule that wants
// to know what it makes happen returns it instead of [ByRates].
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
