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

// Member is a worker of a group as its record shows it.
type Member struct {
	// ID is the worker's ID: see [ID].
	ID string
	// Weight is the worker's number of shares: see [Weight].
	Weight int
	// Token is the fencing token of the membership. The member that joined first has the lowest.
	Token uint64
	// Owner is the name of the worker's client: see [natslock.WithOwner].
	Owner string
	// Host and PID name the worker's process.
	Host string
	PID  int
	// Since is the time at which the worker joined, by its own clock.
	Since time.Time
	// Meta is the worker's metadata: see [Meta].
	Meta map[string]string

	count int // the number of partitions that it was started with
}

// Placement shows the owner of a partition and the planned owner.
type Placement struct {
	// Number is the partition's number, from 0.
	Number int
	// Member is the ID of the worker that owns the partition, even if that worker is leaving the
	// group. It is empty if no worker does.
	Member string
	// Former is true if the owner is not the current member with that ID, but an earlier process
	// that used it.
	Former bool
	// Holder is the holder of the partition's lock, or nil.
	Holder *admin.Holder
	// Planned is the ID of the member that is to own the partition. It is empty without members.
	Planned string
	// Waiting is the number of workers that are waiting for the lock.
	Waiting int
}

// State is a group as the bucket shows it.
type State struct {
	// Group is the name of the group.
	Group string
	// Count is the number of partitions of the group, according to its first member. Without members it is a lower
	// bound, derived from the highest partition that has an owner.
	Count int
	// Members are the members that agree on Count, in the order in which they joined.
	Members []Member
	// Refused are the members that were started with a different number of partitions and are about
	// to leave.
	Refused []Member
	// Partitions are in the order of their numbers.
	Partitions []Placement

	known map[uint64]struct{} // the tokens of all locks with a member's name, even if the record is not that of a member
}

// The keys of the metadata.
const (
	idKey     = "member"
	weightKey = "weight"
	countKey  = "partitions"
)

func memberName(group, id string) string  { return group + ".member." + natslock.Join(id) }
func lockName(group string, k int) string { return group + ".part." + strconv.Itoa(k) }

// Inspect reads a group: its members, and the owner and planned owner of each partition. It reads the locks one after another, not
// as a snapshot. A group without members and owners is not an error.
//
// The error matches [natslock.ErrInvalid] for a name that no group can have. Other errors are those of [admin.Admin.List].
func Inspect(ctx context.Context, c *natslock.Client, group string) (State, error) {
	if err := checkGroup(group); err != nil {
		return State{}, err
	}
	g := newReading(group)
	for _, locks := range []string{".member.*", ".part.*"} { // one request each, because one for both could be too large
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

// Groups returns the groups found in locks, as read by [admin.Admin.List], ordered by name and each as [Inspect] returns it. A group
// exists while it has a member or a worker owns one of its partitions. It does no I/O.
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

// cutLast splits a name before its last token.
func cutLast(name string) (head, last string, ok bool) {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return name[:i], name[i+1:], true
	}
	return name, "", false
}

// reading is a group whose locks are still being read.
type reading struct {
	State
	owned []Placement // in any order
}

func newReading(group string) *reading {
	return &reading{State: State{Group: group, known: make(map[uint64]struct{})}}
}

// add records a lock of the group.
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

// live reports whether a holder renews the record. A holder whose lease an operator has broken is about to let go.
func live(h *admin.Holder) bool {
	return h != nil && !h.Overdue && h.Broken == nil && !h.Fixed && !h.Unreadable
}

// holds reports whether the member's process holds the lock.
func (m *Member) holds(h *admin.Holder) bool {
	return h != nil && h.Owner == m.Owner && h.Host == m.Host && h.PID == m.PID
}

// memberOf reads a member's record. Any other lock with such a name is not a member.
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

// settle completes what was read. The first member determines the number of partitions.
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

// planned returns, for each partition, the ID of the member that is to own it.
func (g *State) planned() []string {
	owners := make([]owner, len(g.Partitions))
	for k, p := range g.Partitions {
		if p.Holder != nil {
			owners[k] = owner{p.Member, p.Holder.Token}
		}
	}
	return plan(g.Members, owners)
}

// has reports whether a membership was read.
func (g *State) has(token uint64) bool {
	_, ok := g.known[token]
	return ok
}

// others returns the members except the one with this token.
func (g *State) others(token uint64) []Member {
	return slices.DeleteFunc(slices.Clone(g.Members), func(m Member) bool { return m.Token == token })
}
