package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// breakTries limits how often Break retries after the holder has renewed its lease.
const breakTries = 10

// maxReason limits the length of a break's reason, in bytes.
const maxReason = 1 << 10

// BreakRequest identifies the claim to break.
type BreakRequest struct {
	Kind        record.Kind
	Name        string
	ID          string // the claim that the operator saw: see [record.Entry.ClaimID]
	Reason      string
	Immediately bool // admit the next waiter immediately, at the expense of mutual exclusion
}

// Break replaces the claim's record with a broken one. The holder is notified and can no longer renew.
// Unless req.Immediately is set, the next client gets in only once the holder has stopped or its lease is
// over, and the broken record lives at least as long as the replaced record could have.
//
// Break never breaks a claim other than the one requested. If that claim is gone, the error matches
// [session.ErrReleased]. Breaking a broken record again changes nothing.
//
// While the bucket has no leader, the error matches [bucket.ErrUnavailable]. [core.Break] defines the
// states.
func (a *Admin) Break(ctx context.Context, req BreakRequest) error {
	encoded, err := record.EncodeName(req.Name)
	if err != nil {
		return err
	}
	if len(req.Reason) > maxReason || len(a.b.Owner()) > maxReason {
		return fmt.Errorf("break lock %q: %w: the reason exceeds %d bytes", req.Name, record.ErrInvalidOption, maxReason)
	}
	if req.ID == "" {
		return fmt.Errorf("break lock %q: %w: the request has no claim ID", req.Name, record.ErrInvalidOption)
	}
	br := core.Break{ID: req.ID, Immediately: req.Immediately}
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, plain.EndOf(ctx))
		}
		key, listed, err := a.claimKey(ctx, record.KeysOf(req.Kind, encoded), req.ID, br.AsOf)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		st, err := a.b.State(ctx, key)
		if err != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		entry, err := a.b.Read(ctx, key, br.AsOf)
		switch {
		case bucket.IsAny(err, kvstore.ErrWithheld) && br.SeenBroken:
			return nil
		case err != nil:
			return fmt.Errorf("break lock %q: %w", req.Name, err)
		}
		none := len(st.Keys) == 0 && st.Complete //safety:break-led
		next := br.RecordRead(entry, none, st.LastRevision)
		if next == core.BreakGone || next == core.BreakTaken || next == core.BreakDone && entry.Deleted {
			if err := a.reached(ctx, st.LastRevision, max(listed, entry.Revision)); err != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, err)
			}
		}
		var pause time.Duration
		if next == core.BreakWrite {
			w, err := a.breaking(entry, &br, req, st.Time)
			if err != nil {
				return fmt.Errorf("break lock %q: %w", req.Name, err)
			}
			revision, err := a.b.Write(ctx, w)
			answer := bucket.AnswerOf(kvstore.Answer{Revision: revision, Err: err})
			if next = br.WriteAnswered(answer, entry.Revision, st.LastRevision); next != core.BreakDone && (bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrClosed) || try == breakTries) {
				return fmt.Errorf("break lock %q: %w", req.Name, err)
			}
			if answer.Refusal > core.Conflict { // the next read shows the outcome
				pause = clock.ShortBackoff(try + 2)
			}
		}
		switch next {
		case core.BreakDone:
			return nil
		case core.BreakTaken:
			return fmt.Errorf("break lock %q: claim %.64q has ended, and %.64q holds it now: %w", req.Name, req.ID, entry.ClaimID(), session.ErrReleased)
		case core.BreakGone:
			return fmt.Errorf("break lock %q: claim %.64q has ended: %w", req.Name, req.ID, session.ErrReleased)
		}
		if pause > 0 && clock.Sleep(ctx, pause) != nil {
			return fmt.Errorf("break lock %q: %w", req.Name, plain.EndOf(ctx))
		}
	}
}

// claimKey returns the key of the claim with this id, from a list that contains revision. If the list has
// no reader or permit with this id, key is the gate or a slot that does not belong to the claim, and
// listed is the list's revision.
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
		return keys.Slot(record.MaxPermits - 1), l.Revision, nil // a key that this user is allowed to read and that does not belong to the claim
	}
	return keys.Gate, l.Revision, nil
}

// breaking returns the write that breaks entry.
func (a *Admin) breaking(entry record.Entry, br *core.Break, req BreakRequest, server time.Time) (kvstore.Write, error) {
	b := entry.Body
	if entry.Unreadable {
		b = record.Body{ID: entry.ClaimID(), Owner: "unknown"}
	}
	b.Token = entry.TokenOrTicket()
	b.Status, b.BrokenBy, b.Reason, b.BrokenAt = record.StatusBroken, a.b.Owner(), req.Reason, time.Now().UnixMilli()
	ttl := br.BrokenFor(entry, server, a.s.TTL)
	b.TTL = int64(ttl / time.Second)
	value, err := b.Encode()
	return kvstore.Write{Key: entry.Key, Value: value, Expect: entry.Revision, TTL: ttl, Delete: ttl == 0}, err
}
