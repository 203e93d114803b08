package core

import "github.com/natslock/locks/internal/record"

// Finding classifies the record found under the key of a kept record.
type Finding uint8

const (
	// FoundGone means that nothing keeps others out anymore.
	FoundGone Finding = iota
	// AsKnown means that the record is as expected.
	AsKnown
	// Confirms means that the record was written by a renewal whose answer was lost. The validity counts from when that
	// renewal was sent.
	Confirms
	// FoundBroken means that an operator has broken the record. It keeps others out until the holder has stopped.
	FoundBroken
	// FoundEarlier means that an attempt sent before the grant wrote the record after the granted record was gone.
	FoundEarlier
	// FoundReplaced means that another claim has been granted.
	FoundReplaced
)

// Find classifies record e for the claim with the given id. last is the last known revision of the claim's record, and
// sent is the number of its last renewal. status is the status of the claim's records, which renewals do not change.
// current reports whether e is one of these records.
func Find(e record.Entry, id string, status record.Status, last, sent uint64) (f Finding, current bool) {
	own := e.From(id)
	// A broken record also belongs to the claim, but ends the lease.
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
