// Package protocol holds docs/protocol to the truth. It has no code outside its tests.
//
// The tests decode the vectors of docs/protocol/vectors.json and encode them again to the
// same bytes. They replay the exchange in that file, and the lock that the document itself
// takes over the wire, on a real server with a plain NATS client, and keep the numbers of the
// musts. Single writes, as the specification has them, then stand against the library,
// and two lockers that are written from it alone, one in Go and one in JavaScript, contend with it for the same locks.
package protocol
