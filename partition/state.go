package partition

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Member is a worker in a group, as recorded in the bucket.
type Member struct {
	// ID is the worker's ID: see [ID].
	ID string
	// Weight is the worker's weight: see [Weight].
	Weight int
	// Token is the membership's fencing token. The member that joined first has the lowest.
	Token uint64
	// Owner is the name of the worker's client: see [natslock.WithOwner].
	Owner string
	// Host and PID identify the worker's process.
	Host string
	PID  int
	// Since is when the worker joined, according to its own clock.
	Since time.Time
	// Meta is the worker's metadata: see [Meta].
	Meta map[string]string

	count int // the number of partitions that the worker was started with
}

// Placement shows a partition's current and planned owner.
type Placement struct {
	// Number is the partition's number, counting from 0.
	Number int
	// Member is the ID of the worker that owns the partition, even if that worker is leaving the
	// group. It is empty if the partition has no owner.
	Member string
	// Former is true if the owner is not the current member with that ID, but an earlier process
	// with the same ID.
	Former bool
	// Holder describes the holder of the partition's lock, or is nil if there is none.
	Holder *admin.Holder
	// Planned is the ID of the member that the plan assigns the partition to. It is empty if the
	// group has no members.
	Planned string
	// Waiting is the number of workers that are waiting for the partition's lock.
	Waiting int
}

// State describes a group, as recorded in the bucket.
type State struct {
	// Group is the group's name.
	Group string
	// Count is the number of partitions in the group, as set by the member that joined first. In
	// a group without members it is a lower bound, derived from the highest partition that is
	// held or waited for.
	Count int
	// Members lists the members that agree on Count, in the order in which they joined.
	Members []Member
	// Refused lists the members that were started with a different number of partitions and are
	// about to leave.
	Refused []Member
	// Partitions lists all partitions, ordered by number.
	Partitions []Placement

	// known contains the tokens of all held locks with a member's name, even of those whose
	// record does not describe a member.
	known map[uint64]struct{}
}

// Keys in the metadata of a group's locks.
const (
	idKey     = "member"
	weightKey = "weight"
	countKey  = "partitions"
)

func memberName(group, id string) string  { return group + ".member." + natslock.Join(id) }
func lockName(group string, k int) string { return group + ".part." + strconv.Itoa(k) }

// Inspect reads a group: its members, and the current and planned owner of each partition. It
// reads the locks one after another, so the result is not a snapshot. A group without members or
// owners is not an error.
//
// If group is not a valid name, the error matches [natslock.ErrInvalid]. Other errors are those
// of [admin.Admin.List].
func Inspect(ctx context.Context, c *natslock.Client, group string) (State, error) {
	if err := checkGroup(group); err != nil {
		return State{}, err
	}
	g := newReading(group)
	// Use two requests, because a single one could be too large.
	for _, locks := range []string{".member.*", ".part.*"} {
		for info, err := range admin.New(c).List(ctx, group+locks) {
			if err != nil {
				return State{}, fmt.Errorf("partitions of %q: %w", group, err)
			}
			g.add(info)
		}
	}
	g.settle(g.owned)
	return g.State, nil
}

// Groups returns the groups found in locks, which come from [admin.Admin.List]. The groups are
// sorted by name, and each is what [Inspect] would return. A group exists while it has a member
// or a worker owns one of its partitions. Groups does no I/O.
func Groups(locks []admin.Info) []State {
	found := make(map[string]*reading)
	for _, info := range locks {
		head, _, _ := cutLast(info.Name)
		group, room, ok := cutLast(head)
		if !ok || room != "member" && room != "part" || checkGroup(group) != nil {
			continue
		}
		if found[group] == nil {
			found[group] = newReading(group)
		}
		found[group].add(info)
	}
	var groups []State
	for _, name := range slices.Sorted(maps.Keys(found)) {
		g := found[name]
		if len(g.Members) > 0 || slices.ContainsFunc(g.owned, func(p Placement) bool { return p.Member != "" }) {
			g.settle(g.owned)
			groups = append(groups, g.State)
		}
	}
	return groups
}

// cutLast splits a name at its last dot.
func cutLast(name string) (head, last string, ok bool) {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return name[:i], name[i+1:], true
	}
	return name, "", false
}

