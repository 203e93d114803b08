package partition

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// owner is the current or former member that owns a partition, with its fencing token. The id is
// empty if the partition has no owner.
type owner struct {
	id    string
	token uint64
}

// plan returns the ID of each partition's planned owner. members are all members, in any order.
// owners are the current owners, indexed by partition. An owner that is not a member is ignored.
//
// The result depends only on the arguments, so all workers that see the same members and owners
// arrive at the same plan without storing or announcing it. It has three properties, which the
// tests verify:
//
//   - Each member is assigned its quota (see quotas).
//   - A member keeps what it owns up to its quota, so no partition moves needlessly.
//   - A partly executed plan remains the plan. Once some of its moves have been made, or have
//     begun and left their partition without an owner, the rest of the plan stays the same. So
//     workers agree even if they read the bucket at different moments during a move.
//
// The third property holds because the partitions that have to move choose their new owners one
// after another, in numerical order. Removing one of them, together with the place it takes at
// its new owner, changes none of the other choices.
//
// A member that owns too many partitions gives up those that it acquired last. So a member that
// returns after a rolling restart or a crash gets back what it had.
func plan(members []Member, owners []owner) []string {
	planned := make([]string, len(owners))
	if len(members) == 0 {
		return planned
	}
	seats := newSeats(members, len(owners))
	owned := make([][]int, len(seats))
	index := make(map[string]int, len(seats))
	for i, s := range seats {
		index[s.id] = i
	}
	for k, o := range owners {
		if i, ok := index[o.id]; ok {
			owned[i] = append(owned[i], k)
		}
	}
	open := make([]int, len(seats)) // how many partitions each seat has yet to get
	for i, s := range seats {
		keeps := owned[i]
		if len(keeps) > s.quota {
			slices.SortFunc(keeps, func(a, b int) int {
				return cmp.Or(cmp.Compare(owners[a].token, owners[b].token), cmp.Compare(a, b))
			})
			keeps = keeps[:s.quota] //safety:partition-quota
		}
		for _, k := range keeps {
			planned[k] = s.id
		}
		open[i] = s.quota - len(keeps)
	}
	for k := range planned {
		if planned[k] != "" {
			continue
		}
		best := -1
		for i := range seats {
			if open[i] > 0 && (best < 0 || seats[i].before(seats[best], k)) {
				best = i
			}
		}
		planned[k] = seats[best].id // some seat is open, because the quotas add up to the number of partitions
		open[best]--
	}
	return planned
}

// seat is a member's place in a plan.
type seat struct {
	id     string
	hash   uint64
	weight int
	quota  int
}

// newSeats returns the members with their quotas. The order of the result does not depend on the
// order of members.
func newSeats(members []Member, partitions int) []seat {
	seats := make([]seat, len(members))
	for i, m := range members {
		h := fnv.New64a()
		_, _ = h.Write([]byte(m.ID)) // never fails
		seats[i] = seat{id: m.ID, hash: mix(h.Sum64()), weight: max(m.Weight, 1)}
	}
	slices.SortFunc(seats, func(a, b seat) int { return cmp.Or(cmp.Compare(b.hash, a.hash), cmp.Compare(a.id, b.id)) })
	quotas(seats, partitions)
	return seats
}

// quotas divides the partitions among the seats in proportion to their weights, using highest
// averages with odd divisors (the Webster/Sainte-Laguë method). Members of equal weight get equal
// quotas, except that the first seats may get one more.
//
// An apportionment method can either keep every quota within one of the exact share for any
// weights, or ensure that a join increases no other member's quota and a departure decreases
// none, but not both (Balinski and Young). This method ensures the latter, so that a join moves
// partitions only to the newcomer. Quotas per unit of weight differ by at most one. If each unit
// of weight gets several partitions, a quota differs from the exact share by about one at most.
func quotas(seats []seat, partitions int) {
	total := 0
	for _, s := range seats {
		total += s.weight
	}
	left := partitions
	// Every seat gets at least its share minus len(seats), so starting there only saves steps.
	for i := range seats {
		seats[i].quota = max(partitions*seats[i].weight/total-len(seats), 0)
		left -= seats[i].quota
	}
	for range left {
		best := 0
		for i := range seats {
			// Compare the averages weight/(2*quota+1) without dividing.
			if seats[i].weight*(2*seats[best].quota+1) > seats[best].weight*(2*seats[i].quota+1) {
				best = i
			}
		}
		seats[best].quota++
	}
}

// score rates a seat for partition k, and the seat with the highest score wins. This is
// rendezvous hashing: a member that joins or leaves does not change the scores of the others.
func (s seat) score(k int) uint64 { return mix(s.hash + mix(uint64(k)+1)) }

func (s seat) before(t seat, k int) bool {
	return cmp.Or(cmp.Compare(s.score(k), t.score(k)), cmp.Compare(t.id, s.id)) > 0
}

// mix spreads each bit of x over all bits of the result. It is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
