package kvstore

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	// multiMax is the number of keys that one request reads by name. It is below the 1024
	// that the server answers, and the request fits into a message of 1 MiB.
	multiMax = 256
	// batchMax is the largest number of records that a server sends. If more match, it sends
	// nothing, even if the request is for only some of them.
	batchMax = 1024
	// multiBytes limits one answer. The server itself only limits how far a client may fall
	// behind before it disconnects it as a slow consumer.
	multiBytes = 2 * multiMax * MaxRecord
)

// From omits records whose revision is below revision.
func From(revision uint64) ListOption { return func(l *listing) { l.from = revision } }

// Beside also reads the record under key. If one request cannot read both, List reads this
// record first, and the list shows a state that contains it.
func Beside(key string) ListOption { return func(l *listing) { l.beside = key } }

// Also lists the records under other patterns too, in the same state. If one request cannot
// read them, List returns an error that matches [ErrApart]. Also cannot be combined with
// [Beside].
func Also(patterns ...string) ListOption { return func(l *listing) { l.also = patterns } }

// Tombstones includes tombstones; see [Record.Deleted].
func Tombstones() ListOption { return func(l *listing) { l.dead = true } }

// Reached says that the bucket has reached a revision. A list with min 0 need not contain
// it: a single server (see Alone) has no older state. If the server's answer is older
// nevertheless, there must be other servers by now. The store notes that, and the list
// contains the revision.
func Reached(revision uint64) ListOption { return func(l *listing) { l.reached = revision } }

// AtMost limits the answer to the n records of the lowest revisions, counting tombstones and
// the record of [Beside]. A cut-off answer may come from any state: it shows what exists,
// but not what is missing. If no request can read only part of the list, List reads
// everything (see Listing.Whole), or only the record under the key of Beside if that is
// live.
func AtMost(n int) ListOption { return func(l *listing) { l.atMost = n } }

// Named makes the leader name the keys, and List reads each of them, so no key is missing.
// The answer of one replica misses some keys while that replica catches up: it first removes
// the records that the leader no longer has, and then stores the ones that replaced them
// (nats-server 2.15, processSnapshotDeletes). With one replica Named has no effect.
//
// keys are keys that the leader has named before (see [InParts]). List then reads only
// these, each under the pattern, and Named cannot be combined with other options.
func Named(keys ...string) ListOption {
	return func(l *listing) { l.named, l.keys = true, keys }
}

// InParts makes List return only the keys, in Listing.Keys, if one request cannot read all
// the records. A list with [Named] then reads them, as many at a time as the caller likes.
// InParts cannot be combined with [Also] and [Beside].
func InParts() ListOption { return func(l *listing) { l.parts = true } }

// parseOptions returns the listing that the options describe, or an error if one is invalid.
func parseOptions(pattern string, opts []ListOption) (what listing, err error) {
	for _, opt := range opts {
		if opt == nil {
			return listing{}, fmt.Errorf("list %q: %w: it is nil", pattern, ErrInvalidOption)
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

// answer turns the records read into the answer to a List: live records in order.
func (l *Listing) answer(what listing) {
	l.Records = slices.DeleteFunc(l.Records, func(r Record) bool {
		if what.beside != "" && r.Key == what.beside { // otherwise it was read before
			l.Beside = r
			return true
		}
		return r.Deleted && !what.dead || r.Revision < what.from
	})
	slices.SortFunc(l.Records, byRevision)
}

func byRevision(a, b Record) int { return cmp.Compare(a.Revision, b.Revision) }
