package admin

import (
	"context"
	"slices"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
)

// RemoveOverdue deletes at most limit overdue records of holders, readers and waiters, for the
// locks whose names match pattern. It returns how many overdue records it deleted and how many are
// left. It deletes a record the way a waiter does: see [bucket.Bucket.Clear].
func (a *Admin) RemoveOverdue(ctx context.Context, pattern string, limit int) (removed, left int, err error) {
	encoded, err := record.EncodePattern(pattern)
	if err != nil {
		return 0, 0, err
	}
	st, err := a.b.Leader(ctx, bucket.AnswerTimeout)
	if err != nil {
		return 0, 0, err
	}
	var overdue []record.Entry
	for _, prefix := range record.Prefixes {
		// It is safe to read from a lagging replica, because the server compares revisions before
		// it deletes.
		l, err := a.b.List(ctx, record.Pattern(prefix, encoded), 0)
		if err != nil {
			return 0, 0, err
		}
		for _, r := range l.Records {
			if e := entryAt(r, st.Time); e.Overdue {
				if _, ok := record.ParseKey(e.Key); ok {
					overdue = append(overdue, e)
				}
			}
		}
	}
	some := overdue[:min(len(overdue), limit)] //safety:removal-limited
	rest, err := a.b.Clear(ctx, slices.Clone(some))
	removed = len(some) - len(rest)
	return removed, len(overdue) - removed, err
}
