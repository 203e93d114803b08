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

// Nap makes the machine's clocks show the time after a suspend of d.
func Nap(d time.Duration) { naps.Add(int64(d)) }

// NapUnseen is a Nap after which the wall clock was set back by as much.
func NapUnseen(d time.Duration) { unseen.Add(int64(d)) }

// Suspended is how long the machine has been suspended.
func Suspended() time.Duration { return time.Duration(suspended()) }
