package admin

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// History yields the events of all locks whose names match pattern (see [Admin.List]) that the
// history of the bucket has kept, in their order, from since on. A zero since begins with the
// first one. "lockctl init --history" makes the history.
//
// It yields the events of [Admin.Watch], with the times at which the server copied the writes
// into the history, a moment after the writes. The end of a holder has no name if the holder
// got the lock more than an hour before since and has not renewed it in that hour.
//
// A history is not complete. It yields an [EventGap] wherever writes are missing: before the
// history begins, where the server could not copy a write in time, and where the history is
// behind the bucket. An EventGap without a name counts the writes of all locks, and one with a
// name a missing grant or end of that lock, as the lock's own records show. The end of a holder
// in a gap may be missing or show as expired, and a hold in a gap may have left nothing.
//
// The sequence ends with the events at the time of the call, or with an error, which matches
// kvstore.ErrNoHistory for a bucket without a history, [natslock.ErrInvalid],
// [natslock.ErrUnavailable], [natslock.ErrPermission], [natslock.ErrClosed] or ctx's.
func (a *Admin) History(ctx context.Context, pattern string, since time.Time) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		in, err := inside(ctx, a.client())
		if err != nil {
			yield(Event{}, fmt.Errorf("history of locks %.512q: %w", pattern, err))
			return
		}
		for ch, err := range in.History(ctx, pattern, since) {
			if err != nil {
				yield(Event{}, fmt.Errorf("history of locks %.512q: %w", pattern, public(err)))
				return
			}
			if !yield(changed(ch), nil) {
				return
			}
		}
	}
}
