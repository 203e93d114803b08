package call

import (
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
)

// result is the outcome of a step of a call: one of its claims, or one of the waits below.
type result = claim.Result

const (
	granted = core.Granted // also of a drain: no reader is left
	free    = core.Free
	refused = core.Refused
	busy    = core.Busy
	lost    = core.Lost
	noRoom  = core.NoRoom
	failed  = core.Failed
	ended   = core.Ended
)

const (
	// relist: the predecessor is gone, and the queue has to be read again.
	relist = core.Further + iota
	// compete: the place is the first of the queue.
	compete
	// requeue: the place in the queue is gone.
	requeue
)
