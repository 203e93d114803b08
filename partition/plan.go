package partition

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// owner is the owner of a partition, a present or former member, and its fencing token. The id is
// empty if there is none.
type owner struct {
	id    string
	token uint64
}

// plan returns, for each partition, the member that is to own it. members are all members, in any order. owners are the
// current owners by partition number. An id that belongs to no member owns nothing.
//
// It depends only on its arguments, so all workers that see the same members and owners agree, and none has to store or
// announce a plan. It has three properties, which the tests show:
//
//   - Each member is to own its quota (see quotas).
//   - A member keeps what it owns up to its quota, so no partition moves needlessly.
//   - A partly executed plan stays the plan: if any of its moves have been made, or have begun and left the partition
//     without an owner, the rest stays the same. So workers that read the bucket at different moments of a move agree.
//
// The third holds because the partitions that are to move choose their new owners one after another, by number: removing one of
// them, together with its place at its new owner, changes no other choice.
//
// A member that owns too much gives up what it has owned for the shortest time. So a member that returns, in a rolling
// restart or after a crash, gets back what it had.
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
	open := make([]int, len(seats)) // the number of partitions that each seat has yet to get
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
		planned[k] = seats[best].id // the quotas add up to all partitions, so one is open
		open[best]--
	}
	return planned
}

// seat is a member in a plan.
type seat struct {
	id     string
	hash   uint64
	weight int
	quota  int
}

// newSeats returns the members with their quotas, in an order independent of that of members.
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

// quotas divides the partitions in proportion to the weights, by highest averages with odd divisors (the method of Webster and
// Sainte-Laguë). Members with equal weights get the same number, except that the first seats may get one more.
//
// Any such method has to choose: it can keep every quota within one of the exact share for any weights, or ensure that no other
// member's quota grows when one joins and none shrinks when one leaves. No method does both (Balinski and Young). This one does
// the second, so that a join moves partitions only to the newcomer. The quotas per unit of weight differ by at most one. Where
// each unit gets several partitions, a quota differs from the exact share by about one at most.
func quotas(seats []seat, partitions int) {
	total := 0
	for _, s := range seats {
		total += s.weight
	}
	left := partitions
	for i := range seats { // no seat gets less than its share minus len(seats): starting there only saves steps
		seats[i].quota = max(partitions*seats[i].weight/total-len(seats), 0)
		left -= seats[i].quota
	}
	for range left {
		best := 0
		for i := range seats {
			// Compares the averages weight/(2*quota+1).
			if seats[i].weight*(2*seats[best].quota+1) > seats[best].weight*(2*seats[i].quota+1) {
				best = i
			}
		}
		seats[best].quota++
	}
}

// score rates a seat for a partition: the seat with the highest score wins. A member that joins or leaves does not change the
// scores of the others (rendezvous hashing).
func (s seat) score(k int) uint64 { return mix(s.hash + mix(uint64(k)+1)) }

func (s seat) before(t seat, k int) bool {
	return cmp.Or(cmp.Compare(s.score(k), t.score(k)), cmp.Compare(t.id, s.id)) > 0
}

// mix spreads the bits of x over all bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
