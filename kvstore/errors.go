package kvstore

import "github.com/natslock/locks/internal/kvstore"

var (
	// ErrExists means that the key already has a record. The error also matches [ErrConflict].
	ErrExists = kvstore.ErrExists
	// ErrConflict means that the key's last revision was not the expected one. The error is a
	// *[ConflictError].
	ErrConflict = kvstore.ErrConflict
	// ErrInFlight means that another write to the key is being replicated and may still succeed
	// or fail. Try again after a short pause.
	ErrInFlight = kvstore.ErrInFlight
	// ErrNotFound means that the key has no record, or that the bucket does not exist.
	ErrNotFound = kvstore.ErrNotFound
	// ErrInvalid means that an argument is invalid. Nothing was written. [ErrInvalidKey],
	// [ErrInvalidTTL] and [ErrTooLarge] match it.
	ErrInvalid = kvstore.ErrInvalid
	// ErrInvalidKey means that a key, a pattern or the bucket's name is invalid.
	ErrInvalidKey = kvstore.ErrInvalidKey
	// ErrInvalidTTL means that the TTL is zero, negative or longer than 366 days.
	ErrInvalidTTL = kvstore.ErrInvalidTTL
	// ErrTooLarge means that the record exceeds 16 KiB, the server's limit (max_payload) or the
	// bucket's limit (max_msg_size). Nothing was written.
	ErrTooLarge = kvstore.ErrTooLarge
	// ErrBucketConfig means that the bucket's settings are unsafe. The error is a
	// *[ConfigError], or joins several of them.
	ErrBucketConfig = kvstore.ErrBucketConfig
	// ErrUnavailable means that the server or JetStream gave no usable response.
	ErrUnavailable = kvstore.ErrUnavailable
	// ErrNoStream means that no server accepts the write, because the bucket no longer exists or
	// its stream currently has no leader. The error also matches [ErrUnavailable].
	ErrNoStream = kvstore.ErrNoStream
	// ErrFull means that the bucket has no room for another record, or that the remaining room
	// is reserved for lock renewals and waiters. The error also matches [ErrUnavailable].
	ErrFull = kvstore.ErrFull
	// ErrPermission means that the server denies this user access to the subject.
	ErrPermission = kvstore.ErrPermission
	// ErrNoWatch means that the bucket does not publish its changes and so cannot be watched.
	ErrNoWatch = kvstore.ErrNoWatch
	// ErrNoHistory means that the bucket has no history. "lockctl init --history" creates one.
	ErrNoHistory = kvstore.ErrNoHistory
	// ErrRemade means that the bucket was deleted and re-created, so all records are lost.
	ErrRemade = kvstore.ErrRemade
	// ErrClosed means that the store was closed.
	ErrClosed = kvstore.ErrClosed
)

// ConflictError describes a refused write: its Key, the Expected revision, and the Last
// revision, which is 0 if there is no record. It matches [ErrConflict], and also [ErrExists] if
// no record was expected.
type ConflictError = kvstore.ConflictError

// ConfigError describes a bucket setting that is unsafe for records with a TTL, or a server that
// is too old. Bucket and Setting name what is wrong, Value is the current value, Want is the
// required one, and Repair says how to fix it. It matches [ErrBucketConfig].
type ConfigError = kvstore.ConfigError
