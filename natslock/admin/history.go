package admin

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// History yields, in order, the events since the given time that the bucket's history has kept
// for the locks whose names match pattern (see [Admin.List]). If since is zero, it starts with
// the first event. "lockctl init --history" creates the history.
//
// The events are those of [Admin.Watch], but their times are when the server copied the writes
// into the history, shortly after the writes. The end of a hold does not name the holder if the
// holder got the lock more than an hour before since and did not renew it in that hour.
//
// A history can be incomplete. History yields an [EventGap] wherever writes are missing: before
// the history begins, where the server could not copy a write in time, and where the history
// lags behind the bucket. An EventGap without a name counts the writes of all locks. An
// EventGap with a name counts that lock's missing grants and ends, as its own records show. A
// hold that ends in a gap may lack its end or appear as expired, and a hold inside a gap may
// have left no trace.
//
// The sequence ends with the last event kept at the time of the call, or with an error that
// matches kvstore.ErrNoHistory for a bucket without a history, [natslock.ErrInvalid],
// [natslock.ErrUnavailable], [natslock.ErrPermission], [natslock.ErrClosed] or ctx's error.
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
