package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
)

type runCmd struct {
	Read             bool              `help:"Take the reader-writer lock of that name for reading, together with other readers."`
	Write            bool              `help:"Take the reader-writer lock of that name for writing, alone."`
	TTL              time.Duration     `default:"15s" placeholder:"DURATION" help:"Lease: how long the lock stays taken when this machine dies (default ${default}, whole seconds)."`
	Nonblock         bool              `short:"n" help:"Fail instead of waiting."`
	Wait             *seconds          `short:"w" placeholder:"SECONDS" help:"Fail after waiting so long; 0 is as --nonblock."`
	ConflictExitCode int               `short:"E" default:"1" placeholder:"CODE" help:"Exit code of such a failure (default ${default})."`
	Meta             map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"Metadata of the lock, which lockctl info shows; may be repeated."`
	Create           bool              `help:"Make the bucket if it is not there, with three replicas on a cluster."`
	KillAfter        time.Duration     `default:"5s" placeholder:"DURATION" help:"From TERM to KILL when the lock is lost (default ${default}), cut short by the lease."`
	Name             string            `arg:"" predictor:"lock" help:"The lock's name."`
	Command          []string          `arg:"" passthrough:"partial" help:"The command and its arguments."`
}

func (*runCmd) Help() string {
	return `Without --read or --write this takes the mutex of that name. Both of them name
the reader-writer lock of that name, which is a different lock. It and the mutex
do not exclude each other, so all clients have to use the same kind.

The command finds LOCK_NAME, LOCK_TOKEN (the fencing token: greater than that of
every holder before) and LOCK_TTL (seconds) in its environment. It runs in a
process group of its own, in the foreground if lockctl is. lockctl passes INT,
TERM, HUP, QUIT, USR1 and USR2 on to the group.

When the lock is lost, by an outage or a break, the whole group gets TERM. It gets
KILL after --kill-after or before the lease ends on the server, whichever is
first. Processes that a command leaves in the background when it ends continue
without the lock.

A second process, the guard, ends the group when lockctl cannot. When lockctl is
killed, the group gets TERM at once and KILL after --kill-after, or sooner if the
validity of the lock ends. When lockctl is stopped (^Z, SIGSTOP, a debugger), it
does not renew the lock, and the group is dead before the next holder starts. KILL
comes two margins before the lease ends on the server. TERM comes --kill-after
before that, at most a fifth of the TTL. A margin is a tenth of the TTL, at most
1 s. With a TTL of 15 s, TERM comes 10 s and KILL 13 s after the last renewal.

The guard does not reach a process that left the group (setsid, a daemon). It
cannot act while the machine or the container is frozen. Windows has no guard.
In these cases only a resource that checks LOCK_TOKEN is safe.

  lockctl run deploy -- ./deploy.sh
  lockctl run -n -E 0 nightly -- ./backup.sh   # not twice, and no error
  lockctl run --read index -- ./query

Exit code: the command's, 128 + N if signal N killed it or ended the waiting.
  1, or -E   the lock was not free in time (-n, -w)
  64 usage   69 no server   75 the lock was lost, or the guard ended the command
  77 no permission   78 no bucket, or one not fit for locks
  126 the command cannot be executed   127 there is none of that name`
}

// AfterApply checks what kong cannot.
func (c *runCmd) AfterApply() error {
	switch {
	case c.Read && c.Write:
		return errors.New("--read and --write exclude each other")
	case c.Nonblock && c.Wait != nil:
		return errors.New("--nonblock and --wait exclude each other")
	case c.ConflictExitCode < 0 || c.ConflictExitCode > 255:
		return fmt.Errorf("--conflict-exit-code %d: not in 0 to 255", c.ConflictExitCode)
	case c.KillAfter < 0:
		return fmt.Errorf("--kill-after %v: negative", c.KillAfter)
	}
	return nil
}

// forwarded are the signals that are for the command.
var forwarded = append([]os.Signal{os.Interrupt, syscall.SIGTERM}, platformSignals...)

// signaled is the cause of a wait's end.
type signaled struct{ sig syscall.Signal }

func (s signaled) Error() string { return "signal: " + s.sig.String() }

func (c *runCmd) Run(g *globals) error {
	command := c.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return usagef("a command is missing; see lockctl run --help")
	}
	// Looked up before the lock is taken: a typo must not keep others waiting.
	path, err := exec.LookPath(command[0])
	if err != nil {
		return cannotRun(command[0], err)
	}
	g.create = c.Create
	// The command has to end at once after a break, also in the first second.
	s, err := g.open(natslock.WithTTL(c.TTL), natslock.WithWatchAfter(0))
	if err != nil {
		return err
	}
	defer s.close()

	signals := make(chan os.Signal, 16)
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // nohup stays nohup, for the command as well
			signal.Notify(signals, sig)
		}
	}
	lock, err := c.acquire(s, signals)
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: path, Args: command,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: append(os.Environ(),
			"LOCK_NAME="+c.Name,
			"LOCK_TOKEN="+strconv.FormatUint(lock.Token(), 10),
			"LOCK_TTL="+strconv.Itoa(int(c.ttl().Seconds()))),
	}
	if s.srv != nil { // for a lockctl or a service inside the command
		cmd.Env = append(cmd.Env, "NATS_URL="+s.url)
	}
	end, err := c.supervise(cmd, lock, signals, s)
	if end.stuck {
		return &codeError{code: exitLost}
	}
	unlock := lock.Unlock(context.Background())
	switch {
	case err != nil:
		return cannotRun(command[0], err)
	case end.lost != nil:
		end.code = exitLost
	case errors.Is(unlock, natslock.ErrLost): // noticed only now
		complain("%v; the command had ended, but may not have been alone", unlock)
		end.code = exitLost
	case unlock != nil:
		complain("the lock was held to the end, but is free only when its TTL is over: %v", unlock)
	}
	if end.code != 0 {
		return &codeError{code: end.code}
	}
	return nil
}

// ttl is the lease as the server keeps it.
func (c *runCmd) ttl() time.Duration { return (c.TTL + time.Second - 1).Truncate(time.Second) }

// method returns the method that takes the lock.
func (c *runCmd) method(client *natslock.Client, once bool) func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error) {
	rw := rwlock.New(client)
	switch {
	case c.Read && once:
		return rw.TryRLock
	case c.Read:
		return rw.RLock
	case c.Write && once:
		return rw.TryLock
	case c.Write:
		return rw.Lock
	case once:
		return client.TryLock
	}
	return client.Lock
}

// acquire waits for the lock. A signal ends the wait with the exit code that it
// would have had without a handler.
func (c *runCmd) acquire(s *session, signals <-chan os.Signal) (*natslock.Lock, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	acquired, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case sig := <-signals:
			cancel(signaled{sig.(syscall.Signal)})
		case <-acquired:
		}
	}()
	// Detached: what ends the waiting is not to end the lock.
	opts := []natslock.LockOption{natslock.TTL(c.TTL), natslock.Detached()}
	if len(c.Meta) > 0 {
		opts = append(opts, natslock.Meta(c.Meta))
	}
	once := c.Nonblock || c.Wait != nil && *c.Wait == 0
	if c.Wait != nil && !once {
		opts = append(opts, natslock.MaxWait(time.Duration(*c.Wait)))
	}
	lock, err := c.method(s.Client, once)(ctx, c.Name, opts...)
	close(acquired)
	<-watched
	if sig, ok := context.Cause(ctx).(signaled); ok {
		if lock != nil {
			_ = lock.Unlock(ctx)
		}
		return nil, exitf(exitSignal+int(sig.sig), "gave up waiting for lock %s: %v", plain(c.Name), sig)
	}
	if errors.Is(err, natslock.ErrLocked) || errors.Is(err, natslock.ErrTimeout) {
		return nil, &codeError{c.ConflictExitCode, err}
	}
	return lock, err
}

// cannotRun is the error of a command that was not started, with the code of
// the shells.
func cannotRun(name string, err error) error {
	code := exitNotExec
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	if wrapped, ok := errors.AsType[*exec.Error](err); ok {
		err = wrapped.Err
	}
	if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
		err = wrapped.Err
	}
	return exitf(code, "cannot run %s: %w", plain(name), err)
}

// announceOutages prints when the connection goes and comes. The lock survives an outage,
// but not for long.
func announceOutages(nc *nats.Conn, lock *natslock.Lock) {
	nc.SetDisconnectErrHandler(func(nc *nats.Conn, err error) {
		if !nc.IsClosed() && lock.State() == natslock.Held {
			complain("connection lost (%v); the lock is lost in %s unless it comes back", err, brief(lock.Remaining()))
		}
	})
	nc.SetReconnectHandler(func(nc *nats.Conn) { complain("connected again to %s", nc.ConnectedUrlRedacted()) })
}

// seconds is a duration written as a number, as for flock and timeout, or with
// a unit.
type seconds time.Duration

// Decode implements kong.MapperValue.
func (s *seconds) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("seconds", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if n, errN := strconv.ParseFloat(text, 64); errN == nil && n < 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a number of seconds", text)
	}
	*s = seconds(d)
	return nil
}
