// Package partition divides a fixed number of partitions (subjects, shards, tenants, jobs)
// among workers. One live worker owns each partition, each worker owns the same number, give or
// take one, and few partitions move when a worker joins or leaves. The package uses the bucket,
// leases and errors of a [natslock.Client].
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
//			case <-p.Leaving(): // another worker is to have it: the item in work is done
//				return nil
//			case <-ctx.Done(): // lost, or too slow to leave
//				return context.Cause(ctx)
//			}
//		}
//	})
//
// # How it works
//
// A worker is a member by holding the mutex "ingest.member.<id>", and owns a partition by
// holding "ingest.part.<number>". Once the members have stayed the same for half a second, each
// worker computes the plan by itself from one list of these locks, and waits for the locks that
// the plan gives it. The holder of such a lock notices the waiter, reads the list again, and
// gives way if the partition is no longer its own. There is no leader, and the bucket holds no
// plan.
//
// So disagreement about the members costs time, but never exclusion: at most one worker owns a
// partition inside its validity, and each owner has a higher fencing token than all earlier
// ones. Pass [Partition.Token] to the resource that the worker changes: a resource that refuses
// lower tokens is safe from a worker that was paused past its validity.
//
// # What to expect
//
// With n workers of equal weight, each owns p/n partitions, rounded down or up. A worker that
// joins gets its share from the others, and no partition moves between those. A worker that
// leaves hands each partition to its next owner. The partitions of a crashed worker have owners
// again after their TTL and a second.
//
// While a partition moves it has no owner: from the time the old owner's function returns until
// the new owner's is called, a round trip or two later. If the function fails, its worker tries
// again after a pause. "lockctl partitions" shows a group.
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

// MaxPartitions is the largest number of partitions in a group.
const MaxPartitions = 10_000

// maxGroup limits the length of a group's name, which has to leave room in the names of its locks.
const maxGroup = 500

// maxWeight is the largest weight of a worker.
const maxWeight = 1000

// defaultDrain limits how long a function may take to return when its partition is to move.
const defaultDrain = 10 * time.Second

// ErrDrainTime is the cause that ends the context of a function that does not return within the
// drain time after [Partition.Leaving] was closed: see [Drain].
var ErrDrainTime = errors.New("the drain time is over")

// Group is a worker's view of a group, and its place in it. Create it with [New]. Methods of
// a zero Group return an error that matches [natslock.ErrInvalid], or zero values. It is safe
// for concurrent use.
type Group struct {
	c       *natslock.Client
	name    string
	count   int
	err     error // of the arguments
	id      string
	weight  int
	drain   time.Duration
	meta    map[string]string
	opts    []natslock.LockOption
	onEvent func(Event)

	mu      sync.Mutex
	running bool
	w       *worker // of the Run in progress, or nil
	stats   Stats
}

// Option configures a [Group].
type Option func(*Group) error

// ID names the worker, in 1 to 200 bytes. Each worker of a group needs its own ID: a worker
// whose ID is taken waits until the other worker has left, and reports the wait after a second
// and then every 30 s with an [EventUnavailable] and a warning. The default is the host's name
// and a random part. An invalid ID makes the methods of the Group return [natslock.ErrInvalid].
// Most bytes other than letters and digits take three of the 512 bytes of the lock's name.
func ID(id string) Option {
	return func(g *Group) error {
		if id == "" || len(id) > 200 {
			return fmt.Errorf("%w: the id of a worker has 1 to 200 bytes, this one has %d", natslock.ErrInvalid, len(id))
		}
		g.id = id
		return nil
	}
}

// Weight gives the worker n shares instead of 1: a worker of weight 2 owns twice as many
// partitions as one of weight 1. n must be 1 to 1000, or the methods of the Group return
// [natslock.ErrInvalid].
func Weight(n int) Option {
	return func(g *Group) error {
		g.weight = n
		return checkWeight(n)
	}
}

func checkWeight(n int) error {
	if n < 1 || n > maxWeight {
		return fmt.Errorf("%w: a weight of %d: 1 to %d are possible", natslock.ErrInvalid, n, maxWeight)
	}
	return nil
}

