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
	e    *Engine
	ctx  context.Context
	once bool // an unavailable server is an answer
	of   bidder
	cur  *claim
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
// with a tombstone, busy, failed or ended.
func (b *bid) take(expect uint64) verdict {
	begun := b.e.now()
	for try := 0; ; try++ {
		if b.cur == nil {
			b.cur = b.of.newClaim()
		}
		v := b.cur.try(b.ctx, expect)
		switch v.outcome {
		case free:
			if v.entry.Revision != 0 {
				return v
			}
			expect = 0 // the tombstone has expired
			if try < 3 {
				continue
			}
		case spoilt:
			b.close()
			if try < 3 {
				continue
			}
		case again:
			if b.cur.guard != "" && !errors.Is(v.err, kvstore.ErrInFlight) {
				b.close() // a join without an answer is repeated under a new id
			}
			switch {
			case isAny(v.err, ErrPermission), b.once && !errors.Is(v.err, kvstore.ErrInFlight),
				errors.Is(v.err, kvstore.ErrNoStream) && b.e.now().Sub(begun) > noStreamFor:
				return verdict{outcome: failed, err: v.err}
			}
		default:
			return v
		}
		pause := outagePause(try)
		if v.outcome == free || errors.Is(v.err, kvstore.ErrInFlight) {
			pause = inFlightPause(try)
		}
		if err := b.pause(pause); err != nil {
			return verdict{outcome: ended, err: err}
		}
	}
}

// pause waits for d or a connection that comes back, the end of the wait, or of
// the engine.
func (b *bid) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-b.e.online():
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
