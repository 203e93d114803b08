package kvstore

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	// multiMax is how many keys one request reads by name: fewer than the
	// 1024 the server answers, and than fit into a message of 1 MiB.
	multiMax = 256
	// batchMax is how many records a server sends at most. It answers nothing where
	// more match, also for a request of only a part of them.
	batchMax = 1024
	// multiBytes bounds one answer. The server's own bound is what it lets a
	// client fall behind before it disconnects it as a slow consumer.
	multiBytes = 2 * multiMax * MaxRecord
)

// From leaves out the records of revisions below revision.
func From(revision uint64) ListOption { return func(l *listing) { l.from = revision } }

// Beside reads the record under key too. If one request cannot read both, List reads
// this record first, and the list shows a state that contains it.
func Beside(key string) ListOption { return func(l *listing) { l.beside = key } }

// Also lists what is under other patterns too, in the same state. If one request cannot
// read that, List returns an error that matches [ErrApart]. It goes without [Beside].
func Also(patterns ...string) ListOption { return func(l *listing) { l.also = patterns } }

// Tombstones lists the tombstones too; see [Record.Deleted].
func Tombstones() ListOption { return func(l *listing) { l.dead = true } }

// Reached says that the bucket has reached a revision. A list of min 0 need not be as of
// that: with one server (see Alone) none is older. If the answer of a server is older all
// the same, there are other servers by now. The store notes that, and the list is as of the
// revision.
func Reached(revision uint64) ListOption { return func(l *listing) { l.reached = revision } }

// AtMost ends the answer after the n records of the lowest revisions. Tombstones and the record of [Beside]
// count. An answer that was cut off may be of any state: it shows what there is, and not what is missing. If no
// request can read a part, List reads all (see Listing.Whole), or nothing but the record under the key of
// Beside if that is live.
func AtMost(n int) ListOption { return func(l *listing) { l.atMost = n } }

// Named has the leader name the keys, and reads each of them: no key is missing. The answer
// of one replica misses some while that replica catches up. First it removes the records
// that the leader no longer has, and then it stores those that have replaced them
// (nats-server 2.15, processSnapshotDeletes). With one replica Named has no effect.
//
// Keys are those that it has named before (see [InParts]): List reads these only, each under
// the pattern. It goes without other options then.
func Named(keys ...string) ListOption {
	return func(l *listing) { l.named, l.keys = true, keys }
}

// InParts has List read no records that one request cannot read, but only their keys: see
// Listing.Keys. A list with [Named] reads them, so many at a time as the caller likes. It goes
// without [Also] and [Beside].
func InParts() ListOption { return func(l *listing) { l.parts = true } }

// parseOptions returns what a List with these options reads, or an error for invalid ones.
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

// answer makes what was read the answer to a List: live records in order.
func (l *Listing) answer(what listing) {
	l.Records = slices.DeleteFunc(l.Records, func(r Record) bool {
		if what.beside != "" && r.Key == what.beside { // else it was read before
			l.Beside = r
			return true
		}
		return r.Deleted && !what.dead || r.Revision < what.from
	})
	slices.SortFunc(l.Records, byRevision)
}

func byRevision(a, b Record) int { return cmp.Compare(a.Revision, b.Revision) }
