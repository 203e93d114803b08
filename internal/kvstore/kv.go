package kvstore

import (
	"context"
	"time"
)

// KV is the interface between a store and its users. [Store] implements it in production.
// Tests wrap it to lose, delay or repeat replies and notifications.
//
// Only an acknowledged write proves anything. Reads and events are hints: a read may be
// served by a lagging replica, and an event may be lost, delayed or forged.
type KV interface {
	// Bucket returns the bucket's name.
	Bucket() string

	// Send queues a conditional write and returns without waiting for it to be published or
	// answered. Writes are published in the order of the calls. The caller must not modify
	// w.Value until the write has been published.
	//
	// If Send returns an error, it has sent nothing and will not call done. The error
	// matches [ErrInvalidKey], [ErrInvalidTTL], [ErrTooLarge], [ErrClosed] or
	// [ErrUnavailable]. Failures that only the connection can detect, such as draining, are
	// passed to done instead (see [NotSent]). Another is a stuck connection that has not
	// accepted the write within a second; the store then discards the write unless it is a
	// tombstone.
	//
	// Otherwise the store calls done at most once, on one of its own goroutines, when a
	// reply arrives, however late. done must not block. If no reply arrives, the outcome is
	// unknown: the server may have applied the write, may apply it later, or may never
	// apply it. Call forget when the reply is no longer of interest.
	Send(w Write, done func(Answer)) (forget func(), err error)

	// MaxValue returns the maximum size of a value in bytes, as far as the store knows
	// without I/O: [MaxRecord], or less if the server's max_payload is smaller.
	MaxValue() int

	// Denied returns an error that matches [ErrPermission] if the server has recently
	// denied this user a write to key, and nil otherwise. The server does not reply to a
	// write that it denies, so a caller whose write goes unanswered should check here.
	Denied(key string) error

	// Get returns the record or tombstone under key (see [Record.Deleted]). The error
	// matches [ErrNotFound] if there is neither. Other errors match [ErrInvalidKey],
	// [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
	//
	// If min is 0, any replica may serve the read, even one that lags. Otherwise min is a
	// revision of this key or any other, and the result comes from a state that contains
	// it. If the replica that replies lacks min, Get asks the stream leader.
	Get(ctx context.Context, key string, min uint64) (Record, error)

	// List returns the live records whose keys match pattern, which may contain NATS
	// wildcards. The records are in revision order and do not include tombstones. List
	// misses no key that is live in a state that contains revision min.
	//
	// All records come from the same state if a single request can read them. Otherwise a
	// record may come from a later state than the others or, if a replica lags, from an
	// earlier one (see Current). Options can make List read fewer records, or more.
	//
	// The error matches [ErrInvalidKey], [ErrInvalidOption], [ErrUnavailable],
	// [ErrPermission], [ErrClosed] or ctx's error.
	List(ctx context.Context, pattern string, min uint64, opts ...ListOption) (Listing, error)

	// Alone reports whether the bucket has neither replicas nor mirrors, as far as the
	// store knows without I/O. If so, no read can lag, whatever its min.
	Alone() bool

	// Room returns nil if the bucket has room for new locks and waiters, as far as the
	// store knows without I/O. Otherwise the error matches [ErrFull] and [ErrUnavailable].
	Room() error

	// Current reports whether List shows every key as of a state that contains min, as far
	// as the store knows without I/O. If it returns false, List may miss a key that was
	// deleted and written again.
	Current() bool

	// Watch calls deliver for every change to a key that matches pattern until the watch is
	// stopped. It does not deliver the initial state. deliver runs on the store's
	// goroutines, possibly concurrently, and must not block.
	//
	// The error matches [ErrNoWatch] if the bucket does not publish its changes,
	// [ErrUnavailable] and the connection's error if the connection is closed, and
	// otherwise [ErrInvalidKey] or [ErrClosed]. Watch waits up to 100 ms for the
	// connection, after which it returns and the subscription completes in the background.
	Watch(pattern string, deliver func(Event)) (Watch, error)

	// State asks the stream leader for its state and for the keys that match pattern, which
	// may be "" to request no keys. Errors match [ErrNotFound] if there is no bucket,
	// [ErrInvalidKey], [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
	State(ctx context.Context, pattern string) (State, error)

	// Now estimates the servers' wall-clock time without I/O. The estimate is the local
	// time, corrected by the leader's last reply (see [State.Time]), and is only a hint.
	Now() time.Time

	// Verify rereads the bucket's settings. It returns nil if the bucket is safe and is
	// still the one that the store opened. Otherwise the error matches [ErrBucketConfig],
	// [ErrNotFound] (deleted), [ErrRemade] (deleted and re-created), [ErrUnavailable],
	// [ErrPermission], [ErrClosed] or ctx's error. If the bucket was re-created with unsafe
	// settings, the error matches both ErrRemade and ErrBucketConfig. It matches [ErrFull]
	// if the bucket is safe but leaves too little room for renewals.
	Verify(ctx context.Context) error

	// OnConnection registers fn to be called when the connection changes, beginning with
	// the first write or watch, and when the bucket has to be verified (Doubtful). fn must
	// not block. Calling stop unregisters fn.
	OnConnection(fn func(ConnState)) (stop func())

	// Healthy returns nil if the connection is up and the server responds to writes, as far
	// as the store knows without I/O. Otherwise the error matches [ErrUnavailable]; see
	// [Store.Healthy].
	Healthy() error

	// Close ends the store's subscriptions and goroutines and waits for them to finish. The
	// connection belongs to the caller and stays open.
	Close()
}

