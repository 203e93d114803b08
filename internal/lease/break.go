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

// BreakRequest says which holder to break.
type BreakRequest struct {
	Kind   Kind
	Name   string
	Token  uint64 // of the holder that was shown to the operator
	Reason string
	By     string
	Now    bool // let the next in at once: an exception to mutual exclusion
}

// Break replaces the holder's record by a broken one. The holder cannot renew
// any more and is told; nobody gets in before it has stopped, or its lease is
// over: the broken record lives at least as long as the record it replaces
// could have.
//
// A holder with another token than the one shown is never broken: the error
// then matches [ErrReleased]. Breaking a broken record again changes nothing.
func (e *Engine) Break(ctx context.Context, req BreakRequest) error {
	encoded, err := EncodeName(req.Name)
	if err != nil {
		return err
	}
	if len(req.Reason) > maxReason || len(req.By) > maxReason {
		return fmt.Errorf("break lock %q: %w: the reason has more than %d bytes", req.Name, ErrInvalidOption, maxReason)
	}
	if err := e.contains(ctx, req.Token); err != nil {
		return fmt.Errorf("break lock %q: %w", req.Name, err)
	}
	key := lockPrefix + encoded
	if req.Kind == RW {
		if key, err = e.holderKey(ctx, encoded, req.Token); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
	}
	// A token is a revision: a state that contains it shows its holder, or what came after.
	atLeast := req.Token
	shownBroken := false
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, endOf(ctx))
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
		switch {
		case isAny(err, ErrPermission) && shownBroken:
			return nil // the leader's word is withheld from this user
		case err != nil:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		case !entry.Live() && try > 0 && entry.Status == StatusBroken:
			return nil // the answer to an earlier try was lost
		case !entry.Live():
			return fmt.Errorf("break lock %q: its holder with token %d is gone: %w", req.Name, req.Token, ErrReleased)
		case entry.TokenOrTicket() != req.Token:
			return fmt.Errorf("break lock %q: its holder with token %d is gone, it is held with token %d now: %w", req.Name, req.Token, entry.TokenOrTicket(), ErrReleased)
		case entry.Status == StatusBroken && !entry.Unreadable && !req.Now:
			if shownBroken || e.kv.Alone() {
				return nil
			}
			// A replica that lags shows it after its holder has deleted it.
			atLeast, shownBroken = max(atLeast, st.LastRevision), true
			continue
		}
		w, err := e.breaking(entry, req, st.Time)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		_, err = e.write(ctx, w)
		var conflict *kvstore.ConflictError
		if errors.As(err, &conflict) {
			atLeast = max(atLeast, conflict.Last)
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

// contains returns nil when the leader's state contains revision token. A leader
// that has just been elected may lag a little behind what was acknowledged.
func (e *Engine) contains(ctx context.Context, token uint64) error {
	for try := 0; ; try++ {
		st, err := e.kv.State(ctx, "")
		switch {
		case err != nil:
			return err
		case st.LastRevision >= token:
			return nil
		case e.kv.Alone():
			return fmt.Errorf("no holder has had the token %d, the newest revision is %d: %w", token, st.LastRevision, ErrReleased)
		case try == breakTries:
			return fmt.Errorf("%w: the token %d is wrong, or the server that answers lags behind: its newest revision is %d", ErrUnavailable, token, st.LastRevision)
		}
		if sleep(ctx, shortPause(try+2)) != nil {
			return endOf(ctx)
		}
	}
}

// holderKey finds the reader with the token, or else names the gate.
func (e *Engine) holderKey(ctx context.Context, encoded string, token uint64) (string, error) {
	l, err := e.kv.List(ctx, readerPrefix+encoded+".*", token)
	if err != nil {
		return "", err
	}
	for _, r := range l.Records {
		if entryOf(r).TokenOrTicket() == token {
			return r.Key, nil
		}
	}
	return gatePrefix + encoded, nil
}

// breaking is the write that breaks entry.
func (e *Engine) breaking(entry Entry, req BreakRequest, serverTime time.Time) (kvstore.Write, error) {
	b := entry.Body
	if entry.Unreadable {
		b = Body{ID: fmt.Sprintf("unreadable-%d", entry.Revision), Owner: "unknown"}
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
	if req.Now || entry.overdue(serverTime) { // an overdue record has no holder to wait for
		w.Delete, w.TTL = true, 0
	}
	return w, err
}
