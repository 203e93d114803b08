package main

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// envHeld is the environment variable that lists the locks held around a command, outermost
// first, as TOKEN:NAME pairs separated by spaces. Names are escaped like URL path segments.
const envHeld = "LOCKCTL_HELD"

// withHeld returns the value of envHeld for a command that runs under the given lock, in
// addition to the locks around this process.
func withHeld(con *console.Console, name string, token uint64) string {
	return strings.TrimSpace(con.Getenv(envHeld) + " " + strconv.FormatUint(token, 10) + ":" + url.PathEscape(name))
}

// tokensAround returns the fencing tokens of the locks called name that are held around this
// process, according to its environment. It considers LOCK_NAME and LOCK_TOKEN in addition to
// envHeld, because another program may have set them.
func tokensAround(con *console.Console, name string) (tokens []uint64) {
	add := func(token, of string) {
		if n, err := strconv.ParseUint(token, 10, 64); err == nil && of == name && !slices.Contains(tokens, n) {
			tokens = append(tokens, n)
		}
	}
	for _, entry := range strings.Fields(con.Getenv(envHeld)) {
		token, escaped, _ := strings.Cut(entry, ":")
		if of, err := url.PathUnescape(escaped); err == nil {
			add(token, of)
		}
	}
	add(con.Getenv("LOCK_TOKEN"), con.Getenv("LOCK_NAME"))
	return tokens
}

// nesting describes what a command wants from a lock, and which locks of the same name are
// already held around the command.
type nesting struct {
	shared  bool // the command wants to read
	permits int  // number of permits that the command specifies for the semaphore
	around  []uint64
}

// refuse returns an error if the command would wait for itself, because the lock is held around
// it and will not be released until it ends. Tokens distinguish that lock from a lock of the
// same name elsewhere. A broken or overdue claim does not matter, because it ends on its own.
//
// Readers share a lock unless a writer is ahead, because that writer would wait for the reader
// around this command. On a semaphore, the command would wait for itself if the commands around
// it hold every slot within its own number of permits, or within the number specified by a
// waiter ahead of it.
func (n nesting) refuse(info admin.Info) error {
	var mine []show.Holding
	for _, h := range show.Holdings(info) {
		if slices.Contains(n.around, h.Token) && h.Broken == nil && !h.Overdue {
			mine = append(mine, h)
		}
	}
	const advice = "waiting here would deadlock: run this command without lockctl, or take another lock"
	switch name := show.Plain(info.Name); {
	case len(mine) == 0:
	case info.Kind == admin.KindSemaphore:
		numbers := []int{n.permits}
		for _, w := range info.Queue {
			if !w.Overdue && w.Of > 0 {
				numbers = append(numbers, w.Of)
			}
		}
		for _, of := range numbers {
			mineOf := 0
			for _, h := range mine {
				if h.Slot < of {
					mineOf++
				}
			}
			if mineOf >= of {
				return tool.Usagef("semaphore %s has %s, already held by enclosing commands; %s", name, show.Count(of, "permit"), advice)
			}
		}
	case n.shared && mine[0].Mode == admin.Shared:
		writes := func(w admin.Waiter) bool { return w.Mode == admin.Exclusive && !w.Overdue }
		if info.Holder != nil && !info.Holder.Overdue && info.Holder.Broken == nil || slices.ContainsFunc(info.Queue, writes) {
			return tool.Usagef("lock %s is already read-locked by an enclosing command (LOCK_TOKEN=%d), and a writer is waiting for it; %s", name, mine[0].Token, advice)
		}
	default:
		return tool.Usagef("lock %s is already held by an enclosing command (LOCK_TOKEN=%d); %s", name, mine[0].Token, advice)
	}
	return nil
}

// check calls refuse with the lock's current state.
func (n nesting) check(ctx context.Context, s *session.Session, kind admin.Kind, name string) error {
	if len(n.around) == 0 {
		return nil
	}
	reading, cancel := context.WithTimeout(ctx, queueLimit)
	defer cancel()
	info, err := admin.New(s.Client).Inspect(reading, kind, name)
	if err != nil {
		return nil // the acquire will report the error
	}
	return n.refuse(info)
}

// reads returns a lockFunc that takes a lock for reading, on behalf of a command that may
// already run under a read lock. The lockFunc calls refuse again before it waits, so that it
// does not queue behind a writer that has arrived since the first check.
func (n *nesting) reads(client *natslock.Client, try, wait lockFunc) lockFunc {
	return func(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
		if len(n.around) > 0 {
			lock, err := try(ctx, name, opts...)
			if !errors.Is(err, natslock.ErrLocked) {
				return lock, err
			}
			reading, cancel := context.WithTimeout(ctx, queueLimit)
			defer cancel()
			if info, err := admin.New(client).Inspect(reading, admin.KindRW, name); err == nil {
				if err := n.refuse(info); err != nil {
					return nil, err
				}
			}
		}
		return wait(ctx, name, opts...)
	}
}
