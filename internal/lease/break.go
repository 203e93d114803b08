package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/kvstore"
)

// breakTries bounds how often a break follows a holder that renews meanwhile.
const breakTries = 10

// maxReason bounds the reason of a break, in bytes.
const maxReason = 1 << 10

// BreakRequest says which claim to break.
type BreakRequest struct {
	Kind        Kind
	Name        string
	ID          string // of the claim that was shown to the operator; see [Entry.ClaimID]
	Reason      string
	By          string
	Immediately bool // let the next in at once: an exception to mutual exclusion
}

// Break replaces the claim's record by a broken one. The holder cannot renew
// any more and is notified; nobody gets in before it has stopped, or its lease is
// over: the broken record lives at least as long as the record it replaces
// could have.
//
// Another claim than the one named is never broken: the error then matches
// [ErrReleased]. Breaking a broken record again changes nothing.
//
// A replica that lags may answer the first read. Where it shows the claim, the
// conditional write is the proof. That the claim is gone, or broken already, only a
// state proves that contains what the leader had stored during this call.
func (e *Engine) Break(ctx context.Context, req BreakRequest) error {
	encoded, err := EncodeName(req.Name)
	if err != nil {
		return err
	}
	if len(req.Reason) > maxReason || len(req.By) > maxReason {
		return fmt.Errorf("break lock %q: %w: the reason has more than %d bytes", req.Name, ErrInvalidOption, maxReason)
	}
	if req.ID == "" {
		return fmt.Errorf("break lock %q: %w: the request names no claim", req.Name, ErrInvalidOption)
	}
	atLeast := uint64(0) // a revision that the leader has named
	confirmed := e.kv.Alone()
	sent, shownBroken := false, false
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, endOf(ctx))
		}
		key := lockPrefix + encoded
		if req.Kind == RW {
			if key, err = e.claimKey(ctx, encoded, req.ID, atLeast); err != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, err)
			}
		}
		// The server's time before the break is sent, minus the record's own,
		// is an age the record certainly has.
		st, err := e.kv.State(ctx, key)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		entry, err := e.read(ctx, key, atLeast)
		if len(st.Keys) == 0 && st.LastRevision >= max(atLeast, entry.Revision) {
			entry = Entry{} // a replica has not removed it yet
		}
		gone := !entry.Live() || entry.ClaimID() != req.ID
		broken := !gone && entry.Status == StatusBroken && !entry.Unreadable && !req.Immediately
		switch {
		case isAny(err, ErrPermission) && shownBroken:
			return nil // the leader's word is withheld from this user
		case err != nil:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case (gone || broken) && !confirmed:
			atLeast, confirmed, shownBroken = max(atLeast, st.LastRevision), true, broken
			continue
		case broken:
			return nil
		case gone && sent && entry.Deleted && entry.Status == StatusBroken && entry.of(req.ID):
			return nil // the answer to an earlier try was lost
		case gone && entry.Live():
			return fmt.Errorf("break lock %q: the claim %.64q is gone, %.64q holds it now: %w", req.Name, req.ID, entry.ClaimID(), ErrReleased)
		case gone:
			return fmt.Errorf("break lock %q: the claim %.64q is gone: %w", req.Name, req.ID, ErrReleased)
		}
		w, err := e.breaking(entry, req, st.Time)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		sent = true
		_, err = e.write(ctx, w)
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
			return nil
		case isAny(err, ErrPermission, kvstore.ErrClosed), try == breakTries:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case conflict == nil:
			// In flight, or unknown: what is there now tells.
			if sleep(ctx, shortPause(try+2)) != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, endOf(ctx))
			}
		}
	}
}

// ClaimID names the claim for operators. A record that cannot be read names none: its
// revision stands for it.
func (e Entry) ClaimID() string {
	if e.Unreadable {
		return fmt.Sprintf("unreadable-%d", e.Revision)
	}
	return e.ID
}

// claimKey finds the reader with the id, or else names the gate, as of a state that
// contains revision.
func (e *Engine) claimKey(ctx context.Context, encoded, id string, revision uint64) (string, error) {
	l, err := e.kv.List(ctx, readerPrefix+encoded+".*", revision)
	if err != nil {
		return "", err
	}
	for _, r := range l.Records {
		if entryOf(r).ClaimID() == id {
			return r.Key, nil
		}
	}
	return gatePrefix + encoded, nil
}

// breaking is the write that breaks entry.
func (e *Engine) breaking(entry Entry, req BreakRequest, serverTime time.Time) (kvstore.Write, error) {
	b := entry.Body
	if entry.Unreadable {
		b = Body{ID: entry.ClaimID(), Owner: "unknown"}
	}
	b.Token = entry.TokenOrTicket()
	b.Status, b.BrokenBy, b.Reason, b.BrokenAt = StatusBroken, req.By, req.Reason, time.Now().UnixMilli()
	ttl := entry.Record.TTL
	if ttl == 0 { // not written by us: nobody's lease, nobody to wait for
		ttl = e.cfg.TTL
	}
	if entry.Fixed && !entry.Unreadable {
		// Two servers' clocks: the one that has stamped the record may be ahead.
		age := max(serverTime.Sub(entry.Time)-overdueSlack, 0)
		ttl = max(ceilSecond(ttl-age), time.Second)
	}
	b.TTL = int64(ttl / time.Second)
	value, err := b.encode()
	w := kvstore.Write{Key: entry.Key, Value: value, Expect: entry.Revision, TTL: ttl}
	if req.Immediately || entry.overdue(serverTime) { // an overdue record has no holder to wait for
		w.Delete, w.TTL = true, 0
	}
	return w, err
}
