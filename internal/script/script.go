// Package script provides the locks that lockctl takes for scripts. No process renews such a lock. Its
// record stays held after the process that took the lock has ended, and the script's processes extend and
// release the lock by its handle.
package script

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
	lockadmin "github.com/natslock/locks/natslock/admin"
)

// Handle identifies a script's lock. Processes pass it on as text, and a script can use it any number of
// times. It is not a secret: any client that is allowed to write the lock's record can use it.
type Handle struct {
	admin.Left
	TTL time.Duration // as requested when the lock was taken
}

// Lasts says how long a lock lasts unless it is extended.
type Lasts = admin.Extended

// handleText is the prefix of every handle's text.
const handleText = "natslock-script-1"

// Kind returns the lock's kind.
func (h Handle) Kind() lockadmin.Kind { return lockadmin.Kind(h.key().Kind()) }

// Name returns the lock's name.
func (h Handle) Name() string { return h.key().Name }

// Mode returns the lock's mode.
func (h Handle) Mode() lockadmin.Mode {
	if h.key().Prefix == record.ReaderPrefix {
		return lockadmin.Shared
	}
	return lockadmin.Exclusive
}

// Slot returns the number of the semaphore permit, if the lock is one.
func (h Handle) Slot() (n int, ok bool) { return h.key().Slot, h.key().Prefix == record.SlotPrefix }

func (h Handle) key() record.Key {
	k, _ := record.ParseKey(h.Key)
	return k
}

// MarshalText returns the handle as one word of printable characters.
func (h Handle) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%s:%s:%s:%d:%d", handleText, h.Key, h.ID, h.Token, int64(h.TTL/time.Second)), nil
}

// UnmarshalText parses the text of a handle. On failure, the error matches natslock.ErrInvalid and h is
// unchanged.
func (h *Handle) UnmarshalText(text []byte) error {
	fields := strings.Split(string(text), ":")
	switch {
	case strings.HasPrefix(string(text), "natslock-handle-1:"):
		return fmt.Errorf("handle: %w: this handle was issued by a program's Lock.Handoff, and only a program can adopt it", natslock.ErrInvalid)
	case len(fields) != 5 || fields[0] != handleText:
		return fmt.Errorf("handle: %w: %.64q is not a handle", natslock.ErrInvalid, text)
	}
	k, known := record.ParseKey(fields[1])
	token, err := strconv.ParseUint(fields[3], 10, 64)
	seconds, err2 := strconv.ParseUint(fields[4], 10, 31)
	ttl, err3 := clock.RoundTTL(time.Duration(seconds)*time.Second, true)
	foreign := func(c rune) bool {
		return c > 'z' || !strings.ContainsRune("-_/=.", c) && !('0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c)
	}
	if !known || k.Waits() || strings.ContainsFunc(fields[1], foreign) || fields[2] == "" || token == 0 || err != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("handle: %w: %.64q cannot be read", natslock.ErrInvalid, text)
	}
	*h = Handle{admin.Left{Key: fields[1], ID: fields[2], Token: token}, ttl}
	return nil
}

var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// For returns an option that makes a client's locks identify the script's process as their holder.
func For(pid int) natslock.Option { return inside.Process(pid) }

// Options returns the options for acquiring a lock for a handle.
func Options() []natslock.LockOption {
	return []natslock.LockOption{natslock.NoRenew(), inside.Purpose("script")}
}

// Leave ends l, which the client does not renew, and leaves its record to whoever has the handle. ttl is
// the lock's TTL. The error matches natslock.ErrLost if the lock was already lost.
func Leave(l *natslock.Lock, ttl time.Duration) (Handle, Lasts, error) {
	t := clock.NewTerms(clock.CeilSecond(ttl))
	h := Handle{admin.Left{ID: l.ID(), Token: l.Token()}, t.TTL}
	valid := l.Remaining() // read before Leave ends l
	key, err := inside.Leave(l)
	if err != nil {
		return Handle{}, Lasts{}, err
	}
	h.Key = key
	return h, Lasts{TTL: t.TTL, Margin: t.Margin, Until: clock.Now().Add(valid)}, nil
}

// Extend gives the lock a TTL that starts now: ttl, or the handle's TTL if ttl is 0. It never shortens
// the time that the lock has left. The error matches natslock.ErrLost if the lock was lost.
func (h Handle) Extend(ctx context.Context, c *natslock.Client, ttl time.Duration) (Lasts, error) {
	a, err := adminOf(ctx, c)
	if err != nil {
		return Lasts{}, err
	}
	if ttl == 0 {
		ttl = h.TTL
	}
	return a.Extend(ctx, h.Left, ttl)
}

// Release releases the lock. The error matches natslock.ErrLost if the lock was already lost.
func (h Handle) Release(ctx context.Context, c *natslock.Client) error {
	a, err := adminOf(ctx, c)
	if err != nil {
		return err
	}
	return a.Release(ctx, h.Left)
}

func adminOf(ctx context.Context, c *natslock.Client) (*admin.Admin, error) {
	return inside.Admin(ctx, c)
}
