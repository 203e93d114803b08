// Package partition divides a fixed number of partitions (subjects, shards, tenants, jobs) among
// workers. Each partition is owned by one live worker, all workers own the same number of
// partitions, give or take one, and few partitions move when a worker joins or leaves. The
// package shares the bucket, leases and errors of a [natslock.Client].
//
// # Usage
//
//	g := partition.New(locks, "ingest", 64)
//	err := g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
//		for {
//			select {
//			case m := <-messages(p.Number()):
//				if err := process(ctx, m, p.Token()); err != nil {
//					return err
//				}
//			case <-p.Leaving(): // the current item is done, and another worker takes over
//				return nil
//			case <-ctx.Done(): // lost, or too slow to leave
//				return context.Cause(ctx)
//			}
//		}
//	})
//
// # How it works
//
// A worker is a member of the group while it holds the mutex "ingest.member.<id>", and owns a
// partition while it holds "ingest.part.<number>". Once the members have not changed for half a
// second, each worker lists these locks, computes the plan by itself, and queues for the locks
// that the plan assigns to it. A worker that holds one of these locks notices the waiter, lists
// the locks again, and gives up the partition if the new plan assigns it elsewhere. There is no
// leader, and the plan is not stored in the bucket.
//
// If workers disagree about the members, partitions take longer to move, but exclusion still
// holds: at most one worker owns a partition within its validity, and each owner has a higher
// fencing token than all owners before it. Pass [Partition.Token] to the resource that the worker
// modifies: a resource that rejects lower tokens is safe from a worker that was paused past its
// validity.
//
// # What to expect
//
// Each of n workers of equal weight owns p/n of the p partitions, rounded down or up. A worker
// that joins takes its share from the others, and no partition moves between the existing
// workers. A worker that leaves hands each partition to its next owner. The partitions of a
// crashed worker get new owners after their TTL plus a second.
//
// A partition that moves has no owner between the moment the old owner's function returns and the
// moment the new owner's function is called, one or two round trips later. If the function fails,
// its worker tries again after a pause. "lockctl partitions" shows a group.
package partition

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/natslock"
)

// MaxPartitions is the maximum number of partitions in a group.
const MaxPartitions = 10_000

// maxGroup is the maximum length of a group's name. It leaves room for the suffixes of the
// group's lock names.
const maxGroup = 500

// maxWeight is the maximum weight of a worker.
const maxWeight = 1000

// defaultDrain is the default for [Drain].
const defaultDrain = 10 * time.Second

// ErrDrainTime is the cause with which a function's context ends if the function has not returned
// within the drain time: see [Drain].
var ErrDrainTime = errors.New("the drain time is over")

// Group lets a worker join a group and observe it. Create one with [New]. It is safe for
// concurrent use. The methods of a zero Group return zero values, or an error that matches
// [natslock.ErrInvalid].
type Group struct {
	c       *natslock.Client
	name    string
	count   int
	err     error // an invalid argument of New
	id      string
	weight  int
	drain   time.Duration
	meta    map[string]string
	opts    []natslock.LockOption
	onEvent func(Event)

	mu      sync.Mutex
	running bool
	w       *worker // the worker of the Run in progress, or nil
	stats   Stats
}

// Option configures a [Group].
type Option func(*Group) error

// ID sets the worker's ID, which must be unique within the group. If another worker has the same
// ID, this one waits until that worker has left, and reports the wait with an [EventUnavailable]
// and a warning, after a second and then every 30 s. The default ID is the host name followed by
// a random suffix.
//
// An ID has 1 to 200 bytes, or the Group's methods return [natslock.ErrInvalid]. It is part of a
// lock's name, which can have up to 512 bytes, and most bytes other than letters and digits take
// up three of them.
func ID(id string) Option {
	return func(g *Group) error {
		if id == "" || len(id) > 200 {
			return fmt.Errorf("%w: a worker ID must have 1 to 200 bytes, not %d", natslock.ErrInvalid, len(id))
		}
		g.id = id
		return nil
	}
}

// Weight sets the worker's weight, which is 1 by default. A worker of weight 2 owns twice as many
// partitions as one of weight 1. If n is not between 1 and 1000, the Group's methods return
// [natslock.ErrInvalid].
func Weight(n int) Option {
	return func(g *Group) error {
		g.weight = n
		return checkWeight(n)
	}
}

func checkWeight(n int) error {
	if n < 1 || n > maxWeight {
		return fmt.Errorf("%w: weight %d is out of range: must be 1 to %d", natslock.ErrInvalid, n, maxWeight)
	}
	return nil
}

func checkCount(n int) error {
	if n < 1 || n > MaxPartitions {
		return fmt.Errorf("%w: %d partitions are out of range: must be 1 to %d", natslock.ErrInvalid, n, MaxPartitions)
	}
	return nil
}

