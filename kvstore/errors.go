package kvstore

import (
	"errors"
	"fmt"
)

var (
	// ErrExists: the key already has a record. It matches [ErrConflict] too.
	ErrExists = errors.New("key exists")
	// ErrConflict: the expected revision was not the last one.
	ErrConflict = errors.New("revision conflict")
	// ErrInFlight: another write to the key or its guard is being replicated.
	// It says nothing about who will win: try again after a short pause.
	ErrInFlight = errors.New("a write is in flight")
	// ErrNotFound: there is no record under the key.
	ErrNotFound = errors.New("key not found")
	// ErrInvalidKey: the key cannot be one; nothing was sent.
	ErrInvalidKey = errors.New("invalid key")
	// ErrInvalidTTL: the TTL is zero, negative or too large; nothing was sent.
	ErrInvalidTTL = errors.New("invalid TTL")
	// ErrInvalidOption: an option is nil; nothing was sent.
	ErrInvalidOption = errors.New("invalid option")
	// ErrBucketConfig: the bucket is set up in a way that is not safe. The
	// error is a *[ConfigError] or joins several.
	ErrBucketConfig = errors.New("unsuitable bucket configuration")
	// ErrUnavailable: the server or JetStream gave no usable answer.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrNoStream: nobody takes the write: the bucket is gone, or its stream has
	// no leader right now. It comes with [ErrUnavailable].
	ErrNoStream = errors.New("no stream takes the write")
	// ErrPermission: the server refuses this user the subject.
	ErrPermission = errors.New("permission denied")
	// ErrNoWatch: the bucket does not re-publish, so changes cannot be watched.
	ErrNoWatch = errors.New("bucket does not re-publish its changes")
	// ErrRemade: the bucket was deleted and made again since the last look, and
	// every record with it.
	ErrRemade = errors.New("bucket was deleted and made again")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
)

// ConflictError says which revision a refused write met. It matches
// [ErrConflict], and [ErrExists] when no record was expected.
type ConflictError struct {
	Key string
	// Expected is the revision the write expected.
	Expected uint64
	// Last is the revision the server named: 0 when there is no record.
	Last uint64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("write to %q expected revision %d, the server has %d", e.Key, e.Expected, e.Last)
}

// Is makes the error match its sentinels.
func (e *ConflictError) Is(target error) bool {
	return target == ErrConflict || (target == ErrExists && e.Expected == 0)
}

// ConfigError names one setting of the bucket, or the version of the server,
// that is not safe for records with a TTL. It matches [ErrBucketConfig].
type ConfigError struct {
	Bucket  string
	Setting string // the stream's setting, by its JSON name, or "nats-server"
	Value   string // what it is
	Want    string // what it must be
	Repair  string // how to get there
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("bucket %q: %s is %s, must be %s: %s", e.Bucket, e.Setting, e.Value, e.Want, e.Repair)
}

// Is makes the error match [ErrBucketConfig].
func (e *ConfigError) Is(target error) bool { return target == ErrBucketConfig }
