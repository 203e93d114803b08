// Package supervise runs a command under a lock. It passes signals on, and ends the command
// in time when the lock is lost. When lockctl cannot do that, a guard does, which is a
// separate process.
package supervise

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
)

const (
	// groupPoll is how often to check a process group that has to end. The system reports
	// when a child ends, but not when its children do.
	groupPoll = 10 * time.Millisecond
	// afterKill limits the wait for a killed group to end. Only a process stuck in the kernel
	// takes longer.
	afterKill = 2 * time.Second
)

// Ending describes how a command under a lock ended.
type Ending struct {
	Code  int   // exit code; 128 + N if signal N killed it
	Lost  error // why the lock was lost; nil if it was not
	Stuck bool  // the command is still alive, so the lock must not be released
}

// orders say when the guard of a command acts, unless it gets new orders first. They name
// instants, so orders that arrive late do not extend anything.
type orders struct {
	term, kill instant       // when the group gets TERM and KILL
	grace      time.Duration // from TERM to KILL if lockctl dies, but not beyond kill
}

// errStopped is why a command was ended although its lock was held.
var errStopped = errors.New("lockctl did not run until shortly before the end of the lock's validity")

// Supervision ends a command in time when its lock is lost.
type Supervision struct {
	*console.Console
	TTL       time.Duration // lease as the server keeps it: in whole seconds
	killAfter time.Duration // from TERM to KILL
	Asked     bool          // a signal from outside asked the command to end
}

// New returns the supervision of a command under a lock with a lease of ttl. killAfter is the
// time from TERM to KILL, if the lease allows that much.
func New(con *console.Console, ttl, killAfter time.Duration) *Supervision {
	return &Supervision{Console: con, TTL: (ttl + time.Second - 1).Truncate(time.Second), killAfter: killAfter}
}

// Held is the lock or the term that a command runs under.
type Held interface {
	Token() uint64
	Context() context.Context // ends only with the lock
	Err() error
	Remaining() time.Duration
}

// Run runs the command under the lock. It returns how the command ended, or why it could not
// be started.
//
// A single goroutine, this one, owns the job. While the lock is held, it passes signals on.
// Once the lock is lost, it ends the whole group: TERM, then KILL.
//
// The KILL must come before another client can get the lock. The lock's validity ends a
// margin before the server's lease does (a tenth of the TTL, at most 1 s). Run uses half of
// the margin, and leaves the other half for clocks that run wrong. A broken lock keeps the
// others out for at least as long. So a lock that was lost by an outage leaves the command
// little time, while one that was broken usually leaves it all of --kill-after.
//
// A lockctl that is stopped or stuck does none of this. Its guard does it instead, and
// earlier: see orders.
func (w *Supervision) Run(cmd *exec.Cmd, lock Held, signals <-chan os.Signal, s *session.Session) (Ending, error) {
	announceOutages(s, lock)
	defer func() {
		s.NC.SetDisconnectErrHandler(nil)
		s.NC.SetReconnectHandler(nil)
	}()
	j, err := startJob(cmd, w.Complain)
	if err != nil {
		return Ending{}, err
	}
	defer j.close()

	var deadline instant // when the whole group must be dead
	acts := never        // when the guard acts
	late := false        // it has acted
	order := func(o orders) {
		late = late || now() >= acts
		if acts = never; j.guardBy(o) {
			acts = o.term
		}
	}
	confirmed := func() {
		// In this order, because a stop between the two makes end too early.
		at := now()
		end := at.add(lock.Remaining())
		deadline = end.add(w.margin() / 2)
		order(w.orders(at, end))
	}
	confirmed()
	tick := time.NewTicker(w.tick())
	defer tick.Stop()
	for {
		select {
		case code := <-j.ended:
			if !late && now() < acts {
				return Ending{Code: code}, nil
			}
			lost := cmp.Or(lock.Err(), errStopped)
			w.Complain("%v; the guard has ended the command", lost)
			return Ending{Code: code, Lost: lost}, nil
		case sig := <-signals:
			w.pass(j, sig)
		case sig := <-j.stopped:
			j.suspend(sig, func() bool { return lock.Remaining() > 0 })
		case <-tick.C:
			if lock.Remaining() > 0 {
				confirmed()
			}
		case <-lock.Context().Done():
			order(orders{deadline, deadline, w.killAfter})
			lost := lock.Err()
			w.Complain("%v; ending the command", lost)
			code, gone := w.end(j, deadline, signals)
			return Ending{code, lost, !gone}, nil
		}
	}
}

// pass passes a signal on to the group.
func (w *Supervision) pass(j *job, sig os.Signal) {
	j.signal(sig)
	w.Asked = w.Asked || slices.Contains(requests, sig)
}

// margin returns the time from the end of the lock's validity to the end of the server's
// lease.
func (w *Supervision) margin() time.Duration { return min(w.TTL/10, time.Second) }

// tick returns how often the guard gets new orders.
func (w *Supervision) tick() time.Duration { return max(w.TTL/10, 100*time.Millisecond) }

// orders returns the guard's orders for a lock whose validity ends at end.
//
// A running lockctl renews the lock long before these orders are due. A stopped one does not,
// and then the group is dead a margin before the validity ends. That is two margins before
// the end of the server's lease, because a busy machine may run the guard late. If a running
// lockctl cannot renew the lock, it ends the command itself, at the end of the validity. So
// that the command does not get each signal twice, it replaces the orders in time by the KILL
// that it would send itself.
func (w *Supervision) orders(at, end instant) orders {
	kill := end.add(-w.margin()) //safety:guard-in-time
	term := kill.add(-min(w.killAfter, w.TTL/5))
	// A running lockctl sends its own signals, and the guard comes after it.
	if term.sub(at) < 2*w.tick() { //safety:guard-waits
		term = end.add(w.margin() / 2)
		kill = term
	}
	return orders{term, kill, w.killAfter}
}

// end ends the group. It returns the command's exit code, and whether the whole group has
// ended.
func (w *Supervision) end(j *job, deadline instant, signals <-chan os.Signal) (code int, gone bool) {
	grace := max(min(w.killAfter, deadline.sub(now())), 0)
	j.terminate()
	kill := time.NewTimer(grace)
	defer kill.Stop()
	poll := time.NewTicker(groupPoll)
	defer poll.Stop()
	var giveUp <-chan time.Time
	ended := j.ended
	for ended != nil || j.alive() {
		select {
		case code = <-ended:
			ended = nil
		case sig := <-signals: // the user may send a stronger signal
			w.pass(j, sig)
		case <-kill.C:
			w.Complain("the command has not ended within %s; killing it", show.Brief(grace))
			j.kill()
			giveUp = time.After(afterKill)
		case <-giveUp:
			w.Complain("killed, but not yet gone; the lock is left to its TTL")
			return code, false
		case <-poll.C:
		}
	}
	return code, true
}

// announceOutages reports when the connection is lost and when it is back. The lock survives
// an outage, but not for long.
func announceOutages(s *session.Session, lock Held) {
	s.NC.SetDisconnectErrHandler(func(nc *nats.Conn, err error) {
		if !nc.IsClosed() && lock.Remaining() > 0 {
			s.Complain("connection lost (%v); the lock is lost in %s unless it comes back", err, show.Brief(lock.Remaining()))
		}
	})
	s.NC.SetReconnectHandler(func(nc *nats.Conn) { s.Complain("connected again to %s", tool.WithoutCredentials(nc.ConnectedUrl())) })
}
