// Package supervise runs a command under a lock. It passes signals on to the command, and ends
// the command in time if the lock is lost. If lockctl cannot do that, a separate process, the
// guard, does.
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
	// groupPoll is how often to check whether a process group has ended. The system reports
	// when a child ends, but not when the child's own children do.
	groupPoll = 10 * time.Millisecond
	// afterKill is how long to wait for a killed group to end. Only a process that is stuck in
	// the kernel takes longer.
	afterKill = 2 * time.Second
)

// Ending describes how a command under a lock ended.
type Ending struct {
	Code  int   // exit code, or 128 + N if signal N killed the command
	Lost  error // why the lock was lost; nil if it was not
	Stuck bool  // the command is still alive, so the lock must not be released
}

// orders tell the guard when to act, unless it receives new orders first. They contain instants
// rather than durations, so orders that arrive late give the command no extra time.
type orders struct {
	term, kill instant       // when the group gets TERM and KILL
	grace      time.Duration // from TERM to KILL if lockctl dies, but never past kill
}

// errStopped is the reason for ending a command that had not lost its lock.
var errStopped = errors.New("lockctl did not run until shortly before the lock's validity ended")

// Supervision runs a command under a lock, and ends it in time if the lock is lost.
type Supervision struct {
	*console.Console
	TTL       time.Duration // the server's lease, in whole seconds
	killAfter time.Duration // time from TERM to KILL
	Asked     bool          // a signal has asked the command to end
}

// New returns a Supervision for a command whose lock has a lease of ttl. killAfter is the time
// from TERM to KILL, which is shorter if the lease does not last that long.
func New(con *console.Console, ttl, killAfter time.Duration) *Supervision {
	return &Supervision{Console: con, TTL: (ttl + time.Second - 1).Truncate(time.Second), killAfter: killAfter}
}

// Held is the lock or election term that a command runs under.
type Held interface {
	Token() uint64
	Context() context.Context // done only when the lock has ended
	Err() error
	Remaining() time.Duration
}

// Run runs the command under the lock. It returns how the command ended, or an error if the
// command could not be started.
//
// The goroutine that calls Run owns the job. While the lock is held, it passes signals on to
// the process group. Once the lock is lost, it ends the whole group with TERM and then KILL.
//
// The KILL must come before another client can get the lock. The lock's validity ends before
// the server's lease does, by a margin of a tenth of the TTL but at most 1 s. Run uses half of
// that margin and leaves the other half for inaccurate clocks. A broken lock keeps other
// clients out at least until that lease would have ended. So a command that has lost its lock
// in an outage has little time left, whereas after a break it usually has all of --kill-after.
//
// A lockctl that is stopped or stuck can do none of this. Its guard does all of this instead,
// and sooner, as described at orders.
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
	late := false        // the guard has acted
	order := func(o orders) {
		late = late || now() >= acts
		if acts = never; j.guardBy(o) {
			acts = o.term
		}
	}
	confirmed := func() {
		// Read the clock first, so that end is too early rather than too late if lockctl is
		// stopped in between.
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

// tick returns the interval at which the guard gets new orders.
func (w *Supervision) tick() time.Duration { return max(w.TTL/10, 100*time.Millisecond) }

// orders returns the guard's orders at instant at, for a lock whose validity ends at end.
//
// A running lockctl renews the lock long before these orders are due. If lockctl is stopped,
// the guard kills the group a margin before the lock's validity ends. That is two margins
// before the server's lease ends, because a busy machine may run the guard late. If a running
// lockctl cannot renew the lock, it ends the command itself when the validity ends. To keep the
// command from getting every signal twice, lockctl replaces these orders, before they are due,
// with the KILL that it would send itself.
func (w *Supervision) orders(at, end instant) orders {
	kill := end.add(-w.margin()) //safety:guard-in-time
	term := kill.add(-min(w.killAfter, w.TTL/5))
	// A running lockctl sends its own signals, so the guard must act after lockctl does.
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
			w.Complain("the command has not exited within %s; killing it", show.Brief(grace))
			j.kill()
			giveUp = time.After(afterKill)
		case <-giveUp:
			w.Complain("the command was killed but has not exited; the lock will expire with its TTL")
			return code, false
		case <-poll.C:
		}
	}
	return code, true
}

// announceOutages tells the user when the connection is lost and when it is restored, because
// the lock survives only a short outage.
func announceOutages(s *session.Session, lock Held) {
	s.NC.SetDisconnectErrHandler(func(nc *nats.Conn, err error) {
		if !nc.IsClosed() && lock.Remaining() > 0 {
			s.Complain("connection lost (%v); the lock will be lost in %s unless the connection comes back", err, show.Brief(lock.Remaining()))
		}
	})
	s.NC.SetReconnectHandler(func(nc *nats.Conn) { s.Complain("reconnected to %s", tool.WithoutCredentials(nc.ConnectedUrl())) })
}
