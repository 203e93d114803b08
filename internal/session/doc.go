// Package session has what a client holds: leases and places in queues, whose records package keeper keeps alive, and
// the verdict on the bucket that they are in.
//
// A lease has holders: one, or one after the other, or readers beside each other ([core.Use]). A holder ends when its
// caller leaves, and with the lease. Its context ends before another caller can have the lock: [keeper.Keeper.Unlock]
// ends the context, and only then is the last write of the record sent.
//
// The keeper's mutex guards all leases and holders of a client. The mutex of the cohorts (package cohort) comes before
// it. Neither is held across I/O or a call of user code.
// Neither is held across I/O or a call of user code.
package session