func checkCount(n int) error {
	if n < 1 || n > MaxPartitions {
		return fmt.Errorf("%w: %d partitions: 1 to %d are possible", natslock.ErrInvalid, n, MaxPartitions)
	}
	return nil
}

// checkGroup refuses a name that would change the meaning of a pattern that contains it.
func checkGroup(name string) error {
	if name == "" || len(name) > maxGroup || strings.ContainsAny(name, "*>") {
		return fmt.Errorf("%w: a group %.64q: the name is empty, has more than %d bytes or a wildcard", natslock.ErrInvalid, name, maxGroup)
	}
	return nil
}

// Drain limits how long the function of a partition may take to return after
// [Partition.Leaving] was closed: 10 s by default. After d its context ends with the cause
// [ErrDrainTime], and the worker keeps the partition until the function returns. A d that is
// not positive makes the methods of the Group return [natslock.ErrInvalid].
func Drain(d time.Duration) Option {
	return func(g *Group) error {
		if d <= 0 {
			return fmt.Errorf("%w: a drain time of %v", natslock.ErrInvalid, d)
		}
		g.drain = d
		return nil
	}
}

// TTL sets the TTL of the membership and of the partitions, instead of the client's. It has the
// limits of [natslock.TTL], or Run returns [natslock.ErrInvalid]. A worker that crashes leaves
// its partitions without an owner for one TTL. A worker renews each of its leases three times
// per TTL.
func TTL(d time.Duration) Option {
	return func(g *Group) error {
		g.opts = append(g.opts, natslock.TTL(d))
		return nil
	}
}

// Meta attaches data to the worker, such as an address: see [Member.Meta]. Anyone who can read
// the bucket sees it. The keys "member", "weight" and "partitions" are reserved: with one of
// them the methods of the Group return [natslock.ErrInvalid].
func Meta(m map[string]string) Option {
	m = maps.Clone(m)
	return func(g *Group) error {
		for _, k := range []string{idKey, weightKey, countKey} {
			if _, ok := m[k]; ok {
				return fmt.Errorf("%w: the metadata of a worker have the key %q, which is taken", natslock.ErrInvalid, k)
			}
		}
		g.meta = m
		return nil
	}
}

// OnEvent makes [Group.Run] call fn for each event of the worker. The calls are made one at a
// time, on a goroutine of their own. Run returns only after the last one. A nil fn makes the
// methods of the Group return [natslock.ErrInvalid].
func OnEvent(fn func(Event)) Option {
	return func(g *Group) error {
		if fn == nil {
			return fmt.Errorf("%w: OnEvent: the function is nil", natslock.ErrInvalid)
		}
		g.onEvent = fn
		return nil
	}
}

// New returns a worker's view of a group. The names of the group's locks begin with name, which
// must not contain wildcards. partitions is 1 to [MaxPartitions], and must always be the same
// for all workers of a group: the member that joined first decides, and Run refuses any other
// number with [ErrCount]. New does no I/O, and the Group does not need to be closed.
// [Group.Run] reports an invalid argument.
func New(c *natslock.Client, name string, partitions int, opts ...Option) *Group {
	g := &Group{c: c, name: name, count: partitions, weight: 1, drain: defaultDrain}
	if c == nil {
		g.err = fmt.Errorf("%w: no client", natslock.ErrInvalid)
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
		host, _ := os.Hostname() // without it, the random part is enough
		g.id = host[:min(len(host), 100)] + "-" + rand.Text()[:8]
	}
	return g
}

// ready refuses a group that was not made by New, or was made with invalid arguments.
func (g *Group) ready() error {
	switch {
	case g == nil || g.c == nil && g.err == nil:
		return fmt.Errorf("%w: a partition.Group made without New", natslock.ErrInvalid)
	case g.err != nil:
		return fmt.Errorf("partitions of %.64q: %w", g.name, g.err)
	}
	return nil
}

// Name returns the name of the group.
func (g *Group) Name() string {
	if g == nil {
		return ""
	}
	return g.name
}

// ID returns the worker's id.
func (g *Group) ID() string {
	if g == nil {
		return ""
	}
	return g.id
}

// worker calls read with the worker of the Run in progress, if there is one.
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

