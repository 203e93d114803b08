// Package bucket is one client's exchange with its bucket: conditional writes and their answers, reads, questions to
// the stream's leader, and the connection that carries them. It knows records, not locks.
//
// # Answers
//
// The outcome of a write without an answer is unknown. The server may have applied it, may never do so, or may do so
// half a minute later. The caller decides what that means for its record. This package limits the wait for the answer
// ([AnswerTimeout]), and finds out whether the server has refused the subject, for which the server sends no answer
// ([DeniedAfter]).
//
// # Ownership
//
// A Bucket owns the highest revision that the server has acknowledged to the client, the state of the connection, and
// the context of all waiting ([Bucket.Life]). It has no goroutine.
package bucket
