package kvstore

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	// ErrExists: the key already has a record. It matches [ErrConflict] too.
	ErrExists = errors.New("key exists")
	// ErrConflict: the expected revision was not the last one.
	ErrConflict = errors.New("revision conflict")
	// ErrInFlight: another write to the key or its guard is being replicated, and may
	// succeed or fail. Try again after a short pause.
	ErrInFlight = errors.New("a write is in flight")
	// ErrNotFound: there is no record under the key, or no bucket.
	ErrNotFound = errors.New("key not found")
	// ErrInvalid: an argument is not valid. The store sent nothing. The errors below match it.
	ErrInvalid = errors.New("invalid argument")
	// ErrInvalidKey: the key is not valid.
	ErrInvalidKey error = invalid("invalid key")
	// ErrInvalidTTL: the TTL is zero, negative or above 366 days.
	ErrInvalidTTL error = invalid("invalid TTL")
	// ErrInvalidOption: an option is nil, or out of its range.
	ErrInvalidOption error = invalid("invalid option")
	// ErrTooLarge: the record is larger than the server (max_payload), the bucket
	// (max_msg_size) or the protocol ([MaxRecord]) allows. Nothing was written. It matches
	// [ErrInvalidOption].
	ErrTooLarge = fmt.Errorf("record too large: %w", ErrInvalidOption)
	// ErrBucketConfig: the settings of the bucket are not safe. The error is a
	// *[ConfigError] or joins several.
	ErrBucketConfig = errors.New("unsuitable bucket configuration")
	// ErrUnavailable: the server or JetStream gave no usable answer.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrNoStream: no server accepts the write. The bucket was deleted, or its stream
	// currently has no leader. It comes with [ErrUnavailable].
	ErrNoStream = errors.New("no stream takes the write")
	// ErrFull: the bucket has no room for another record, or reserves the rest for renewals
	// and waiters; see [Room]. It comes with [ErrUnavailable].
	ErrFull = errors.New("bucket is full")
	// ErrPermission: the server denies this user the subject.
	ErrPermission = errors.New("permission denied")
	// ErrWithheld: only the stream's leader can answer this read, and the server does not
	// let this user, or its account, ask it. The next read may succeed: a replica catches
	// up, and allow_direct can be switched on. It comes with [ErrUnavailable].
	ErrWithheld = errors.New("the leader's read is withheld")
	// ErrNoWatch: the bucket does not publish its changes, so a watch is impossible.
	ErrNoWatch = errors.New("bucket does not re-publish its changes")
	// ErrRemade: the bucket was deleted and re-created since the last check. Every record
	// is lost.
	ErrRemade = errors.New("bucket was deleted and re-created")
	// ErrConnectionClosed: the connection was closed for good, and no message sent on it
	// will be answered. It is nats.ErrConnectionClosed, and comes with [ErrUnavailable].
	ErrConnectionClosed = nats.ErrConnectionClosed
	// ErrDraining: the connection is draining, and no longer receives anything. It is
	// nats.ErrConnectionDraining, and comes with [ErrUnavailable].
	ErrDraining = nats.ErrConnectionDraining
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

// Refused reports whether err is a refusal of a write, which another try may run into
// again: by the server, for example because the bucket is full, by this connection's
// message limit, or for lack of permission. A conflict is not a refusal, nor is the lack of
// an answer, a leader or a connection.
func Refused(err error) bool {
	_, answered := errors.AsType[*jetstream.APIError](err)
	return (answered || errors.Is(err, ErrPermission) || errors.Is(err, ErrTooLarge) || errors.Is(err, nats.ErrMaxPayload)) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrInFlight)
}

// ConflictError names the revision that made the server refuse a write. It matches
// [ErrConflict], and [ErrExists] if no record was expected.
type ConflictError struct {
	Key string
	// Expected is the revision that the write expected.
	Expected uint64
	// Last is the revision that the server named, or 0 if there is no record.
	Last uint64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("write to %q expected revision %d, the server has %d", e.Key, e.Expected, e.Last)
}

// Is makes the error match its sentinels.
func (e *ConflictError) Is(target error) bool {
	return target == ErrConflict || (target == ErrExists && e.Expected == 0)
}

// ConfigError names one setting of the bucket that is not safe for records with a TTL, or a
// server that is too old. It matches [ErrBucketConfig].
type ConfigError struct {
	Bucket  string
	Setting string // the stream's setting, by its JSON name, or "nats-server"
	Value   string // the present value
	Want    string // the required value
	Repair  string // how to get there
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("bucket %q: %s is %s, must be %s: %s", e.Bucket, e.Setting, e.Value, e.Want, e.Repair)
}

// Is makes the error match [ErrBucketConfig].
func (e *ConfigError) Is(target error) bool { return target == ErrBucketConfig }

// invalid is an error that matches [ErrInvalid].
type invalid string

func (e invalid) Error() string { return string(e) }

// Is makes the error match [ErrInvalid].
func (e invalid) Is(target error) bool { return target == ErrInvalid }
