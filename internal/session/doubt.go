package session

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// doubt is what the client suspects of a record. Under kept.mu.
type doubt struct {
	resolving bool   // a read is to decide
	suspected uint64 // the highest revision that a hint has named
	breaker   string // the break that a hint has named: the cause of a loss, once that is proven
}

// suspect acts on a hint that the record has changed. A hint may be forged, so only a
// refused renewal ends a record that is renewed. Any other record ends by a read at
// least as new as the revision of the hint. Under mu.
func (k *kept) suspect(revision uint64) {
	if k.renews() {
		// A flood of forged hints is answered slowly.
		k.renewNow(max(k.s.b.Instant(), k.renewals.asked.Add(minRetry/2)))
		return
	}
	k.doubt.suspected = max(k.doubt.suspected, revision)
	if k.state == Held && !k.doubt.resolving {
		k.doubt.resolving = true
		k.s.Background(func(ctx context.Context) { k.resolve(ctx, revision, false) })
	}
}

// resolve reads the record after a refusal or a hint that named revision and
// judges by it.
func (k *kept) resolve(ctx context.Context, revision uint64, proven bool) {
	b := k.s.b
	for try := 0; ; try++ {
		_, left, cause := k.Status()
		if cause != nil {
			return
		}
		rctx, cancel := context.WithTimeout(ctx, min(left, time.Second<<min(try, 3)))
		at := revision
		if !proven && !b.Alone() {
			// The subscription of a lease that is not renewed has no other proof, where
			// any replica may answer a read. Without an answer the read has to do.
			last, _ := b.Probe(rctx, k.Key)
			at = max(at, last)
		}
		entry, err := b.Read(rctx, k.Key, at)
		cancel()
		if err == nil {
			k.judge(entry, revision)
			return
		}
		if !proven && try >= 3 || ctx.Err() != nil {
			k.trust()
			return
		}
		if clock.Sleep(ctx, clock.ShortBackoff(try)) != nil {
			return
		}
	}
}

// trust ends a doubt that no read has decided.
func (k *kept) trust() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doubt.resolving, k.doubt.suspected = false, 0
	k.moved()
}

// judge decides by the record under the key, read as of a state that contains
// revision.
func (k *kept) judge(entry record.Entry, revision uint64) {
	k.mu.Lock()
	d, r := &k.doubt, &k.renewals
	d.resolving = false
	var lost ending
	var late lateConfirmation
	found, current := core.Find(entry, k.Body.ID, k.Body.Status, k.last, r.n)
	switch {
	case k.state != Held:
	case found == core.AsKnown:
		k.moved() // as it should be
		hint := d.suspected
		d.suspected = 0
		if hint > revision {
			k.suspect(hint) // it came during the read
		} else {
			d.breaker = "" // the record is not broken, whatever a hint said
		}
	case found == core.Confirms:
		late = k.confirmed(entry.Renewal, entry.Revision, k.s.b.Instant()) //safety:found-sending
		if late.k == nil {
			if entry.Renewal < r.need { // the refused one was asked for
				k.renewAgain(k.s.b.Instant())
			}
			k.moved()
		}
	case found == core.FoundBroken:
		k.last = entry.Revision // its release deletes the broken record
		lost = k.lose(ErrBroken, entry.BrokenBecause())
	case found == core.FoundEarlier:
		late = lateConfirmation{k.lose(ErrLost, "its record is gone"), k, entry.Revision}
	case found == core.FoundReplaced:
		lost = k.lose(ErrLost, fmt.Sprintf("its record was replaced at revision %d", entry.Revision)) //safety:found-replaced
	default:
		lost = k.lose(ErrLost, "its record was deleted") //safety:found-deleted
	}
	k.mu.Unlock()
	if !current {
		k.s.doubtBucket() //safety:bucket-doubted
	}
	lost.finish()
	late.finish()
}
