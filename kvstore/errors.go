package kvstore

import "github.com/natslock/locks/internal/kvstore"

var (
	// ErrExists: the key already has a record. It matches [ErrConflict] too.
	ErrExists = kvstore.ErrExists
	// ErrConflict: the expected revision was not the last one. The error is a *[ConflictError].
	ErrConflict = kvstore.ErrConflict
	// ErrInFlight: another write to the key is being replicated, and may succeed or fail. Try
	// again after a short pause.
	ErrInFlight = kvstore.ErrInFlight
	// ErrNotFound: there is no record under the key, or no bucket.
	ErrNotFound = kvstore.ErrNotFound
	// ErrInvalid: an argument is invalid, and nothing was sent. [ErrInvalidKey],
	// [ErrInvalidTTL] and [ErrTooLarge] match it.
	ErrInvalid = kvstore.ErrInvalid
	// ErrInvalidKey: the key, a pattern or the bucket's name is invalid.
	ErrInvalidKey = kvstore.ErrInvalidKey
	// ErrInvalidTTL: the TTL is zero, negative or above 366 days.
	ErrInvalidTTL = kvstore.ErrInvalidTTL
	// ErrTooLarge: the record is larger than 16 KiB, or than the server (max_payload) or the
	// bucket (max_msg_size) accepts. Nothing was written.
	ErrTooLarge = kvstore.ErrTooLarge
	// ErrBucketConfig: the settings of the bucket are unsafe. The error is a *[ConfigError]
	// or joins several.
	ErrBucketConfig = kvstore.ErrBucketConfig
	// ErrUnavailable: the server or JetStream gave no usable answer.
	ErrUnavailable = kvstore.ErrUnavailable
	// ErrNoStream: no server accepts the write, because the bucket no longer exists or
	// its stream currently has no leader. It comes with [ErrUnavailable].
	ErrNoStream = kvstore.ErrNoStream
	// ErrFull: the bucket has no room for another record, or reserves the rest for renewals
	// and waiters of locks. It comes with [ErrUnavailable].
	ErrFull = kvstore.ErrFull
	// ErrPermission: the server refuses this user the subject.
	ErrPermission = kvstore.ErrPermission
	// ErrNoWatch: the bucket does not publish its changes, so a watch is impossible.
	ErrNoWatch = kvstore.ErrNoWatch
	// ErrNoHistory: the bucket has no history; "lockctl init --history" makes one.
	ErrNoHistory = kvstore.ErrNoHistory
	// ErrRemade: the bucket was deleted and re-created, and all records are lost.
	ErrRemade = kvstore.ErrRemade
	// ErrClosed: the store was closed.
	ErrClosed = kvstore.ErrClosed
)

// ConflictError describes a refused write: the Key, the revision that was Expected, and the
// Last one, 0 if there is no record. It matches [ErrConflict], and [ErrExists] if no record
// was expected.
type ConflictError = kvstore.ConflictError

// ConfigError describes a setting of the bucket that is unsafe for records with a TTL, or a
// server that is too old: the Bucket, the Setting, its Value, the value to Want, and the
// Repair. It matches [ErrBucketConfig].
type ConfigError = kvstore.ConfigError
