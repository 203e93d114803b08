package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// breakTries bounds how often a break follows a holder that renews meanwhile.
const breakTries = 10

// maxReason bounds the reason of a break, in bytes.
const maxReason = 1 << 10

// BreakRequest says which claim to break.
type BreakRequest struct {
	Kind        record.Kind
	Name        string
	ID          string // of the claim that was shown to the operator; see [record.Entry.ClaimID]
	Reason      string
	Immediately bool // let the next in at once: an exception to mutual exclusion
}

// Break replaces the claim's record by a broken one. The holder is notified and
// cannot renew any more. Nobody gets in before it has stopped, or its lease is
// over. The broken record lives at least as long as the record it replaces
// could have.
//
// Another claim than the one named is never broken: the error then matches
// [session.ErrReleased]. Breaking a broken record again changes nothing.
//
// A replica or a mirror that lags may answer the first read. Where it shows the claim, the
// conditional write is the proof. That the claim is gone, or broken already, only a
// leader's state proves that contains what the leader had stored during this call.
// While nobody leads, the error matches [bucket.ErrUnavailable].
func (a *Admin) Break(ctx context.Context, req BreakRequest) error {
	encoded, err := record.EncodeName(req.Name)
	if err != nil {
		return err
	}
	if len(req.Reason) > maxReason || len(a.b.Owner()) > maxReason {
		return fmt.Errorf("break lock %q: %w: the reason has more than %d bytes", req.Name, record.ErrInvalidOption, maxReason)
	}
	if req.ID == "" {
		return fmt.Errorf("break lock %q: %w: the request names no claim", req.Name, record.ErrInvalidOption)
	}
	atLeast := uint64(0) // a revision that the leader has named
	sent, confirmed, shownBroken, lingers := false, false, false, false
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, bucket.EndOf(ctx))
		}
		key, listed, err := a.claimKey(ctx, record.KeysOf(req.Kind, encoded), req.ID, atLeast)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		// The server's time before the break is sent, minus the record's own,
		// is an age the record certainly has.
		st, err := a.b.State(ctx, key)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		entry, err := a.b.Read(ctx, key, atLeast)
		if len(st.Keys) == 0 && st.Complete && st.LastRevision >= max(atLeast, entry.Revision) { //safety:break-complete
			entry = record.Entry{} // a replica has not removed it yet
		}
		gone := !entry.Live() || entry.ClaimID() != req.ID                                              //safety:break-shown
		broken := !gone && entry.Status == record.StatusBroken && !entry.Unreadable && !req.Immediately //safety:break-once
		lingers = lingers || !gone && entry.Lingers
		switch {
		case bucket.IsAny(err, bucket.ErrPermission) && shownBroken:
			return nil // the leader's word is withheld from this user
		case err != nil:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case (gone || broken) && !confirmed: //safety:break-confirmed
			atLeast, confirmed, shownBroken = max(atLeast, st.LastRevision), true, broken
			continue
		case gone:
			if err := a.reached(ctx, st.LastRevision, max(listed, entry.Revision)); err != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, err)
			}
		}
		switch {
		case broken, gone && sent && entry.Deleted && entry.Status == record.StatusBroken && entry.From(req.ID):
			a.rouse(ctx, req.Kind, encoded, lingers) // also where the answer to an earlier try was lost
			return nil
		case gone && entry.Live():
			return fmt.Errorf("break lock %q: the claim %.64q is gone, %.64q holds it now: %w", req.Name, req.ID, entry.ClaimID(), session.ErrReleased)
		case gone:
			return fmt.Errorf("break lock %q: the claim %.64q is gone: %w", req.Name, req.ID, session.ErrReleased)
		}
		w, err := a.breaking(entry, req, st.Time)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		sent = true
		_, err = a.b.Write(ctx, w)
		var conflict *kvstore.ConflictError
		if errors.As(err, &conflict) {
			named := conflict.Last
			if named <= entry.Revision { // nothing is there any more, or a deposed leader has answered
				named = st.LastRevision
			}
			atLeast, confirmed = max(atLeast, named), true
		}
		switch {
		case err == nil:
			a.rouse(ctx, req.Kind, encoded, lingers)
			return nil
		case bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrClosed), try == breakTries:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case conflict == nil:
			// In flight, or unknown: the next read shows the outcome.
			if clock.Sleep(ctx, clock.ShortBackoff(try+2)) != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, bucket.EndOf(ctx))
			}
		}
	}
}

// rouse has the client of an idle lease release it: that client does not watch the record.
// Where the user may write nothing to the queue, the next renewal shows the break.
func (a *Admin) rouse(ctx context.Context, kind record.Kind, encoded string, lingers bool) {
	if !lingers { //safety:break-roused
		return
	}
	key, id, revision, err := a.b.Try(ctx, record.KeysOf(kind, encoded), record.Exclusive)
	if err != nil {
		return
	}
	a.s.Discard(key, id, revision)
}

// claimKey finds the reader or the slot with the id, or else names another key, as of a state
// that contains revision. It returns the revision of a state in which it has found none.
func (a *Admin) claimKey(ctx context.Context, keys record.Keys, id string, revision uint64) (key string, listed uint64, err error) {
	var pattern string
	switch keys.Kind {
	case record.RW:
		pattern = keys.Reader("*")
	case record.Semaphore:
		pattern = keys.Slots()
	default:
		return keys.Gate, 0, nil
	}
	l, err := a.b.List(ctx, pattern, revision, named(revision)...)
	if err != nil {
		return "", 0, err
	}
	for _, r := range l.Records {
		if record.Of(r).ClaimID() == id {
			return r.Key, 0, nil
		}
	}
	if keys.Kind == record.Semaphore {
		return keys.Slot(record.MaxPermits - 1), l.Revision, nil // it may be read, and is not of the claim
	}
	return keys.Gate, l.Revision, nil
}

// breaking is the write that breaks entry.
func (a *Admin) breaking(entry record.Entry, req BreakRequest, serverTime time.Time) (kvstore.Write, error) {
	b := entry.Body
	if entry.Unreadable {
		b = record.Body{ID: entry.ClaimID(), Owner: "unknown"}
	}
	b.Token = entry.TokenOrTicket()
	b.Status, b.BrokenBy, b.Reason, b.BrokenAt = record.StatusBroken, a.b.Owner(), req.Reason, time.Now().UnixMilli()
	// Not shorter than what it replaces: its holder may not have noticed yet.
	ttl := entry.Record.TTL //safety:broken-outlasts
	if ttl == 0 {           // not a record of this library: no holder to wait for
		ttl = a.s.TTL
	}
	if entry.Fixed && !entry.Unreadable {
		// The clock of the server that has stamped the record may be ahead.
		age := max(serverTime.Sub(entry.Time)-record.OverdueSlack, 0) //safety:broken-age
		ttl = max(clock.CeilSecond(ttl-age), time.Second)             //safety:broken-rest
	}
	b.TTL = int64(ttl / time.Second)
	value, err := b.Encode()
	w := kvstore.Write{Key: entry.Key, Value: value, Expect: entry.Revision, TTL: ttl}
	// An overdue record has no holder to wait for, nor has one that a holder has left.
	if req.Immediately || entry.OverdueAt(serverTime) || entry.Left() { //safety:break-waits
		w.Delete, w.TTL = true, 0
	}
	return w, err
}
