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

// BreakRequest says which holder to break.
type BreakRequest struct {
	Kind   record.Kind
	Name   string
	Token  uint64 // of the holder that was shown to the operator
	Reason string
	Now    bool // let the next in at once: an exception to mutual exclusion
}

// Break replaces the holder's record by a broken one. The holder cannot renew
// any more and is told; nobody gets in before it has stopped, or its lease is
// over: the broken record lives at least as long as the record it replaces
// could have.
//
// A holder with another token than the one shown is never broken: the error
// then matches [session.ErrReleased]. Breaking a broken record again changes nothing.
func (a *Admin) Break(ctx context.Context, req BreakRequest) error {
	encoded, err := record.EncodeName(req.Name)
	if err != nil {
		return err
	}
	if len(req.Reason) > maxReason || len(a.b.Owner()) > maxReason {
		return fmt.Errorf("break lock %q: %w: the reason has more than %d bytes", req.Name, record.ErrInvalidOption, maxReason)
	}
	if err := a.contains(ctx, req.Token); err != nil {
		return fmt.Errorf("break lock %q: %w", req.Name, err)
	}
	key := record.LockPrefix + encoded
	if req.Kind == record.RW {
		if key, err = a.holderKey(ctx, encoded, req.Token); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
	}
	// A token is a revision: a state that contains it shows its holder, or what came after.
	atLeast := req.Token
	shownBroken := false
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, bucket.EndOf(ctx))
		}
		// The server's time before the break is sent, minus the record's own,
		// is an age the record certainly has.
		st, err := a.b.State(ctx, key)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		entry, err := a.b.Read(ctx, key, atLeast)
		if len(st.Keys) == 0 && st.LastRevision >= max(atLeast, entry.Revision) {
			entry = record.Entry{} // a replica has not removed it yet
		}
		switch {
		case bucket.IsAny(err, bucket.ErrPermission) && shownBroken:
			return nil // the leader's word is withheld from this user
		case err != nil:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case !entry.Live() && try > 0 && entry.Status == record.StatusBroken:
			return nil // the answer to an earlier try was lost
		case !entry.Live():
			return fmt.Errorf("break lock %q: its holder with token %d is gone: %w", req.Name, req.Token, session.ErrReleased)
		case entry.TokenOrTicket() != req.Token:
			return fmt.Errorf("break lock %q: its holder with token %d is gone, it is held with token %d now: %w", req.Name, req.Token, entry.TokenOrTicket(), session.ErrReleased)
		case entry.Status == record.StatusBroken && !entry.Unreadable && !req.Now:
			if shownBroken || a.b.Alone() {
				return nil
			}
			// A replica that lags shows it after its holder has deleted it.
			atLeast, shownBroken = max(atLeast, st.LastRevision), true
			continue
		}
		w, err := a.breaking(entry, req, st.Time)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		_, err = a.b.Write(ctx, w)
		var conflict *kvstore.ConflictError
		if errors.As(err, &conflict) {
			atLeast = max(atLeast, conflict.Last)
		}
		switch {
		case err == nil:
			return nil
		case bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrClosed), try == breakTries:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case conflict == nil:
			// In flight, or unknown: what is there now tells.
			if clock.Sleep(ctx, clock.ShortBackoff(try+2)) != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, bucket.EndOf(ctx))
			}
		}
	}
}

// contains returns nil when the leader's state contains revision token. A leader
// that has just been elected may lag a little behind what was acknowledged.
func (a *Admin) contains(ctx context.Context, token uint64) error {
	for try := 0; ; try++ {
		st, err := a.b.State(ctx, "")
		switch {
		case err != nil:
			return err
		case st.LastRevision >= token:
			return nil
		case a.b.Alone():
			return fmt.Errorf("no holder has had the token %d, the newest revision is %d: %w", token, st.LastRevision, session.ErrReleased)
		case try == breakTries:
			return fmt.Errorf("%w: the token %d is wrong, or the server that answers lags behind: its newest revision is %d", bucket.ErrUnavailable, token, st.LastRevision)
		}
		if clock.Sleep(ctx, clock.ShortBackoff(try+2)) != nil {
			return bucket.EndOf(ctx)
		}
	}
}

// holderKey finds the reader with the token, or else names the gate.
func (a *Admin) holderKey(ctx context.Context, encoded string, token uint64) (string, error) {
	l, err := a.b.List(ctx, record.ReaderPrefix+encoded+".*", token)
	if err != nil {
		return "", err
	}
	for _, r := range l.Records {
		if record.Of(r).TokenOrTicket() == token {
			return r.Key, nil
		}
	}
	return record.GatePrefix + encoded, nil
}

// breaking is the write that breaks entry.
func (a *Admin) breaking(entry record.Entry, req BreakRequest, serverTime time.Time) (kvstore.Write, error) {
	b := entry.Body
	if entry.Unreadable {
		b = record.Body{ID: fmt.Sprintf("unreadable-%d", entry.Revision), Owner: "unknown"}
	}
	b.Token = entry.TokenOrTicket()
	b.Status, b.BrokenBy, b.Reason, b.BrokenAt = record.StatusBroken, a.b.Owner(), req.Reason, time.Now().UnixMilli()
	ttl := entry.Record.TTL
	if ttl == 0 { // not written by us: nobody's lease, nobody to wait for
		ttl = a.s.TTL
	}
	if entry.Fixed && !entry.Unreadable {
		// Two servers' clocks: the one that has stamped the record may be ahead.
		age := max(serverTime.Sub(entry.Time)-record.OverdueSlack, 0)
		ttl = max(clock.CeilSecond(ttl-age), time.Second)
	}
	b.TTL = int64(ttl / time.Second)
	value, err := b.Encode()
	w := kvstore.Write{Key: entry.Key, Value: value, Expect: entry.Revision, TTL: ttl}
	if req.Now || entry.OverdueAt(serverTime) { // an overdue record has no holder to wait for
		w.Delete, w.TTL = true, 0
	}
	return w, err
}
