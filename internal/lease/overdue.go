package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/natslock/locks/kvstore"
)

// A server removes a record when its TTL is over, but it may be late under load,
// and after some restarts it forgets the TTLs of what it has stored. So nobody
// waits for the removal alone. A record is overdue when a server's clock has
// passed the record's own time, its TTL and a slack. An overdue record has no
// holder: the belief in it ended a margin before its TTL did, and a renewal since
// then has made another revision.
//
// Three lines keep that safe:
//
//   - The record was read. A notification can be forged, so its times prove nothing.
//   - The time is a server's. The local clock only says when to ask for it.
//   - The write that replaces the record expects exactly the revision that was
//     judged. A renewal, or another claim, makes the server refuse it.

// overdueSlack is how far apart the clocks of two servers may be: one has stamped
// the record, another one tells the time.
const overdueSlack = 300 * time.Millisecond

// overdue says whether the entry, which was read, has no holder any more at a time
// of the server's clock. A record without a TTL never ends, and one that cannot be
// read belongs to an unknown holder.
func (e Entry) overdue(server time.Time) bool {
	return e.Live() && !e.Unreadable && e.Record.TTL > 0 && !server.Before(e.Time.Add(e.Record.TTL+overdueSlack))
}

// askOverdue says whether a server's clock shows that the entry, which was read, is
// overdue. It asks for the time only where the estimate of that clock says so.
func (e *Engine) askOverdue(ctx context.Context, entry Entry) (bool, error) {
	if !entry.overdue(e.kv.Now()) {
		return false, nil
	}
	ctx, cancel := answerIn(ctx, answerTimeout)
	defer cancel()
	st, err := e.kv.State(ctx, "")
	return err == nil && entry.overdue(st.Time), err
}

// overdue is askOverdue for a waiter, which asks again.
func (e *Engine) overdue(ctx context.Context, entry Entry) bool {
	overdue, _ := e.askOverdue(ctx, entry)
	return overdue
}

// clear deletes the overdue ones among entries, each at exactly its revision, and
// returns the others. An entry whose deletion was refused or not answered is
// among them, unless a read shows that another client has deleted the record.
func (e *Engine) clear(ctx context.Context, entries []Entry) (rest []Entry, err error) {
	estimate := e.kv.Now()
	if !slices.ContainsFunc(entries, func(entry Entry) bool { return entry.overdue(estimate) }) {
		return entries, nil
	}
	asking, cancel := answerIn(ctx, answerTimeout)
	defer cancel()
	st, err := e.kv.State(asking, "")
	if err != nil {
		return entries, err
	}
	for i, entry := range entries {
		if entry.overdue(st.Time) {
			err = e.deleteOverdue(ctx, entry)
			if err == nil {
				continue
			}
			conflict, refused := errors.AsType[*kvstore.ConflictError](err)
			if !refused { // the others would fare no better
				return append(rest, entries[i:]...), err
			}
			if now, err := e.read(ctx, entry.Key, max(conflict.Last, entry.Revision)); err == nil && !now.Live() {
				continue
			}
		}
		rest = append(rest, entry)
	}
	return rest, nil
}

// deleteOverdue replaces an overdue record by a tombstone that names its claim.
func (e *Engine) deleteOverdue(ctx context.Context, entry Entry) error {
	b := Body{Status: StatusGone, ID: entry.ID, Client: e.client}
	body, err := b.encode()
	if err != nil {
		return err
	}
	_, err = e.write(ctx, kvstore.Write{Key: entry.Key, Value: body, Expect: entry.Revision, Delete: true})
	return err
}