// checkGroup rejects an invalid group name. A wildcard in the name would change the meaning of
// the patterns that are built from it.
func checkGroup(name string) error {
	if name == "" || len(name) > maxGroup || strings.ContainsAny(name, "*>") {
		return fmt.Errorf("%w: group name %.64q is empty, longer than %d bytes, or contains a wildcard", natslock.ErrInvalid, name, maxGroup)
	}
	return nil
}

// Drain sets how long a partition's function may take to return after the channel of
// [Partition.Leaving] is closed. The default is 10 s. When the time is up, the function's context
// ends with the cause [ErrDrainTime], but the worker keeps the partition until the function
// returns. If d is not positive, the Group's methods return [natslock.ErrInvalid].
func Drain(d time.Duration) Option {
	return func(g *Group) error {
		if d <= 0 {
			return fmt.Errorf("%w: drain time %v must be positive", natslock.ErrInvalid, d)
		}
		g.drain = d
		return nil
	}
}

// TTL overrides the client's TTL for the worker's membership and its partitions. A crashed
// worker's partitions have no owner for one TTL. A worker renews each of its leases three times
// per TTL. If d is outside the limits of [natslock.TTL], Run returns [natslock.ErrInvalid].
func TTL(d time.Duration) Option {
	return func(g *Group) error {
		g.opts = append(g.opts, natslock.TTL(d))
		return nil
	}
}

// Meta attaches metadata to the worker, such as an address, which others can read in
// [Member.Meta]. Anyone who can read the bucket can see it. The keys "member", "weight" and
// "partitions" are reserved: if m contains one of them, the Group's methods return
// [natslock.ErrInvalid].
func Meta(m map[string]string) Option {
	m = maps.Clone(m)
	return func(g *Group) error {
		for _, k := range []string{idKey, weightKey, countKey} {
			if _, ok := m[k]; ok {
				return fmt.Errorf("%w: metadata key %q is reserved", natslock.ErrInvalid, k)
			}
		}
		g.meta = m
		return nil
	}
}

// OnEvent makes [Group.Run] call fn for each of the worker's events. Calls are made one at a time
// on a separate goroutine, and Run waits for the last one before it returns. If fn is nil, the
// Group's methods return [natslock.ErrInvalid].
func OnEvent(fn func(Event)) Option {
	return func(g *Group) error {
		if fn == nil {
			return fmt.Errorf("%w: OnEvent: the function is nil", natslock.ErrInvalid)
		}
		g.onEvent = fn
		return nil
	}
}

// New returns a Group for a worker of the named group. The names of the group's locks begin with
// name, which must not contain wildcards. partitions is between 1 and [MaxPartitions], and must
// always be the same for all workers of the group: the member that joined first sets the number,
// and Run rejects any other with [ErrCount]. New does no I/O, and the Group does not need to be
// closed. [Group.Run] reports invalid arguments.
func New(c *natslock.Client, name string, partitions int, opts ...Option) *Group {
	g := &Group{c: c, name: name, count: partitions, weight: 1, drain: defaultDrain}
	if c == nil {
		g.err = fmt.Errorf("%w: the client is nil", natslock.ErrInvalid)
	}
	g.err = cmp.Or(g.err, checkGroup(name), checkCount(partitions))
	for _, opt := range opts {
		switch {
		case g.err != nil:
		case opt == nil:
			g.err = fmt.Errorf("%w: an option is nil", natslock.ErrInvalid)
		default:
			g.err = opt(g)
		}
	}
	if g.id == "" {
		host, _ := os.Hostname() // without a host name, the random suffix is enough
		g.id = host[:min(len(host), 100)] + "-" + rand.Text()[:8]
	}
	return g
}

// ready returns an error if g did not come from New, or if New was called with an invalid
// argument.
func (g *Group) ready() error {
	switch {
	case g == nil || g.c == nil && g.err == nil:
		return fmt.Errorf("%w: the partition.Group was not created by New", natslock.ErrInvalid)
	case g.err != nil:
		return fmt.Errorf("partitions of %.64q: %w", g.name, g.err)
	}
	return nil
}

// Name returns the group's name.
func (g *Group) Name() string {
	if g == nil {
		return ""
	}
	return g.name
}

// ID returns the worker's ID.
func (g *Group) ID() string {
	if g == nil {
		return ""
	}
	return g.id
}

// worker calls read with the worker of the Run in progress, if any, while holding g.mu.
func (g *Group) worker(read func(w *worker)) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w != nil {
		read(g.w)
	}
}

// Owned returns the numbers of the partitions that the worker holds, including those it is about
// to give up. It is empty unless Run is in progress. It does no I/O.
func (g *Group) Owned() (numbers []int) {
	g.worker(func(w *worker) { numbers = w.owned() })
	return numbers
}

