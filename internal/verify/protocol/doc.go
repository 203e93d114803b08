// Package protocol tests docs/protocol. It has no code outside its tests.
//
// The tests decode the vectors in docs/protocol/vectors.json and encode them again to the same
// bytes. Using a plain NATS client and a real server, they replay the exchange in that file,
// and a lock taken over the wire as the document describes. They check the numbering of the
// musts, and compare single writes from the specification with the library's. Finally, two
// lockers written from the specification alone, one in Go and one in JavaScript, contend with
// the library for the same locks.
package protocol
