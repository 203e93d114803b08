// Package claim gets one record written: the lock's, a place in its queue, or a reader's. It does so by
// conditional writes that the server acknowledges in time.
//
//	         send                 acknowledged, or found, in time
//	claim ----------> attempt -----------------------------------> lease
//	  ^                  |
//	  |   refused, or    |
//	  |   no answer      |
//	  +------------------+
//
// A claim has one id. It makes attempts, each a conditional
// write with its own number, expectation and sending time, until one is granted or
// the claim is given up. Any answer may be lost or late, so every attempt is judged
// by itself. Acknowledged before its own validity would have ended, it is a grant.
// Acknowledged later, it is lost: the record is deleted, and a new claim begins.
// Found in the bucket under its own number, it is a grant as of its own sending.
// Acknowledged when the claim is over, it leads to the deletion of exactly its own
// record.
//
// A [Bid] repeats attempts until something decides: bid.go. claim.go sends them, and has
// internal/core judge the answers. orphan.go cleans up after claims that are over.
package claim