// NoRevision is a revision that no record ever has. The stream leader rejects a write that
// expects it, and its reply names the key's last revision. That reply travels the same
// route as notifications, so it also proves that earlier subscriptions are in place. A
// reply to a read or to State proves nothing about subscriptions, because another replica
// may have sent it, and in a cluster, requests to the JetStream API take other routes.
const NoRevision = 1e18 - 1

// MaxRecord is the maximum size of a record's value, in bytes.
const MaxRecord = 16 << 10

// Write is a conditional write of a record or, if Delete is set, of a tombstone.
type Write struct {
	// Key is the key to write.
	Key string
	// Value is the record's value. A tombstone may carry one too.
	Value []byte
	// Expect is the revision that the key must have for the server to accept the write, or
	// 0 if the key must not exist.
	Expect uint64
	// Guard, if set, is the literal key that must have revision Expect, instead of Key. It
	// is never a pattern, because wildcard expectations are unsafe on replicated streams.
	Guard string
	// TTL is how long the server keeps the record, rounded up to whole seconds. It is
	// required for a record, which would otherwise never expire. For a tombstone it
	// defaults to one second.
	TTL time.Duration
	// Delete means that a tombstone is written instead of a record.
	Delete bool
}

// Answer is the outcome of a [Write].
type Answer struct {
	// Revision is the revision of the write, if it was acknowledged.
	Revision uint64
	// Err is nil if the write was acknowledged. It is a *[ConflictError], which matches
	// [ErrConflict], if the key had a different revision, and it matches [ErrInFlight] if
	// another write to the key or its guard was in flight. Otherwise it is the server's
	// refusal, or the reason that no reply will arrive.
	Err error
}

// Record is what the bucket stores under a key.
type Record struct {
	Key      string
	Value    []byte
	Revision uint64
	// Time is when the server stored the record, by the server's clock.
	Time time.Time
	// TTL is how long after Time the server deletes the record. 0 means never.
	TTL time.Duration
	// Deleted marks a tombstone.
	Deleted bool
}

// Remaining estimates how long the record has left to live at wall-clock time now (see
// [KV.Now]). The result is between 0 and TTL, or negative for a record without a TTL, which
// never expires. Use it only to decide when to attempt a write.
func (r Record) Remaining(now time.Time) time.Duration {
	if r.TTL <= 0 {
		return -1
	}
	return min(max(r.TTL-now.Sub(r.Time), 0), r.TTL)
}

