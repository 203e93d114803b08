package core

import "github.com/natslock/locks/internal/record"

// Finding is what the record under the key of a record that a client keeps alive means to it.
type Finding uint8

const (
	// FoundGone: nothing keeps the others out any more.
	FoundGone Finding = iota
	// AsKnown: it is as it should be.
	AsKnown
	// Confirms: a renewal whose answer was lost has written it. The validity counts from the sending of that renewal.
	Confirms
	// FoundBroken: an operator has broken it. It keeps the others out until the holder has stopped.
	FoundBroken
	// FoundEarlier: an attempt from before the grant has written it, after the granted record had
	// gone.
	FoundEarlier
	// FoundReplaced: another claim has been granted.
	FoundReplaced
)

// Find judges the record e, of which the claim id was last known to have revision last, and has sent renewals
// up to a number. status is that of its records: a place says that it waits, before its renewals and after them.
// current says that the record is one of these.
func Find(e record.Entry, id string, status record.Status, last, sent uint64) (f Finding, current bool) {
	own := e.From(id)
	// A broken record is the claim's own too, and ends the lease.
	current = own && e.Live() && e.Status == status //safety:found-current
	switch {
	case current && e.Revision <= last:
		f = AsKnown
	case current && e.Renewal > 0 && e.Renewal <= sent:
		f = Confirms
	case own && e.Status == record.StatusBroken: //safety:found-broken
		f = FoundBroken
	case own && e.Live():
		f = FoundEarlier
	case e.Live():
		f = FoundReplaced
	}
	return f, current
}
