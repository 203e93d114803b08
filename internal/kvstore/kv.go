package kvstore

import (
	"context"
	"time"
)

// KV is the contract between a store and its users. [Store] implements it in
// production. Tests wrap it to lose, delay or repeat answers and notifications.
//
// Only an acknowledged write proves anything. Reads and events are hints: a read may
// come from a lagging replica, and an event may be lost, late or forged.
type KV interface {
	// Bucket returns the bucket's name.
	Bucket() string

	// Send queues a conditional write. Writes are published in the order of the calls.
	// Send waits neither for that nor for the answer, and the value must not change
	// until the write is published.
	//
	// A non-nil error means that Send has sent nothing and will not call done. It
	// matches [ErrInvalidKey], [ErrInvalidTTL], [ErrTooLarge], [ErrClosed] or
	// [ErrUnavailable]. Failures that only the connection can report, for example that
	// it is draining, arrive as an Answer (see [NotSent]). So does the failure of a
	// write that a stuck connection has not accepted for a second: the store does not
	// send it, unless it is a tombstone.
	//
	// Otherwise the store calls done at most once, on a goroutine of its own, when an
	// answer arrives, however late. done must not block. Without an answer the outcome
	// is unknown: the server has applied the write, will apply it later, or never will.
	// The returned function drops interest in the answer.
	Send(w Write, done func(Answer)) (forget func(), err error)

	// MaxValue returns the largest value in bytes, as far as the store knows without
	// I/O: [MaxRecord], or less if the server's max_payload is smaller.
	MaxValue() int

	// Denied reports whether the server has recently refused this user writes to key.
	// It returns nil or an error matching [ErrPermission]. The server does not answer a
	// write that it refuses for this reason, so a caller that waits in vain asks here.
	Denied(key string) error

	// Get returns the record under key, or the tombstone there (see [Record.Deleted]).
	// The error matches [ErrNotFound] when the key has neither. Other errors match
	// [ErrInvalidKey], [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
	//
	// With min = 0 any replica may answer, and its state may lag. With min > 0, a
	// revision of this key or another, the answer comes from a state that contains
	// revision min. If the first replica lacks it, Get asks the stream's leader.
	Get(ctx context.Context, key string, min uint64) (Record, error)

	// List returns the live records whose keys match a pattern (NATS wildcards), in
	// revision order, without tombstones. It misses no key that is live in a state that
	// contains revision min.
	//
	// All records come from one state if one request can read them. Otherwise a record
	// may be from a later state than the others, or from an older one if a replica lags
	// (see Current). Options make List read fewer records, or more.
	//
	// The error matches [ErrInvalidKey], [ErrInvalidOption], [ErrUnavailable],
	// [ErrPermission], [ErrClosed] or ctx's error.
	List(ctx context.Context, pattern string, min uint64, opts ...ListOption) (Listing, error)

	// Alone reports whether the bucket has neither replicas nor mirrors, as far as the
	// store knows without I/O. If so, no read lags, whatever its min.
	Alone() bool

	// Room returns nil if the bucket may take new locks and waiters, as far as the
	// store knows without I/O. Otherwise the error matches [ErrFull] and
	// [ErrUnavailable].
	Room() error

	// Current reports whether List shows each key as it was in a state that contains min,
	// as far as the store knows without I/O. Otherwise List may miss a key that was
	// deleted and written again.
	Current() bool

	// Watch calls deliver for every change to a key that matches pattern, until the
	// caller stops the watch. It delivers no initial state. deliver runs on the store's
	// goroutines, possibly several calls at a time, and must not block.
	//
	// The error matches [ErrNoWatch] for a bucket that does not publish its changes,
	// and otherwise [ErrInvalidKey] or [ErrClosed]. For a closed connection it matches
	// [ErrUnavailable] and the connection's error. Watch waits for the connection for
	// at most 100 ms; a subscription that takes longer is still made.
	Watch(pattern string, deliver func(Event)) (Watch, error)

	// State asks the stream's leader for its state and for the keys under
	// pattern ("" for none). Errors match [ErrNotFound] when there is no bucket,
	// [ErrInvalidKey], [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
	State(ctx context.Context, pattern string) (State, error)

	// Now estimates the wall clock of the servers, without I/O. It is the local clock,
	// corrected by the leader's last answer (see [State.Time]), and a hint.
	Now() time.Time

	// Verify reads the settings of the bucket again. It returns nil if this is the
	// bucket that the store opened and it is safe. The error matches [ErrBucketConfig],
	// [ErrNotFound] (deleted), [ErrRemade] (deleted and re-created), [ErrUnavailable],
	// [ErrPermission], [ErrClosed] or ctx's error. It matches ErrRemade and
	// ErrBucketConfig if the bucket was re-created unfit, and [ErrFull] if the bucket
	// is safe but leaves too little room for renewals.
	Verify(ctx context.Context) error

	// OnConnection registers fn. The store calls it when the connection changes, from
	// the first write or watch on, and when the bucket has to be verified (Doubtful).
	// fn must not block. The returned function removes it.
	OnConnection(fn func(ConnState)) (stop func())

	// Healthy returns nil if the connection is up and the server answers writes, as far
	// as the store knows without I/O. Otherwise the error matches [ErrUnavailable]; see
	// [Store.Healthy].
	Healthy() error

	// Close ends the store's subscriptions and goroutines, and waits for them. The
	// connection belongs to the caller and stays open.
	Close()
}

// NoRevision is a revision that no record ever has. The stream's leader refuses a write
// that expects it, and names the key's last revision. The refusal also proves that
// earlier subscriptions are in place, because it travels the same way as the
// notifications. An answer to a read or to State proves nothing about subscriptions:
// another replica may give it, and in a cluster requests to the JetStream API take
// other routes.
const NoRevision = 1e18 - 1