// Listing is the result of [KV.List].
type Listing struct {
	Records []Record
	// Revision is a revision that the listed state contains.
	Revision uint64
	// Beside is the record or tombstone under the key passed to [Beside]. It is zero if
	// there is neither.
	Beside Record
	// More reports whether [AtMost] left out any records. Left is their number, or 0 if it
	// is unknown.
	More bool
	Left int
	// Whole reports whether List read everything, including the records that [From]
	// excludes, because reading only part of the list was not possible.
	Whole bool
	// Keys are the keys that match the pattern, according to the leader. They are set only
	// if [InParts] made List read no records.
	Keys []string
}

// ListOption configures a call to [KV.List].
type ListOption func(*listing)

// listing holds the options of a List call.
type listing struct {
	from   uint64
	beside string
	also   []string
	atMost int
	dead   bool // include tombstones
	named  bool // the leader names the keys
	keys   []string
	parts  bool

	reached uint64 // a revision that the bucket has reached
}

// State is a server's view of the stream. If the view is complete, that server is the
// leader.
type State struct {
	// LastRevision is the last revision that the responding server has applied.
	LastRevision uint64
	// Keys are the keys that match the pattern, including those of tombstones.
	Keys []string
	// Created is when the bucket was created. It distinguishes the bucket from any later
	// bucket of the same name.
	Created time.Time
	// Time is the server's wall-clock time when it replied.
	Time time.Time
	// Replicas is the number of servers that can answer for the stream. It can exceed the
	// configured number while the cluster is moving the stream.
	Replicas int
	// Notifies reports whether the bucket publishes its changes. If it does not, watches
	// receive no events.
	Notifies bool
	// Complete reports whether Keys is known to contain every existing key. That is the
	// case if the reply came from the only server, or from one that leads the stream and
	// says since when. While a stream has no leader, each of its replicas replies,
	// including one that is still catching up and lacks the records that replaced older
	// ones. If a leader is elected while a replica is preparing its reply, the reply even
	// names that leader. Only a complete State proves that there is nothing under a key.
	Complete bool
}

// EventKind is the kind of change that an [Event] reports.
type EventKind uint8

const (
	// Put means that a record was written.
	Put EventKind = iota + 1
	// Deleted means that a tombstone was written.
	Deleted
	// Expired means that the TTL of the last record seen has ended according to this
	// client's clock. Only a watch that tracks the record delivers this event. The server
	// deletes the record at about the same time, but sends no message.
	Expired
	// Recheck means that events may have been missed, for example because the connection
	// was lost and restored, or because events arrived faster than they could be delivered
	// and some were dropped. The event names no key.
	Recheck
)

// Event is a hint that something changed. Any user who is allowed to publish on the
// notification subject can forge one.
type Event struct {
	Kind   EventKind
	Record Record
	// Before is the record that a Put replaced or that a Deleted event ended. It is set
	// only if this watch tracks records, has seen that record, and has not yet reported
	// that it ended.
	Before Record
	// Silent is set on a Recheck if the bucket no longer publishes its changes.
	Silent bool
	// Since is set on a Recheck caused by dropped events. It is a server time before which
	// no event was dropped, or zero if that is unknown.
	Since time.Time
}

// Watch is a running watch.
type Watch interface {
	// Track makes the watch deliver an [Expired] event when r's TTL ends, unless the watch
	// has seen a newer record of the key. Records written later are tracked in the same
	// way. If r is the zero Record, only later records are tracked.
	Track(r Record)
	// Stop ends the watch. A delivery that is already in progress may still finish.
	Stop()
}

// ConnState is the state of the connection.
type ConnState uint8

const (
	// Connected means that the connection is up again.
	Connected ConnState = iota + 1
	// Disconnected means that the connection is down and is being re-established.
	Disconnected
	// Closed means that the connection has been closed for good.
	Closed
	// Doubtful means that the connection is unchanged but the bucket should be verified
	// (see Verify), because a reply suggests, for example, that the bucket was re-created
	// or that its settings have changed.
	Doubtful
)