// Owned returns the numbers of the partitions that the worker holds now, including those that
// it is about to leave. Outside Run there are none. It does no I/O.
func (g *Group) Owned() (numbers []int) {
	g.worker(func(w *worker) { numbers = w.owned() })
	return numbers
}

// Members returns the members as the worker last read them, in the order in which they joined.
// Outside Run there are none. It does no I/O.
func (g *Group) Members() (members []Member) {
	g.worker(func(w *worker) { members = slices.Clone(w.members) })
	return members
}

// Plan returns for each partition the ID of the member that is to own it, according to what the
// worker last read. It is nil outside Run and before the first read. It does no I/O.
func (g *Group) Plan() (ids []string) {
	g.worker(func(w *worker) { ids = slices.Clone(w.plan) })
	return ids
}

// Stats holds a worker's counters since New, and its state.
type Stats struct {
	Members  int // as last read
	Planned  int // partitions that the worker is to own
	Owned    int // partitions that it holds
	Waiting  int // partitions that it waits for
	Draining int // partitions that it holds and is about to leave

	Granted uint64 // partitions that it got
	Drained uint64 // partitions that it left because another worker is to have them, or because Run ends
	Slow    uint64 // those of them whose function did not return within the drain time
	Failed  uint64 // functions that returned before they were asked to, with or without an error
	Lost    uint64 // partitions whose lease was lost or broken
	Reads   uint64 // reads of the group
}

// Stats returns the counts. It does no I/O.
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

// Partition is a partition that the worker owns, as passed to the function of [Group.Run]. A
// zero Partition is like a zero [natslock.Lock]. It is safe for concurrent use.
type Partition struct {
	number  int
	lock    *natslock.Lock
	leaving chan struct{}
}

// Number returns the number of the partition, from 0.
func (p *Partition) Number() int {
	if p == nil {
		return 0
	}
	return p.number
}

// Token returns the fencing token: see [natslock.Lock.Token]. The token of a partition rises with
// each owner.
func (p *Partition) Token() uint64 { return p.Lock().Token() }

// Leaving returns a channel that is closed when another worker is to have the partition, or
// when Run is about to return. The function then has the drain time to finish what it has begun
// and return: see [Drain]. The channel is nil for a zero Partition.
func (p *Partition) Leaving() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.leaving
}

// Lock returns the lock of the partition. The worker unlocks it when the function has returned.
func (p *Partition) Lock() *natslock.Lock {
	if p == nil {
		return nil
	}
	return p.lock
}

// EventType is the type of an [Event].
type EventType int

const (
	// EventJoined: the worker is a member of the group.
	EventJoined EventType = iota + 1
	// EventLeft: the worker is no longer a member. Err says why. When Run is about to return,
	// Err is nil, or matches [natslock.ErrUnavailable] if the server has not confirmed the end
	// of the membership, which then ends with its TTL.
	EventLeft
	// EventGranted: the worker owns a partition, and its function begins unless the lock is lost
	// first.
	EventGranted
	// EventLeaving: another worker is to have the partition, or Run is about to return.
	EventLeaving
	// EventReleased: the function has returned, and the partition is free. Err is the
	// function's error. It matches [ErrDrainTime] if the function was too slow, and
	// [natslock.ErrUnavailable] if the server has not confirmed the release: the partition is
	// then free at the end of its TTL.
	EventReleased
	// EventFailed: the function returned before it was asked to, with or without Err. The worker
	// tries again after a pause.
	EventFailed
	// EventLost: the lease of the partition was lost or broken, and the function has returned. Err
	// says why.
	EventLost
	// EventSlow: the function has not returned within the drain time. Its context has ended,
	// and the worker keeps the partition until the function returns.
	EventSlow
	// EventUnavailable: the group could not be read or a lock could not be taken, and Err says why.
	// The worker tries again.
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

// Event is something that happened to a worker: see [OnEvent].
type Event struct {
	Type EventType
	Time time.Time
	// Partition is the number of the partition, or -1.
	Partition int
	// Token is the fencing token of the partition, or of the membership.
	Token uint64
	// Held is the time from the grant until now, or until the function returned.
	Held time.Duration
	Err  error
}