// MaxRecord is the largest value a record may have, in bytes.
const MaxRecord = 16 << 10

// Write is one conditional write: a record, or with Delete a tombstone.
type Write struct {
	// Key is the key written.
	Key string
	// Value is the record's value. A tombstone may carry one too.
	Value []byte
	// Expect is the last revision of the key. The server refuses the write if the key
	// has another one. 0 means that the key must not exist.
	Expect uint64
	// Guard, if set, is the literal key whose revision Expect names, instead of Key. It
	// is never a pattern: wildcard expectations are unsafe on replicated streams.
	Guard string
	// TTL tells the server how long to keep the record. It is rounded up to whole
	// seconds. A record needs a TTL, or it would never expire. The default for a
	// tombstone is one second.
	TTL time.Duration
	// Delete writes a tombstone.
	Delete bool
}

// Answer is the server's answer to a [Write].
type Answer struct {
	// Revision is the revision of the acknowledged write.
	Revision uint64
	// Err is nil for an acknowledged write. If the key had another revision, it is a
	// *[ConflictError], which matches [ErrConflict]. It matches [ErrInFlight] if
	// another write to the key or its guard was in flight. Otherwise it is the server's
	// refusal.
	Err error
}

// Record is what the bucket stores under a key.
type Record struct {
	Key      string
	Value    []byte
	Revision uint64
	// Time is the server's time when it stored the record.
	Time time.Time
	// TTL is how long after Time the server removes the record. 0 means never.
	TTL time.Duration
	// Deleted marks a tombstone.
	Deleted bool
}

// Remaining estimates how long the record has left at the wall-clock time now (see
// [KV.Now]), between 0 and TTL. Use it only to decide when to try. The result is
// negative for a record without a TTL, which never expires.
func (r Record) Remaining(now time.Time) time.Duration {
	if r.TTL <= 0 {
		return -1
	}
	return min(max(r.TTL-now.Sub(r.Time), 0), r.TTL)
}

// Listing is the answer to [KV.List].
type Listing struct {
	Records []Record
	// Revision is a revision that the state of the list contains.
	Revision uint64
	// Beside is the record or the tombstone under the key of [Beside]. It is zero if
	// there is neither.
	Beside Record
	// More reports whether [AtMost] left out records, and Left how many; 0 if unknown.
	More bool
	Left int
	// Whole reports that List read everything, including the records before [From], because
	// it could not read only part of it.
	Whole bool
	// Keys are the keys under the pattern, as the leader names them, if [InParts] made
	// List read no records.
	Keys []string
}

// ListOption is an option of [KV.List].
type ListOption func(*listing)

// listing holds the options of a List.
type listing struct {
	from   uint64
	beside string
	also   []string
	atMost int
	dead   bool // tombstones too
	named  bool // by the leader
	keys   []string
	parts  bool

	reached uint64 // a revision of the bucket
}

// State is a server's view of the stream: the leader's, if it is complete.
type State struct {
	// LastRevision is the last revision that the answering server has applied.
	LastRevision uint64
	// Keys are the keys under the pattern, tombstones included.
	Keys []string
	// Created is when the bucket was created. A bucket with a different time is a
	// different bucket.
	Created time.Time
	// Time is the server's wall clock when it answered.
	Time time.Time
	// Replicas is the number of servers that may answer for the stream: its replicas,
	// and more while the cluster moves the stream.
	Replicas int
	// Notifies reports whether the bucket publishes its changes. If not, watches get no
	// events.
	Notifies bool
	// Complete reports that Keys misses no existing key: the answer came from the only
	// server, or from one that leads the stream and says since when. While a stream has
	// no leader, each of its replicas answers, even one that is catching up and lacks
	// the records that replaced older ones. If a leader is elected during the answer,
	// such an answer even names it. Only a complete State proves that there is nothing
	// under a key.
	Complete bool
}

// EventKind is the kind of change that an [Event] reports.
type EventKind uint8

const (
	// Put: a record was written.
	Put EventKind = iota + 1
	// Deleted: a tombstone was written.
	Deleted
	// Expired: the TTL of the last record seen has ended by this client's clock, in a
	// watch that tracks it. The server removes the record at about this time, without
	// sending a message.
	Expired
	// Recheck: events may have been missed. The connection was lost and is back, or
	// events came faster than they could be delivered and some were dropped. The event
	// names no key.
	Recheck
)

// Event is a hint that something changed. Any user that may publish to the
// notification subject can forge one.
type Event struct {
	Kind   EventKind
	Record Record
	// Before is the record that a Put has replaced or that a Deleted event has ended.
	// It is set if this watch tracks records, has seen that record and has not
	// delivered its end.
	Before Record
	// Silent is true for a Recheck if the bucket no longer publishes its changes.
	Silent bool
	// Since, for a Recheck because of dropped events, is a server time before which
	// none was dropped. It is zero if that is unknown.
	Since time.Time
}

// Watch is a running watch.
type Watch interface {
	// Track makes the end of r's TTL an [Expired] event, unless the watch has seen a
	// newer record of the key. From then on it does the same for every record that is
	// written. For the zero record it does only the latter.
	Track(r Record)
	// Stop ends the watch. A delivery in progress may still finish.
	Stop()
}

// ConnState is the state of the connection.
type ConnState uint8

const (
	// Connected: the connection is up again.
	Connected ConnState = iota + 1
	// Disconnected: the connection is down and being re-established.
	Disconnected
	// Closed: the connection has been closed for good.
	Closed
	// Doubtful: the connection is unchanged, but an answer shows that the bucket may
	// have been re-created, or have settings other than those last verified. See
	// Verify.
	Doubtful
)
