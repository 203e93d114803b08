// Package bucket handles a client's exchanges with its bucket: conditional writes and their replies, reads, requests to
// the stream leader, and the connection that carries them all. It knows about records but not about locks.
//
// # Replies
//
// If no reply to a write arrives, the outcome is unknown: the server may have applied the write, may apply it half a
// minute later, or may never apply it. The caller decides what that means for its record. This package limits the wait
// for the reply ([AnswerTimeout]). It also checks whether the server has denied access to the subject ([DeniedAfter]),
// because the server sends no reply in that case.
//
// # Ownership
//
// A Bucket owns the highest revision that the server has acknowledged to the client, the state of the connection, and
// the context that bounds every wait ([Bucket.Life]). It runs no goroutines.
package bucket
