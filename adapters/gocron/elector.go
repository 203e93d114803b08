package gocronlock

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/natslock/locks/election"
)

// ErrNotLeader is returned by [Elector.IsLeader] in a process that is not the leader.
var ErrNotLeader = errors.New("this process is not the leader: another scheduler runs the job, or none does until the next term")

// Elector is a gocron.Elector that lets the leader of an election run all jobs. Create it
// with [NewElector]. It is safe for concurrent use.
type Elector struct {
	election *election.Election
	term     atomic.Pointer[election.Term]
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for gocron.WithDistributedElector. It does no I/O and does
// not campaign. To campaign, call [Elector.Run], unless the process already does so with
// the Election's own Run or Campaign.
func NewElector(e *election.Election) *Elector {
	return &Elector{election: e}
}

// IsLeader returns nil while this process has a valid term, and [ErrNotLeader] otherwise.
// gocron calls it before each run, and skips the run on an error. IsLeader only reads the
// clock: it does no I/O and ignores the context, so it is just as fast when the server does
// not respond.
//
// A term ends before the server lets the next leader in, so two schedulers never lead at
// the same time. But because their clocks may differ, they may reach the same tick at
// different moments. If the leader changes in between, that tick runs twice or not at all.
// A [Locker] prevents the second run.
func (e *Elector) IsLeader(context.Context) error {
	if _, leads := e.election.IsLeader(); !leads {
		return ErrNotLeader
	}
	return nil
}

// Run campaigns and leads until ctx ends: see [election.Election.Run], which also lists the
// errors. By the time Run returns, this process has resigned. Call Run on its own
// goroutine, and cancel ctx only after the scheduler has shut down, so that the next leader
// does not begin until the last job has ended.
func (e *Elector) Run(ctx context.Context) error {
	return e.election.Run(ctx, func(ctx context.Context, t *election.Term) error {
		e.term.Store(t)
		defer e.term.Store(nil)
		<-ctx.Done()
		return nil
	})
}

// Term returns Run's current term, or a zero [election.Term] if there is none. gocron does
// not stop a job when the term ends. A job that has to stop should call Term when it
// starts, use the term's context, and pass its token to the resource that it changes. The
// context of a zero Term has already ended, and its token is 0.
func (e *Elector) Term() *election.Term {
	if t := e.term.Load(); t != nil {
		return t
	}
	return new(election.Term)
}
