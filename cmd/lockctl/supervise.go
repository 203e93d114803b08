package main

import (
	"os"
	"os/exec"
	"time"

	"github.com/natslock/locks/natslock"
)

const (
	// groupPoll is how often a process group that is to end is looked at: the
	// system tells of the end of a child, not of that of its children.
	groupPoll = 10 * time.Millisecond
	// afterKill is how long the end of a killed group is waited for. Only a
	// process stuck in the kernel takes so long.
	afterKill = 2 * time.Second
)

// ending is how a command under a lock came to its end.
type ending struct {
	code  int
	lost  error // why the lock was lost; nil: it was not
	stuck bool  // the command is still there, so the lock must not be released
}

// supervise runs the command under the lock and returns how it ended, or why it
// could not be started.
//
// One goroutine, this one, owns the job. While the lock is held it passes
// signals on. Once the lock is lost it ends the whole group: TERM, then KILL.
//
// The KILL must come before somebody else can get the lock. The lock's validity
// ends a margin before the server's lease (a tenth of the TTL, at most 1 s); half
// of the margin is used here, the other half remains for clocks that run wrong.
// A lock that was broken keeps the others out for at least as long. So a lock
// that was lost by an outage leaves the command little time, one that was broken
// usually leaves it all of --kill-after.
func (c *runCmd) supervise(cmd *exec.Cmd, lock *natslock.Lock, signals <-chan os.Signal, s *session) (ending, error) {
	announceOutages(s.nc, lock)
	defer func() {
		s.nc.SetDisconnectErrHandler(nil)
		s.nc.SetReconnectHandler(nil)
	}()
	j, err := startJob(cmd)
	if err != nil {
		return ending{}, err
	}
	defer j.close()

	deadline := c.deadline(lock)
	tell := func() { j.guardUntil(deadline, c.KillAfter) }
	tell()
	tick := time.NewTicker(max(c.ttl()/10, 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case code := <-j.ended:
			return ending{code: code}, nil
		case sig := <-signals:
			j.signal(sig)
		case sig := <-j.stopped:
			j.suspend(sig, func() bool { return lock.State() == natslock.Held })
		case <-tick.C:
			if lock.State() == natslock.Held {
				deadline = c.deadline(lock)
				tell()
			}
		case <-lock.Done():
			lost := lock.Err()
			complain("%v; ending the command", lost)
			code, gone := c.end(j, deadline, signals)
			return ending{code, lost, !gone}, nil
		}
	}
}

// deadline is when everything must be dead if the lock is not confirmed again.
func (c *runCmd) deadline(lock *natslock.Lock) time.Time {
	margin := min(c.ttl()/10, time.Second)
	return lock.ValidUntil().Add(margin / 2)
}

// end ends the group. It returns the command's exit code, and whether all of the
// group is gone.
func (c *runCmd) end(j *job, deadline time.Time, signals <-chan os.Signal) (code int, gone bool) {
	grace := max(min(c.KillAfter, time.Until(deadline)), 0)
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
		case sig := <-signals: // somebody may know a better one
			j.signal(sig)
		case <-kill.C:
			complain("the command has not ended within %s; killing it", brief(grace))
			j.kill()
			giveUp = time.After(afterKill)
		case <-giveUp:
			complain("killed, but not yet gone; the lock is left to its TTL")
			return code, false
		case <-poll.C:
		}
	}
	return code, true
}
