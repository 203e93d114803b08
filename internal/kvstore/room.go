package kvstore

import (
	"fmt"
	"math"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Room returns nil if a bucket has room for new locks and waiters, and otherwise an error
// that matches [ErrFull] and [ErrUnavailable]. It does no I/O.
//
// Servers that replicate a stream count a new record in full until it has replaced its
// predecessor, so a full bucket refuses to renew held locks. With two or more replicas, the
// last quarter of max_bytes and of max_msgs is therefore reserved for renewals. A single
// server accepts any replacement that is no larger than the record it replaces, and has
// room for all renewals until the bucket is full. There, only a sixteenth, or room for a
// few records, is reserved for the claims of waiters. If new waiters could take the room
// that a departing holder leaves, every waiter would wait forever.
func Room(info *jetstream.StreamInfo) error {
	for _, l := range limits(info) {
		if l.left() < 0 {
			return fmt.Errorf("%w: bucket %q: %w: %d of %s %d are used, and the last %d are reserved for renewals and existing waiters; raise %[5]s",
				ErrUnavailable, strings.TrimPrefix(info.Config.Name, streamName("")), ErrFull, l.used, l.setting, l.max, l.kept)
		}
	}
	return nil
}

// limit is a size limit of a bucket, part of which new records must leave free.
type limit struct {
	setting string
	used    uint64
	max     int64
	record  int64 // how much a new record uses
	kept    int64 // how much new records must leave free
}

// left returns how much room new records may still use.
func (l limit) left() int64 { return l.max - l.kept - int64(l.used) }

// limits returns the limits that are set on a bucket.
func limits(info *jetstream.StreamInfo) (all []limit) {
	c, st := info.Config, info.State
	add := func(setting string, used uint64, most, record int64) {
		if most <= 0 {
			return
		}
		kept := most - most/4*3
		if c.Replicas < 2 {
			kept = min(kept, max(most/16, 4*record))
		}
		all = append(all, limit{setting, used, most, record, kept})
	}
	average := int64(st.Bytes / max(st.Msgs, 1))
	add("max_bytes", st.Bytes, c.MaxBytes, max(2*average, 512))
	add("max_msgs", st.Msgs, c.MaxMsgs, 1)
	return all
}

// roomUntil returns a revision up to which the bucket uses at most half of its remaining
// room, no matter what is written, because each write adds at most one record.
func roomUntil(info *jetstream.StreamInfo) uint64 {
	until := uint64(math.MaxUint64)
	for _, l := range limits(info) {
		until = min(until, info.State.LastSeq+uint64(max(l.left()/2, l.max/32)/l.record))
	}
	return until
}
