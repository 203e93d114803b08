package gocronlock

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/natslock/locks/election"
)

// ErrNotLeader is the error that [Elector.IsLeader] returns in a process that does not lead.
var ErrNotLeader = errors.New("this process does not lead the election: another scheduler runs the job, or none until the next term")

// Elector is a gocron.Elector: the leader of an election runs all jobs. Create it with
// [NewElector]. It is safe for concurrent use.
type Elector struct {
	election *election.Election
	term     atomic.Pointer[election.Term]
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for gocron.WithDistributedElector. It does no I/O, and
// leaves campaigning to [Elector.Run]. A process that already campaigns with the Election's
// own Run or Campaign needs no other.
func NewElector(e *election.Election) *Elector {
	return &Elector{election: e}
}

// IsLeader returns nil while a term of this process is inside its validity, and otherwise
// [ErrNotLeader]. gocron calls it before each run, and skips the run on an error. It reads
// the clock, does no I/O and ignores the context, so it is just as fast when the server
// does not answer.
//
// A term ends before the server lets the next leader in, so two schedulers never lead at
// once. But their clocks can differ: if the leader changes between their ticks, that tick
// runs twice or not at all. A [Locker] prevents running twice.
func (e *Elector) IsLeader(context.Context) error {
	if _, leads := e.election.IsLeader(); !leads {
		return ErrNotLeader
	}
	return nil
}

// Run campaigns and leads until ctx ends: see [election.Election.Run], which also lists the
// errors. When Run returns, this process has resigned. Call it on its own goroutine, and end
// ctx after the shutdown of the scheduler, so that the next leader begins when the last job
// has ended.
func (e *Elector) Run(ctx context.Context) error {
	return e.election.Run(ctx, func(ctx context.Context, t *election.Term) error {
		e.term.Store(t)
		defer e.term.Store(nil)
		<-ctx.Done()
		return nil
	})
}

// Term returns the current term of Run, or a zero [election.Term]. gocron does not stop a job
// when the term ends. A job that has to stop should call Term at its beginning, work with the
// context of the term, and pass the token to the resource that it changes. The context of a
// zero Term has ended, and its token is 0.
func (e *Elector) Term() *election.Term {
	if t := e.term.Load(); t != nil {
		return t
	}
	return new(election.Term)
}