// reading is a group whose locks are still being read.
type reading struct {
	State
	owned []Placement // in no particular order
}

func newReading(group string) *reading {
	return &reading{State: State{Group: group, known: make(map[uint64]struct{})}}
}

// add records one of the group's locks.
func (g *reading) add(info admin.Info) {
	if info.Kind != admin.KindMutex {
		return
	}
	rest := strings.TrimPrefix(info.Name, g.Group+".")
	if number, ok := strings.CutPrefix(rest, "part."); ok {
		if k, err := strconv.Atoi(number); err == nil && k >= 0 && k < MaxPartitions && info.Name == lockName(g.Group, k) {
			p := Placement{Number: k, Waiting: info.Waiting()}
			if h := info.Holder; live(h) {
				p.Holder, p.Member = h, h.Meta[idKey]
			}
			g.owned = append(g.owned, p)
		}
	} else if strings.HasPrefix(rest, "member.") && live(info.Holder) {
		g.known[info.Holder.Token] = struct{}{}
		if m, ok := memberOf(info.Holder); ok && info.Name == memberName(g.Group, m.ID) {
			g.Members = append(g.Members, m)
		}
	}
}

// live reports whether h still renews its lease. A holder whose lease was broken by an operator
// is about to stop, so it is not live.
func live(h *admin.Holder) bool {
	return h != nil && !h.Overdue && h.Broken == nil && !h.Fixed && !h.Unreadable
}

// holds reports whether h belongs to the member's process.
func (m *Member) holds(h *admin.Holder) bool {
	return h != nil && h.Owner == m.Owner && h.Host == m.Host && h.PID == m.PID
}

// memberOf returns the member that h describes, and false if the lock merely has the name of a
// member's lock.
func memberOf(h *admin.Holder) (Member, bool) {
	weight, err := strconv.Atoi(h.Meta[weightKey])
	count, err2 := strconv.Atoi(h.Meta[countKey])
	m := Member{
		ID: h.Meta[idKey], Weight: weight, Token: h.Token, Owner: h.Owner, Host: h.Host, PID: h.PID, Since: h.Since,
		Meta: maps.Clone(h.Meta), count: count,
	}
	for _, k := range []string{idKey, weightKey, countKey} {
		delete(m.Meta, k)
	}
	return m, err == nil && err2 == nil && m.ID != "" && checkWeight(weight) == nil && checkCount(count) == nil
}

// settle derives the rest of the state from the locks that were read. The member that joined
// first determines the number of partitions.
func (g *State) settle(owned []Placement) {
	slices.SortFunc(g.Members, func(a, b Member) int { return cmp.Compare(a.Token, b.Token) })
	if len(g.Members) > 0 {
		g.Count = g.Members[0].count
	} else {
		for _, p := range owned {
			g.Count = max(g.Count, p.Number+1)
		}
	}
	counts := func(m Member) bool { return m.count == g.Count }
	for _, m := range g.Members {
		if !counts(m) {
			g.Refused = append(g.Refused, m)
		}
	}
	g.Members = slices.DeleteFunc(g.Members, func(m Member) bool { return !counts(m) })
	g.Partitions = make([]Placement, g.Count)
	for k := range g.Partitions {
		g.Partitions[k].Number = k
	}
	for _, p := range owned {
		if p.Number < g.Count {
			g.Partitions[p.Number] = p
		}
	}
	for k, id := range g.planned() {
		p := &g.Partitions[k]
		p.Planned = id
		p.Former = slices.ContainsFunc(g.Members, func(m Member) bool { return m.ID == p.Member && !m.holds(p.Holder) })
	}
}

// planned returns the ID of each partition's planned owner.
func (g *State) planned() []string {
	owners := make([]owner, len(g.Partitions))
	for k, p := range g.Partitions {
		if p.Holder != nil {
			owners[k] = owner{p.Member, p.Holder.Token}
		}
	}
	return plan(g.Members, owners)
}

// has reports whether the membership with this token was read.
func (g *State) has(token uint64) bool {
	_, ok := g.known[token]
	return ok
}

// others returns all members except the one with this token.
func (g *State) others(token uint64) []Member {
	return slices.DeleteFunc(slices.Clone(g.Members), func(m Member) bool { return m.Token == token })
}
