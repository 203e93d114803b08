// Package claim writes one record: the lock's, a place in its queue, or a reader's. It does so by conditional writes
// that the server has to acknowledge in time.
//
//	         send                 acknowledged, or found, in time
//	claim ----------> attempt -----------------------------------> lease
//	  ^                  |
//	  |   refused, or    |
//	  |   no answer      |
//	  +------------------+
//
// A claim has one id. It makes attempts, each a conditional write with its own number, expectation and sending time,
// until one is granted or the claim is given up. Any answer may be lost or late, so every attempt is judged by itself.
// An attempt that is acknowledged before the end of its own validity is a grant. One that is acknowledged later is
// lost: the record is deleted, and a new claim begins. One whose record is found in the bucket, under its own number,
// is a grant that counts from its own sending. One that is acknowledged after the claim is over leads to the deletion
// of exactly its own record.
//
// bid.go repeats attempts until the outcome is decided: see [Bid]. claim.go sends them, and has internal/core judge the
// answers. orphan.go cleans up after claims that are over.
package claim
