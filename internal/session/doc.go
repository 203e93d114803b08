// Package session manages what a client holds: leases and places in queues, whose records package keeper keeps alive.
// It also has the verdict on the bucket that they are in.
//
// A lease has one holder, several one after another, or readers side by side ([core.Use]). A holder ends when its
// caller leaves or the lease ends. Its context ends before another caller can have the lock: [keeper.Keeper.Unlock]
// ends the context, and only then is the last write of the record sent.
//
// The keeper's mutex guards all leases and holders of a client. The mutex of the cohorts (package cohort) is taken
// before it. Neither is held across I/O or a call to user code.
package session
