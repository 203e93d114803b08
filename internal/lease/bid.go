package lease

import (
	"context"
	"errors"
	"time"

	"github.com/natslock/locks/kvstore"
)

// bid repeats attempts, under new claims where one is spoilt, until something
// decides.
type bid struct {
	e     *Engine
	ctx   context.Context
	once  bool // an unavailable server is an answer
	blind bool // what has refused an attempt is not read
	of    bidder
	cur   *claim
}

// bidder makes the claims of a bid.
type bidder interface{ newClaim() *claim }

// bidderFunc makes them by a function.
type bidderFunc func() *claim

func (f bidderFunc) newClaim() *claim { return f() }

// noStreamFor is how long a stream without a leader is put up with, electing
// one having been measured to take 4 to 9 s. Silence and a connection that is
// down are waited out: they pass, or the wait's context ends.
const noStreamFor = 15 * time.Second

// take bids for the key at the expected revision. It returns granted, free
// with a tombstone, busy, unread, failed or ended.
func (b *bid) take(expect uint64) verdict {
	begun := b.e.now()
	// An outage is backed off from by the tries in a row that were not answered: when
	// it is over, attempts from before it may turn up and be spoilt.
	silent, spoils, flights := 0, 0, 0
	for try := 0; ; try++ {
		up := b.e.online()
		if b.cur == nil {
			b.cur = b.of.newClaim()
		}
		v := b.cur.try(b.ctx, expect, b.blind)
		var pause time.Duration
		switch v.outcome {
		case free:
			if v.entry.Revision != 0 {
				return v
			}
			expect = 0 // the tombstone has expired
			if try < 3 {
				continue
			}
			pause = shortPause(try)
		case spoilt:
			b.close()
			silent = 0
			if spoils++; spoils <= 3 {
				continue
			}
			pause = outagePause(spoils)
		case again:
			if b.cur.guard != "" && !errors.Is(v.err, kvstore.ErrInFlight) {
				b.close() // a join without an answer is repeated under a new id
			}
			switch {
			case isAny(v.err, ErrPermission), b.once && !errors.Is(v.err, kvstore.ErrInFlight),
				errors.Is(v.err, kvstore.ErrNoStream) && b.e.now().Sub(begun) > noStreamFor:
				return verdict{outcome: failed, err: v.err}
			case errors.Is(v.err, kvstore.ErrInFlight):
				pause = inFlightPause(flights)
				flights++
			default:
				pause = outagePause(silent)
				silent++
			}
		default:
			return v
		}
		if err := b.pause(pause, up); err != nil {
			return verdict{outcome: ended, err: err}
		}
	}
}

// pause waits for d or a connection that has come back (up is [Engine.online] from
// before what failed), the end of the wait, or of the engine.
func (b *bid) pause(d time.Duration, up <-chan struct{}) error {
	if b.ctx.Err() != nil { // whatever else is due
		return context.Cause(b.ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-up:
		return nil
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	case <-b.e.life.Done():
		return context.Cause(b.e.life)
	}
}

// close gives up what is not granted.
func (b *bid) close() {
	if b.cur != nil {
		b.cur.close(0)
		b.cur = nil
	}
}
