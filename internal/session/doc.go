// Package session manages what a client holds: its leases and its places in queues, whose records package keeper keeps
// alive. It also judges whether their bucket is fit for locks.
//
// A lease has a single holder, several in succession, or readers side by side ([core.Use]). A holder ends when its
// caller leaves or the lease ends. Its context ends before another caller can get the lock: [keeper.Keeper.Unlock] ends
// the context, and only then is the record's last write sent.
//
// The keeper's mutex guards all of a client's leases and holders. The cohorts' mutex (package cohort) is always locked
// before it. Neither is held across I/O or a call to user code.
package session
