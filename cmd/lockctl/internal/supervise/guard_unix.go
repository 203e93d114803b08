//go:build unix

package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/tool"
)

const (
	// guardStep is how often the guard checks the clock, which advances while the machine is
	// suspended, unlike the guard's timers.
	guardStep = 250 * time.Millisecond
	// guardWrite is how long lockctl waits for a guard that is not reading its orders.
	guardWrite = 100 * time.Millisecond
)

// now reads a clock that all processes on the machine share and that includes time spent in
// suspend, like the clock that leases are judged by. An instant that lockctl computes therefore
// means the same thing to the guard, no matter how late the guard reads it.
func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(machineClock, &ts); err != nil {
		return instant(time.Now().UnixNano()) // unreachable on every system that lockctl supports
	}
	return instant(ts.Nano())
}

// guard is a second lockctl process, which ends the command's process group when lockctl
// cannot, either because lockctl has been killed or because it is stopped or stuck when the
// lock's validity ends.
//
// lockctl sends the guard its orders over a pipe, and end-of-file on the pipe tells the guard
// that lockctl is dead. A guard that is no longer needed is therefore killed before its pipe is
// closed.
type guard struct {
	pipe *os.File
	proc *os.Process
}

// startGuard starts a guard that has no orders yet.
func startGuard() (*guard, error) {
	self, err := console.Self()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := &exec.Cmd{
		// The guard does not run under the name lockctl, so that killing lockctl by name does
		// not kill the guard.
		Path: self, Args: []string{"natslock-guard", "guard"},
		Env: []string{}, Dir: "/", Stdin: r,
		// In its own session, the guard gets neither the terminal's signals nor those sent to
		// lockctl's group.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return &guard{w, cmd.Process}, nil
}

// send replaces the guard's orders. An error means that the guard is dead, or as good as dead
// because it has not read its pipe for [guardWrite].
func (g *guard) send(pgid int, o orders) error {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(guardWrite))
	_, err := fmt.Fprintln(g.pipe, pgid, int64(o.term), int64(o.kill), int64(o.grace))
	return err
}

func (g *guard) dismiss() {
	_ = g.proc.Kill()
	_, _ = g.proc.Wait() // not every system has an init that would reap it
	g.pipe.Close()
}

// guardBy sends orders to the guard, and reports whether a guard has received them. It starts a
// guard if there is none, and replaces one that does not accept its orders. If no guard can be
// started, guardBy only prints a message, because running the command under a lock without a
// guard is better than not running it at all.
func (j *job) guardBy(o orders) bool {
	for range 2 {
		if j.guard == nil {
			g, err := startGuard()
			if err != nil {
				if !j.unguarded {
					j.complain("cannot start the guard: %v; if lockctl is stopped or killed, the command goes on without the lock", err)
				}
				j.unguarded = true
				return false
			}
			j.guard, j.unguarded = g, false
		}
		if j.guard.send(j.pid, o) == nil {
			return true
		}
		j.guard.dismiss()
		// Forget the dead guard, so that the next iteration starts another.
		j.guard = nil //safety:guard-replaced
	}
	return false
}

// Guard is the hidden command that runs in the guard's process and ends the process group when
// lockctl cannot. It reads its orders from standard input.
type Guard struct{}

// Run carries out the guard's orders until it has killed the group. If lockctl dies, Run ends
// the group on its own, with TERM and then KILL.
func (*Guard) Run(*session.Globals) error {
	if console.IsTerminal(os.Stdin) {
		return tool.Usagef("guard is started by lockctl run")
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	w := &watchman{}
	for w.listen() {
		// A stopped lockctl cannot end its command before the lease ends.
		w.act(now()) //safety:guard-acts
		if w.done {
			return nil
		}
	}
	// lockctl is dead.
	if w.group.pid == 0 {
		return nil // lockctl had not started the command, or had only just started it
	}
	if !w.asked {
		w.group.terminate()
	}
	for end := min(w.kill, now().add(w.grace)); w.group.alive() && now() < end; {
		time.Sleep(groupPoll)
	}
	w.group.kill()
	return nil
}

// watchman is the guard's state.
type watchman struct {
	group job
	orders
	rest  []byte // incomplete last line of the input
	asked bool   // the group has been sent TERM
	done  bool   // the group has been sent KILL
}

// listen waits until there may be something to do. Before it returns, it reads all orders that
// lockctl has sent, because a guard that was itself stopped must not act on outdated orders. It
// returns false at the end of the input.
func (w *watchman) listen() bool {
	wait := -time.Millisecond // block until there are orders
	if w.group.pid != 0 {
		wait = guardStep
		for _, due := range []instant{w.term, w.kill} {
			if left := due.sub(now()); left > 0 {
				wait = min(wait, left)
			}
		}
		wait = (wait + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	in := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
	for buf := make([]byte, 4096); ; wait = 0 {
		n, err := unix.Poll(in, int(wait.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n == 0 && err == nil {
			return true
		}
		if n, err = unix.Read(0, buf); err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return false
		}
		lines := bytes.Split(append(w.rest, buf[:n]...), []byte("\n"))
		w.rest = lines[len(lines)-1]
		for _, line := range lines[:len(lines)-1] {
			w.take(string(line))
		}
	}
}

// take replaces the orders with those in line.
func (w *watchman) take(line string) {
	var pid int
	var o orders
	if _, err := fmt.Sscan(line, &pid, &o.term, &o.kill, &o.grace); err == nil && pid > 1 {
		w.group.pid, w.orders = pid, o
		w.asked = w.asked && o.term <= now()
	}
}

// act sends the group the signal that is due, if any.
func (w *watchman) act(at instant) {
	switch {
	case w.group.pid == 0: // no orders yet; 0 would mean the guard's own group
	case at >= w.kill:
		w.group.kill()
		w.done = true
	case at >= w.term && !w.asked:
		w.group.terminate()
		w.asked = true
	}
}
