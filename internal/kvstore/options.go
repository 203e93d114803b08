package kvstore

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	// multiMax is the number of keys that one request reads by name. It is below the
	// server's limit of 1024 and keeps the request within a 1 MiB message.
	multiMax = 256
	// batchMax is the largest number of records that the server sends for one request. If
	// more match, it sends none, even if the request asks for only some of them.
	batchMax = 1024
	// multiBytes limits the size of a reply. The server limits only how far a client can
	// fall behind before it is disconnected as a slow consumer.
	multiBytes = 2 * multiMax * MaxRecord
)

// From omits records with revisions below revision.
func From(revision uint64) ListOption { return func(l *listing) { l.from = revision } }

// Beside also reads the record under key. If a single request cannot read both, List reads
// this record first and then lists a state that contains it.
func Beside(key string) ListOption { return func(l *listing) { l.beside = key } }

// Also includes the records under other patterns, read from the same state. If a single
// request cannot read them all, List returns an error that matches [ErrApart]. Also cannot
// be combined with [Beside].
func Also(patterns ...string) ListOption { return func(l *listing) { l.also = patterns } }

// Tombstones includes tombstones; see [Record.Deleted].
func Tombstones() ListOption { return func(l *listing) { l.dead = true } }

// Reached tells List that the bucket has reached a revision. This makes it safe to pass 0
// as min for a single server (see Alone), which has no older state. If the reply comes from
// an older state anyway, other servers must have joined. The store then takes note of them,
// and List makes sure that the result contains the revision.
func Reached(revision uint64) ListOption { return func(l *listing) { l.reached = revision } }

// AtMost limits the result to the n records with the lowest revisions, counting tombstones
// and the [Beside] record. A truncated list may come from any state: it shows what exists
// but not what is missing. If no request can read only part of the list, List reads
// everything (see Listing.Whole), or only the Beside record if that is live.
func AtMost(n int) ListOption { return func(l *listing) { l.atMost = n } }

// Named makes List ask the leader for the keys and read each of them, so that no key is
// missing. A replica's own list can miss keys while the replica is catching up, because it
// first removes the records that the leader no longer has and only then stores the ones
// that replaced them (nats-server 2.15, processSnapshotDeletes). Named has no effect on a
// bucket with one replica.
//
// Any keys given must match the pattern and must have been named by the leader in an
// earlier call (see [InParts]). List then reads only those keys, and Named cannot be
// combined with other options.
func Named(keys ...string) ListOption {
	return func(l *listing) { l.named, l.keys = true, keys }
}

// InParts makes List return only the keys, in Listing.Keys, if a single request cannot read
// all the records. The caller can then read them with [Named], as many at a time as it
// likes. InParts cannot be combined with [Also] or [Beside].
func InParts() ListOption { return func(l *listing) { l.parts = true } }

// parseOptions returns the listing that opts describe, or an error if an option is invalid.
func parseOptions(pattern string, opts []ListOption) (what listing, err error) {
	for _, opt := range opts {
		if opt == nil {
			return listing{}, fmt.Errorf("list %q: %w: nil", pattern, ErrInvalidOption)
		}
		opt(&what)
	}
	for _, p := range append([]string{pattern}, what.also...) {
		if err := checkPattern(p); err != nil {
			return listing{}, err
		}
	}
	keys := what.keys
	if what.beside != "" {
		keys = append(keys, what.beside)
	}
	for _, k := range keys {
		if err := checkKey(k); err != nil {
			return listing{}, err
		}
	}
	return what, nil
}

// answer removes the records that were not requested and sorts the rest by revision.
func (l *Listing) answer(what listing) {
	l.Records = slices.DeleteFunc(l.Records, func(r Record) bool {
		if what.beside != "" && r.Key == what.beside { // if absent here, it was read earlier
			l.Beside = r
			return true
		}
		return r.Deleted && !what.dead || r.Revision < what.from
	})
	slices.SortFunc(l.Records, byRevision)
}

func byRevision(a, b Record) int { return cmp.Compare(a.Revision, b.Revision) }
