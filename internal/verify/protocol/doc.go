// Package protocol tests docs/protocol. It has no code outside its tests.
//
// The tests decode the vectors of docs/protocol/vectors.json and encode them again to the
// same bytes. On a real server, with a plain NATS client, they replay the exchange in that
// file and the lock that the document itself takes over the wire. They check the numbers of
// the musts. They also compare single writes, as the specification has them, with the
// library. Finally two lockers written from the specification alone, one in Go and one in
// JavaScript, contend with the library for the same locks.
package protocol
