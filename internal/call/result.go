package call

import "github.com/natslock/locks/internal/claim"

// result is what came of a step of a call: an outcome of its claims, or one of its wait.
type result = claim.Result

const (
	granted = claim.Granted // of a drain: no reader is left
	free    = claim.Free
	unread  = claim.Unread
	busy    = claim.Busy
	lost    = claim.Lost
	noRoom  = claim.NoRoom
	failed  = claim.Failed
	ended   = claim.Ended
)

const (
	// relist: the predecessor has gone; the queue is to be read again.
	relist = claim.Further + iota
	// compete: the place is the first of the queue.
	compete
	// requeue: the place in the queue has gone.
	requeue
)
