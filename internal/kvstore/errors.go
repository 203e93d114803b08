package kvstore

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	// ErrExists means that the key already has a record. The error also matches
	// [ErrConflict].
	ErrExists = errors.New("key exists")
	// ErrConflict means that the key's last revision was not the expected one.
	ErrConflict = errors.New("revision conflict")
	// ErrInFlight means that another write to the key or its guard is being replicated and
	// may still succeed or fail. Try again after a short pause.
	ErrInFlight = errors.New("a write is in flight")
	// ErrNotFound means that the key has no record, or that the bucket does not exist.
	ErrNotFound = errors.New("key not found")
	// ErrInvalid means that an argument is invalid. Nothing was written. [ErrInvalidKey],
	// [ErrInvalidTTL], [ErrInvalidOption] and [ErrTooLarge] match it.
	ErrInvalid = errors.New("invalid argument")
	// ErrInvalidKey means that a key, a pattern or the bucket's name is invalid.
	ErrInvalidKey error = invalid("invalid key")
	// ErrInvalidTTL means that the TTL is zero, negative or longer than 366 days.
	ErrInvalidTTL error = invalid("invalid TTL")
	// ErrInvalidOption means that an option is nil or out of range.
	ErrInvalidOption error = invalid("invalid option")
	// ErrTooLarge means that the record exceeds the limit of the server (max_payload), the
	// bucket (max_msg_size) or the protocol ([MaxRecord]). Nothing was written. The error
	// also matches [ErrInvalidOption].
	ErrTooLarge = fmt.Errorf("record too large: %w", ErrInvalidOption)
	// ErrBucketConfig means that the bucket's settings are unsafe. The error is a
	// *[ConfigError], or joins several of them.
	ErrBucketConfig = errors.New("unsuitable bucket configuration")
	// ErrUnavailable means that the server or JetStream gave no usable response.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrNoStream means that no server accepts the write, because the bucket was deleted or
	// its stream currently has no leader. The error also matches [ErrUnavailable].
	ErrNoStream = errors.New("no stream accepts the write")
	// ErrFull means that the bucket has no room for another record, or that the remaining
	// room is reserved for renewals and waiters; see [Room]. The error also matches
	// [ErrUnavailable].
	ErrFull = errors.New("bucket is full")
	// ErrPermission means that the server denies this user access to the subject.
	ErrPermission = errors.New("permission denied")
	// ErrWithheld means that only the stream leader can serve this read, but the server
	// does not let this user, or its account, ask the leader. A later read may succeed,
	// because a replica may catch up or someone may enable allow_direct. The error also
	// matches [ErrUnavailable].
	ErrWithheld = errors.New("the leader cannot be read")
	// ErrNoWatch means that the bucket does not publish its changes and so cannot be
	// watched.
	ErrNoWatch = errors.New("bucket does not republish its changes")
	// ErrRemade means that the bucket was deleted and re-created since the last check, so
	// all records are lost.
	ErrRemade = errors.New("bucket was deleted and re-created")
	// ErrConnectionClosed means that the connection was closed for good, so no message sent
	// on it will be answered. It is nats.ErrConnectionClosed. The error also matches
	// [ErrUnavailable].
	ErrConnectionClosed = nats.ErrConnectionClosed
	// ErrDraining means that the connection is draining and no longer receives anything. It
	// is nats.ErrConnectionDraining. The error also matches [ErrUnavailable].
	ErrDraining = nats.ErrConnectionDraining
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("store closed")
)

// Refused reports whether err means that a write was refused and that a retry may be
// refused too. The refusal may come from the server (for example because the bucket is
// full), from this connection's message size limit, or from a missing permission. A
// conflict is not a refusal, and neither is the lack of a reply, a leader or a connection.
func Refused(err error) bool {
	_, answered := errors.AsType[*jetstream.APIError](err)
	return (answered || errors.Is(err, ErrPermission) || errors.Is(err, ErrTooLarge) || errors.Is(err, nats.ErrMaxPayload)) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrInFlight)
}

// ConflictError reports the revision that made the server refuse a write. It matches
// [ErrConflict], and also [ErrExists] if no record was expected.
type ConflictError struct {
	Key string
	// Expected is the revision that the write expected.
	Expected uint64
	// Last is the actual revision according to the server, or 0 if there is no record.
	Last uint64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("write to %q expected revision %d, but the server has %d", e.Key, e.Expected, e.Last)
}

// Is reports whether target is [ErrConflict] or, if no record was expected, [ErrExists].
func (e *ConflictError) Is(target error) bool {
	return target == ErrConflict || (target == ErrExists && e.Expected == 0)
}

// ConfigError describes a bucket setting that is unsafe for records with a TTL, or a server
// that is too old. It matches [ErrBucketConfig].
type ConfigError struct {
	Bucket  string
	Setting string // JSON name of the stream's setting, or "nats-server"
	Value   string // the current value
	Want    string // the required value
	Repair  string // how to fix it
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("bucket %q: %s is %s, must be %s: %s", e.Bucket, e.Setting, e.Value, e.Want, e.Repair)
}

// Is reports whether target is [ErrBucketConfig].
func (e *ConfigError) Is(target error) bool { return target == ErrBucketConfig }

// invalid is an error that matches [ErrInvalid].
type invalid string

func (e invalid) Error() string { return string(e) }

// Is reports whether target is [ErrInvalid].
func (e invalid) Is(target error) bool { return target == ErrInvalid }
