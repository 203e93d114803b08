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
	// ErrInvalid: an argument is not valid. The store sent nothing. [ErrInvalidKey],
	// [ErrInvalidTTL] and [ErrTooLarge] match it.
	ErrInvalid = kvstore.ErrInvalid
	// ErrInvalidKey: the key, a pattern or the bucket's name is not valid.
	ErrInvalidKey = kvstore.ErrInvalidKey
	// ErrInvalidTTL: the TTL is zero, negative or above 366 days.
	ErrInvalidTTL = kvstore.ErrInvalidTTL
	// ErrTooLarge: the record is larger than 16 KiB, or than the server (max_payload) or the
	// bucket (max_msg_size) takes. Nothing was written.
	ErrTooLarge = kvstore.ErrTooLarge
	// ErrBucketConfig: the settings of the bucket are not safe. The error is a *[ConfigError]
	// or joins several.
	ErrBucketConfig = kvstore.ErrBucketConfig
	// ErrUnavailable: the server or JetStream gave no usable answer.
	ErrUnavailable = kvstore.ErrUnavailable
	// ErrNoStream: no server accepts the write. The bucket is gone, or its stream has no
	// leader right now. It comes with [ErrUnavailable].
	ErrNoStream = kvstore.ErrNoStream
	// ErrFull: the bucket has no room for another record, or leaves what it has to renewals
	// and waiters of locks. It comes with [ErrUnavailable].
	ErrFull = kvstore.ErrFull
	// ErrPermission: the server refuses this user the subject.
	ErrPermission = kvstore.ErrPermission
	// ErrNoWatch: the bucket does not publish its changes, so a watch is impossible.
	ErrNoWatch = kvstore.ErrNoWatch
	// ErrNoHistory: the bucket has no history; "lockctl init --history" makes one.
	ErrNoHistory = kvstore.ErrNoHistory
	// ErrRemade: the bucket was deleted and re-created. Every record is gone.
	ErrRemade = kvstore.ErrRemade
	// ErrClosed: the store was closed.
	ErrClosed = kvstore.ErrClosed
)

// ConflictError names the revision that a refused write met: the Key, the revision that was
// Expected, and the Last one, 0 if there is no record. It matches [ErrConflict], and
// [ErrExists] when no record was expected.
type ConflictError = kvstore.ConflictError

// ConfigError names one setting of the bucket that is not safe for records with a TTL, or a
// server that is too old: the Bucket, the Setting, its Value, the one to Want, and the
// Repair. It matches [ErrBucketConfig].
type ConfigError = kvstore.ConfigError
