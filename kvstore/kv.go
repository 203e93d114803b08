package kvstore

import (
	"context"
	"time"
)

// KV is the contract between a store and what is built on it. [Store] is the
// production implementation; tests wrap it to lose, delay or repeat answers
// and notifications.
//
// Only an acknowledged write proves anything. Reads may come from a replica
// that lags, and events may be lost, late or forged: both are hints.
type KV interface {
	// Bucket returns the bucket's name.
	Bucket() string

	// Send publishes a conditional write and does not wait for its answer. It
	// can be held up all the same, by nats.go, which holds a mutex while it
	// writes to a network that is stuck (a minute at most).
	//
	// A non-nil error means that nothing was sent and never will be: done is
	// not called. Otherwise done is called at most once, on a goroutine of the
	// store, as soon as an answer arrives, however late that is; it must not
	// block. No answer leaves the outcome unknown: applied, never applied, or
	// applied later. The returned function drops interest in the answer.
	Send(w Write, done func(Answer)) (forget func(), err error)

	// Denied reports whether the server has lately refused this user writes to
	// key: nil, or an error matching [ErrPermission]. A refused write is not
	// answered, so whoever waits in vain asks here.
	Denied(key string) error

	// Get returns the record under key, deletions included (see
	// [Record.Deleted]), or an error matching [ErrNotFound] when there is none.
	//
	// With min = 0 any replica may answer, with a state that may lag. With
	// min > 0 (of this key or another) the answer is from a state that contains
	// revision min: when the first replica asked does not show that, the
	// stream's leader is asked.
	Get(ctx context.Context, key string, min uint64) (Record, error)

	// List returns the live records whose keys match a pattern (NATS
	// wildcards), deletions left out, in the order of their revisions. No key
	// is missed that is live in a state that contains revision min. They are
	// from one state where one request can read them all; otherwise a record
	// may be of a later state than the others, or of an older one where a
	// replica lags (see Current). Options read less of them, or one record more.
	List(ctx context.Context, pattern string, min uint64, opts ...ListOption) (Listing, error)

	// Alone says that the bucket has neither replicas nor mirrors, as far as is
	// known without I/O: then no read lags, whatever its min.
	Alone() bool

	// Current says that List shows each key as it was in a state that contains min,
	// as far as is known without I/O. Otherwise it may miss a key that was deleted
	// and written again.
	Current() bool

	// Watch calls deliver for every change of a key that matches pattern
	// until the watch is stopped. It delivers no initial state. deliver runs
	// on goroutines of the store, one call at a time is not guaranteed, and it
	// must not block.
	//
	// It returns an error matching [ErrNoWatch] for a bucket without
	// re-publishing, and the connection's error when it is closed.
	Watch(pattern string, deliver func(Event)) (Watch, error)

	// State asks the stream's leader for its state and for the keys under
	// pattern ("" for none).
	State(ctx context.Context, pattern string) (State, error)

	// Now estimates the wall clock of the servers, without I/O: the local clock,
	// corrected by what the leader said last (see [State.Time]). It is a hint.
	Now() time.Time

	// Verify looks at the bucket again: nil when it is the one that was opened
	// and safe; otherwise an error matching [ErrBucketConfig],
	// [ErrNotFound] (it was deleted), [ErrRemade] (deleted and made again) or
	// [ErrUnavailable].
	Verify(ctx context.Context) error

	// OnConnection registers fn to be told of changes of the connection, from
	// the first write or watch on. fn must not block. The returned function
	// takes it off again.
	OnConnection(fn func(ConnState)) (stop func())

	// Healthy reports whether the connection is up and writes are answered, without
	// I/O: nil, or an error matching [ErrUnavailable]; see [Store.Healthy].
	Healthy() error

	// Close ends subscriptions and goroutines of the store and waits for them.
	// The connection stays open: it is the caller's.
	Close()
}

// NoRevision is a revision that no record ever has. A write that expects it is
// refused by the stream's leader, with the revision that the key has. The answer
// also proves that the subscriptions made before are in place: it travels the way
// of the notifications. An answer to a read or to State does not: another replica
// may give it, and in a cluster requests of the JetStream API take other routes.
const NoRevision = 1e18 - 1

