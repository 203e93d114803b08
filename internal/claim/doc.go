// Package claim obtains one record, for a lock, for a place in its queue, or for a reader, through conditional writes
// that the server has to acknowledge in time.
//
//	         send                 acknowledged, or found, in time
//	claim ----------> attempt -----------------------------------> lease
//	  ^                  |
//	  |   refused, or    |
//	  |   no answer      |
//	  +------------------+
//
// A claim has one id and makes attempts until one is granted or the claim is given up. Each attempt is a conditional
// write with its own number, expected revision and send time. Because any answer may be lost or late, each attempt is
// judged on its own:
//
//   - An attempt acknowledged before the end of its own validity is a grant.
//   - An attempt acknowledged later is lost. Its record is deleted, and a new claim begins.
//   - An attempt whose record, bearing its number, is found in the bucket is a grant. Its validity counts from when
//     that attempt was sent.
//   - If an attempt is acknowledged after the claim is over, that attempt's record, and no other, is deleted.
//
// bid.go repeats attempts until the outcome is decided; see [Bid]. claim.go sends them and has internal/core judge the
// answers. orphan.go cleans up after finished claims.
package claim
