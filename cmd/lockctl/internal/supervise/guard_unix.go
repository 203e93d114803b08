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
	// guardStep is how often the guard looks at the clock: its timers do not run while the machine
	// is suspended, but the clock does.
	guardStep = 250 * time.Millisecond
	// guardWrite limits how long lockctl waits for a guard that reads nothing.
	guardWrite = 100 * time.Millisecond
)

// now reads a clock that all processes of the machine share and that includes the time in suspend,
// like the one that leases are judged by. An instant that lockctl computes means the same to the
// guard, however late the guard reads it.
func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(machineClock, &ts); err != nil {
		return instant(time.Now().UnixNano()) // no system that lockctl runs on gets here
	}
	return instant(ts.Nano())
}

// guard is a second process of lockctl that ends the command's group when lockctl cannot: if lockctl
// was killed, or if it is stopped or stuck while the validity of the lock ends.
//
// A pipe connects the two. lockctl sends its orders over the pipe, and the end of the pipe tells the
// guard that lockctl is dead. A guard that is no longer needed is killed before its pipe is closed.
type guard struct {
	pipe *os.File
	proc *os.Process
}

// startGuard starts a guard without orders.
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
		// Killing lockctl by its name spares the guard: neither its file nor its process has that
		// name.
		Path: self, Args: []string{"natslock-guard", "guard"},
		Env: []string{}, Dir: "/", Stdin: r,
		// The terminal and signals to lockctl's group do not reach it.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return &guard{w, cmd.Process}, nil
}

// send replaces the guard's orders. An error means that the guard is dead, or has not read for
// [guardWrite], which is as good as dead.
func (g *guard) send(pgid int, o orders) error {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(guardWrite))
	_, err := fmt.Fprintln(g.pipe, pgid, int64(o.term), int64(o.kill), int64(o.grace))
	return err
}

func (g *guard) dismiss() {
	_ = g.proc.Kill()
	_, _ = g.proc.Wait() // not every system has an init that collects it
	g.pipe.Close()
}

// guardBy gives the guard its orders, and reports whether a guard has received them. It replaces a
// guard that does not take them. A command under a lock without a guard is better than no command,
// so if no guard can be started guardBy only prints a message.
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
		// A dead guard must not count as one: the next round starts another.
		j.guard = nil //safety:guard-replaced
	}
	return false
}

// Guard is the command of the guard, the second process that ends a command's group when its lockctl
// cannot. It reads its orders from standard input.
type Guard struct{}

// Run carries out the orders. It returns when it has killed the group, or when lockctl has ended and
// the group is gone.
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
		return nil // it had not started the command, or only just now
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

// watchman is the state of the guard.
type watchman struct {
	group job
	orders
	rest  []byte // unfinished line of the input
	asked bool   // the group has received TERM
	done  bool   // and KILL
}

// listen returns when there is something to do. By then it has read all orders that lockctl has
// sent: a guard that was itself stopped must not act on old ones. It returns false at the end of the
// input.
func (w *watchman) listen() bool {
	wait := -time.Millisecond // no limit until there are orders
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

// take replaces the orders.
func (w *watchman) take(line string) {
	var pid int
	var o orders
	if _, err := fmt.Sscan(line, &pid, &o.term, &o.kill, &o.grace); err == nil && pid > 1 {
		w.group.pid, w.orders = pid, o
		w.asked = w.asked && o.term <= now()
	}
}

// act sends the signal that is due.
func (w *watchman) act(at instant) {
	switch {
	case w.group.pid == 0: // 0 is the guard's own group
	case at >= w.kill:
		w.group.kill()
		w.done = true
	case at >= w.term && !w.asked:
		w.group.terminate()
		w.asked = true
	}
}
