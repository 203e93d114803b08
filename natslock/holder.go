package natslock

import (
	"fmt"
	"strings"
	"time"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// Holder describes the holder of a lock in errors. Package admin shows more.
type Holder struct {
	// Token is the fencing token. For an unreadable record it is derived from the revision.
	Token uint64
	// ID names the claim, and is never reused. For an unreadable record it is derived from the
	// revision.
	ID string
	// Owner is the client's name: see [WithOwner].
	Owner string
	Host  string
	PID   int
	// Since is the time of the grant by the holder's clock.
	Since time.Time
	// Expires is the time, by the server's clock, at which the server removes the record unless
	// the holder renews it. Zero means never.
	Expires time.Time
	Meta    map[string]string // see [Meta]
}

// holderOf returns the holder that a record shows, or nil.
func holderOf(e record.Entry) *Holder {
	if e.Zero() {
		return nil
	}
	h := &Holder{Token: e.TokenOrTicket()}
	if !e.Deleted && e.Record.TTL > 0 { // the TTL of a tombstone is not the lease's
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

// knownHolder is holderOf for errors, which show an unknown holder as nil.
func knownHolder(e record.Entry) *Holder {
	if e.Unreadable {
		return nil
	}
	return holderOf(e)
}

// describe names a holder, for the text of an error; e is its record.
func describe(h Holder, e record.Entry) string {
	s := h.Owner
	if !strings.Contains(s, h.Host) { // the default owner names the host
		s += " on " + h.Host
	}
	s = plain.Text(s) + fmt.Sprintf(" (token %d)", h.Token)
	switch {
	case e.Status == record.StatusBroken:
		s += ", broken by " + plain.Text(e.BrokenBy)
	case e.Done():
	case e.Left():
		s += ", which does not renew it: it is fixed, handed over, or kept for a minimum hold"
	}
	return s
}
