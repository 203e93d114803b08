// Package explore is a model checker with explicit states whose states are the data of production code:
// graphs of structs with pointers among them. It visits all worlds that a [Model] can reach, breadth
// first, and tells the shortest way to one that violates an invariant, or from which no goal can be
// reached.
//
// A world is copied for each move ([Copy] keeps the identity of its pointers), changed by the move, and
// encoded by its [Form]. Two worlds with the same encoding are one state. Instants are encoded as ages and
// revisions as ranks, so that a world met again later is the same state. Every other field counts as it
// is, unless the form says why it does not: a field that is new in the code is in the state at once.
//
// A nil slice and an empty one are the same, and so are a nil map and an empty one. That two slices
// have one array counts for copies, and not for the encoding.
//
// The set of states keeps 128 bits of the SHA-256 of each encoding. Two of n states are taken for one with a
// probability of n²/2^129: less than 10^-24 for ten million states.
package explore