// Write is one conditional write: a record, or with Delete a tombstone.
type Write struct {
	// Key is the key written.
	Key string
	// Value is the record's value. A tombstone may carry one too.
	Value []byte
	// Expect is the revision that must be the key's last for the write to be
	// accepted; 0 means that the key must not exist.
	Expect uint64
	// Guard, when set, is the literal key that Expect is about instead of Key.
	// It is never a pattern: wildcard expectations are unsafe on replicated
	// streams.
	Guard string
	// TTL is how long the server keeps the record, rounded up to whole
	// seconds. It is required: a record without one would never end. A
	// tombstone's default is one second.
	TTL time.Duration
	// Delete writes a tombstone.
	Delete bool
}

// Answer is the server's answer to a [Write].
type Answer struct {
	// Revision is the revision of the acknowledged write.
	Revision uint64
	// Err is nil for an acknowledged write. It is a *[ConflictError] (matches
	// [ErrConflict]) when the expectation did not hold, matches [ErrInFlight]
	// when a write to the key or its guard was under way, and otherwise says
	// what the server refused.
	Err error
}

// Record is what is stored under a key.
type Record struct {
	Key      string
	Value    []byte
	Revision uint64
	// Time is when the server stored the record, by the server's clock.
	Time time.Time
	// TTL is how long after Time the server removes it; 0: never.
	TTL time.Duration
	// Deleted marks a tombstone.
	Deleted bool
}

// Remaining estimates how long the record has left at the wall-clock time
// now (see [KV.Now]), between 0 and TTL. It is a hint for when to try. A record without a TTL has no end: the
// result is then negative.
func (r Record) Remaining(now time.Time) time.Duration {
	if r.TTL <= 0 {
		return -1
	}
	return min(max(r.TTL-now.Sub(r.Time), 0), r.TTL)
}

// Listing is the answer to [KV.List].
type Listing struct {
	Records []Record
	// Revision is a revision that the listed state contains.
	Revision uint64
	// Beside is the record under the key of [Beside], a tombstone too; zero when
	// there is none.
	Beside Record
	// More: there were more than [AtMost] says, and Records are not all there is.
	More bool
}

// ListOption is an option of [KV.List].
type ListOption func(*listing)

// listing is what a List reads.
type listing struct {
	from   uint64
	beside string
	atMost int
}

// From leaves out the records of revisions below revision.
func From(revision uint64) ListOption { return func(l *listing) { l.from = revision } }

// Beside reads the record under key too. Where one request cannot do that it is
// read first, and the list shows a state that contains it.
func Beside(key string) ListOption { return func(l *listing) { l.beside = key } }

// AtMost lets the answer end after n records, tombstones and that of [Beside]
// among them. Where one request cannot read a list, it is read whole, or not at all
// when there is a live record under the key of Beside.
func AtMost(n int) ListOption { return func(l *listing) { l.atMost = n } }

// State is the leader's view of the stream.
type State struct {
	// LastRevision is the last revision the answering server has applied.
	LastRevision uint64
	// Keys are the keys under the pattern asked for, tombstones included.
	Keys []string
	// Created is when the bucket was made: a different time is another bucket.
	Created time.Time
	// Time is the server's wall clock when it answered.
	Time time.Time
	// Replicas is how many servers may answer for the stream: its replicas, and
	// more while it is moved.
	Replicas int
	// Leader is the name of the stream's leader; empty when the answering
	// server knows of none. A server outside a cluster names itself.
	Leader string
}

// EventKind says what an [Event] tells.
type EventKind uint8

const (
	// Put: a record was written.
	Put EventKind = iota + 1
	// Deleted: a tombstone was written.
	Deleted
	// Expired: the TTL of the last record seen has ended by this client's clock, in
	// a watch that tracks that. The server removes the record about now, without a
	// notification.
	Expired
	// Recheck: events may have been missed (the connection was lost and is
	// back). The event names no key.
	Recheck
)

// Event is a hint that something changed. Anybody who may publish to the
// notification subject can forge one.
type Event struct {
	Kind   EventKind
	Record Record
	// Before is the record that a Put has replaced or a Deleted event has ended, if
	// this watch tracks records, has seen that one and has not delivered its end.
	Before Record
}

// Watch is a running watch.
type Watch interface {
	// Track makes the end of r's TTL an [Expired] event, unless a newer
	// record of the key was seen, and so the ends of all records that are
	// written from then on. With the zero record it does only the latter.
	Track(r Record)
	// Stop ends the watch. A delivery under way may still finish.
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
)
