package call

import (
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
)

// result is the outcome of one step of a call, which is either a claim or one of the waits.
type result = claim.Result

const (
	granted = core.Granted // for a drain: no reader is left
	free    = core.Free
	refused = core.Refused
	busy    = core.Busy
	lost    = core.Lost
	noRoom  = core.NoRoom
	failed  = core.Failed
	ended   = core.Ended
)

const (
	// relist means that the queue must be read again, usually because the predecessor is gone.
	relist = core.Further + iota
	// compete means that the place is first in the queue.
	compete
	// requeue means that the place in the queue is gone.
	requeue
)
