package clock

import (
	"sync/atomic"
	"time"
)

var naps, unseen atomic.Int64

func init() {
	read := suspendedFor
	suspendedFor = func() int64 { return read() + naps.Load() + unseen.Load() }
	wallClock = func(t time.Time) int64 { return t.UnixNano() + naps.Load() }
}

// Nap advances the machine's clocks as if the machine had been suspended for d.
func Nap(d time.Duration) { naps.Add(int64(d)) }

// NapUnseen is like Nap, but the wall clock is then set back by d.
func NapUnseen(d time.Duration) { unseen.Add(int64(d)) }

// Suspended returns how long the machine has been suspended.
func Suspended() time.Duration { return time.Duration(suspended()) }
