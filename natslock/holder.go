package natslock

import (
	"fmt"
	"strings"
	"time"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// Holder describes the holder of a lock in an error. Package admin shows more. For an unreadable
// record, Token and ID are derived from the revision.
type Holder struct {
	// Token is the fencing token.
	Token uint64
	// ID identifies the claim, and is never reused.
	ID string
	// Owner is the client's name: see [WithOwner].
	Owner string
	Host  string
	PID   int
	// Since is when the lock was granted, by the holder's clock.
	Since time.Time
	// Expires is the time, by the server's clock, at which the record is removed unless the
	// holder renews it. Zero means never.
	Expires time.Time
	Meta    map[string]string // see [Meta]
}

// holderOf returns the holder that e describes, or nil if there is none.
func holderOf(e record.Entry) *Holder {
	if e.Zero() {
		return nil
	}
	h := &Holder{Token: e.TokenOrTicket()}
	if !e.Deleted && e.Record.TTL > 0 { // a tombstone's TTL is not the lease's
		h.Expires = e.Time.Add(e.Record.TTL)
	}
	if e.Unreadable {
		h.Since = e.Time
		if !e.Deleted {
			h.ID = e.ClaimID()
		}
		return h
	}
	h.ID, h.Owner, h.Host, h.PID, h.Meta = e.ID, e.Owner, e.Host, e.PID, e.Meta
	if e.Since != 0 {
		h.Since = time.UnixMilli(e.Since)
	}
	return h
}

// knownHolder is like holderOf, but returns nil for an unreadable record.
func knownHolder(e record.Entry) *Holder {
	if e.Unreadable {
		return nil
	}
	return holderOf(e)
}

// describe returns a short description of h for an error. e is the holder's record.
func describe(h Holder, e record.Entry) string {
	s := h.Owner
	if !strings.Contains(s, h.Host) { // the default owner includes the host
		s += " on " + h.Host
	}
	s = plain.Text(s) + fmt.Sprintf(" (token %d)", h.Token)
	switch {
	case e.Status == record.StatusBroken:
		s += ", broken by " + plain.Text(e.BrokenBy)
	case e.Done():
	case e.Left():
		s += ", and is not being renewed: it is fixed, handed over, or kept for a minimum hold"
	}
	return s
}