// Members returns the members, as the worker last read them, in the order in which they joined.
// It is empty unless Run is in progress. It does no I/O.
func (g *Group) Members() (members []Member) {
	g.worker(func(w *worker) { members = slices.Clone(w.members) })
	return members
}

// Plan returns the ID of each partition's planned owner, based on the worker's last read of the
// group. It is nil before the first read and outside Run. It does no I/O.
func (g *Group) Plan() (ids []string) {
	g.worker(func(w *worker) { ids = slices.Clone(w.plan) })
	return ids
}

// Stats holds a worker's current state, and its counters since the call to [New].
type Stats struct {
	Members  int // members, as last read
	Planned  int // partitions that the plan assigns to the worker
	Owned    int // partitions that the worker holds
	Waiting  int // partitions that the worker is waiting for
	Draining int // partitions that the worker holds but is about to give up

	Granted uint64 // partitions acquired
	Drained uint64 // partitions given up for another worker or because Run was ending
	Slow    uint64 // drained partitions whose function exceeded the drain time
	Failed  uint64 // functions that returned before they were asked to, with or without an error
	Lost    uint64 // partitions whose lease was lost or broken
	Reads   uint64 // reads of the group
}

// Stats returns the worker's statistics. It does no I/O.
func (g *Group) Stats() (s Stats) {
	if g == nil {
		return s
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s = g.stats
	if w := g.w; w != nil {
		s.Members, s.Reads = len(w.members), s.Reads+w.looks
		for k, slot := range w.slots {
			switch {
			case slot.phase == claiming:
				s.Waiting++
			case slot.phase == held:
				s.Owned++
			case slot.phase == leaving && !slot.since.IsZero():
				s.Owned++
				s.Draining++
			}
			if w.mine(k) {
				s.Planned++
			}
		}
	}
	return s
}

// Partition is a partition that the worker owns, as passed to the function of [Group.Run]. It is
// safe for concurrent use. A zero Partition behaves like a zero [natslock.Lock].
type Partition struct {
	number  int
	lock    *natslock.Lock
	leaving chan struct{}
}

// Number returns the partition's number, counting from 0.
func (p *Partition) Number() int {
	if p == nil {
		return 0
	}
	return p.number
}

// Token returns the partition's fencing token, which rises with each owner: see
// [natslock.Lock.Token].
func (p *Partition) Token() uint64 { return p.Lock().Token() }

// Leaving returns a channel that is closed when the partition is to move to another worker or Run
// is about to return. The function should then finish what it has begun, and return within the
// drain time: see [Drain]. For a zero Partition the channel is nil.
func (p *Partition) Leaving() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.leaving
}

// Lock returns the partition's lock. The worker unlocks it after the function has returned.
func (p *Partition) Lock() *natslock.Lock {
	if p == nil {
		return nil
	}
	return p.lock
}

// EventType is the type of an [Event].
type EventType int

const (
	// EventJoined means that the worker has become a member of the group.
	EventJoined EventType = iota + 1
	// EventLeft means that the worker is no longer a member, and Err says why. If Run is about to
	// return, Err is nil unless the server has not confirmed the end of the membership. In that
	// case it matches [natslock.ErrUnavailable], and the membership ends with its TTL.
	EventLeft
	// EventGranted means that the worker owns a partition. Its function is called next, unless
	// the lock is lost first.
	EventGranted
	// EventLeaving means that the partition is to move to another worker, or that Run is about to
	// return.
	EventLeaving
	// EventReleased means that the function has returned as asked, and that the partition is
	// free. Err is the function's error. It matches [ErrDrainTime] if the function was too slow,
	// and [natslock.ErrUnavailable] if the server has not confirmed the release. In that case the
	// partition becomes free at the end of its TTL.
	EventReleased
	// EventFailed means that the function returned before it was asked to, with or without an
	// error. The worker tries again after a pause.
	EventFailed
	// EventLost means that the partition's lease was lost or broken, and that the function has
	// returned. Err says why.
	EventLost
	// EventSlow means that the function has not returned within the drain time. Its context has
	// ended, but the worker keeps the partition until the function returns.
	EventSlow
	// EventUnavailable means that the worker could not read the group or take a lock, and will
	// try again. Err says why.
	EventUnavailable
)

// String returns the name of the type, such as "granted".
func (t EventType) String() string {
	names := []string{"joined", "left", "granted", "leaving", "released", "failed", "lost", "slow", "unavailable"}
	if t < 1 || int(t) > len(names) {
		return fmt.Sprintf("EventType(%d)", int(t))
	}
	return names[t-1]
}

// Event describes something that happened to a worker: see [OnEvent].
type Event struct {
	Type EventType
	Time time.Time
	// Partition is the partition's number, or -1 if the event does not concern a partition.
	Partition int
	// Token is the fencing token of the partition or the membership.
	Token uint64
	// Held is the time from the grant to the event, or to the function's return if the function
	// has returned.
	Held time.Duration
	Err  error
}
