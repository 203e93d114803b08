package partition

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func fleet(n int, weight func(i int) int) []Member {
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{ID: fmt.Sprintf("worker-%d", i), Weight: weight(i)}
	}
	return members
}

func even(int) int { return 1 }

// apply carries out a plan.
func apply(owners []owner, planned []string) []owner {
	owners = slices.Clone(owners)
	token := uint64(0)
	for _, o := range owners {
		token = max(token, o.token)
	}
	for k, id := range planned {
		if owners[k].id != id {
			token++
			owners[k] = owner{id, token}
		}
	}
	return owners
}

func ids(owners []owner) []string {
	ids := make([]string, len(owners))
	for k, o := range owners {
		ids[k] = o.id
	}
	return ids
}

func count(owners []string) map[string]int {
	n := map[string]int{}
	for _, id := range owners {
		n[id]++
	}
	return n
}

func moved(before []owner, after []string) (n int) {
	for k := range after {
		if before[k].id != after[k] {
			n++
		}
	}
	return n
}

// TestPlanBalances checks that the numbers of partitions of members with equal weights differ by at
// most one, whatever happened before.
func TestPlanBalances(t *testing.T) {
	for _, p := range []int{1, 2, 7, 64, 1000} {
		owners := make([]owner, p)
		for n := 1; n <= 20; n++ {
			owners = apply(owners, plan(fleet(n, even), owners))
			owned := count(ids(owners))
			for _, m := range fleet(n, even) {
				require.Contains(t, []int{p / n, (p + n - 1) / n}, owned[m.ID], "%d partitions, %d members", p, n)
			}
		}
	}
}

// TestPlanMovesNoMoreThanNeeded checks that a join moves partitions only to the new member, and a
// leave moves only the partitions of the member that left.
func TestPlanMovesNoMoreThanNeeded(t *testing.T) {
	for _, weight := range []func(int) int{even, func(i int) int { return 1 + i%4 }} {
		for _, p := range []int{16, 64, 257} {
			owners := apply(make([]owner, p), plan(fleet(1, weight), make([]owner, p)))
			for n := 1; n < 16; n++ {
				after := plan(fleet(n+1, weight), owners)
				newcomer := fmt.Sprintf("worker-%d", n)
				require.Equal(t, count(after)[newcomer], moved(owners, after), "join of the member %d of %d partitions", n, p)
				owners = apply(owners, after)
				back := plan(fleet(n, weight), owners)
				require.Equal(t, count(after)[newcomer], moved(owners, back), "its leave")
			}
		}
	}
}

// TestPlanBoundsAJoin checks that a new member with the same weight causes no more moves than its
// share, rounded up.
func TestPlanBoundsAJoin(t *testing.T) {
	for p := 1; p < 300; p += 7 {
		owners := make([]owner, p)
		for n := 0; n < 12; n++ {
			after := plan(fleet(n+1, even), owners)
			if n > 0 {
				require.LessOrEqual(t, moved(owners, after), (p+n)/(n+1), "%d partitions, %d members", p, n)
			}
			owners = apply(owners, after)
		}
	}
}

// TestPlanWeighs checks that members' partitions per unit of weight differ by at most one, and that
// with these weights each member is within about one partition of its exact share.
func TestPlanWeighs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	off := 0.0
	for range 2000 {
		n := 1 + rng.IntN(12)
		members := fleet(n, func(int) int { return 1 + rng.IntN(4) })
		total := 0
		for _, m := range members {
			total += m.Weight
		}
		p := rng.IntN(500)
		owned := count(plan(members, make([]owner, p)))
		least, most := math.Inf(1), 0.0
		for _, m := range members {
			unit := float64(owned[m.ID]) / float64(m.Weight)
			least, most = min(least, unit), max(most, unit)
			share := float64(p*m.Weight) / float64(total)
			off = max(off, math.Abs(float64(owned[m.ID])-share))
		}
		require.LessOrEqual(t, most-least, 1.0, "%d partitions: %v", p, members)
	}
	t.Logf("from the exact share: at most %.2f", off)
	require.Less(t, off, 1.25)
}

// TestPlanStaysWhileItIsCarriedOut checks that a partially executed plan remains the plan, whatever
// the order of its moves, and even while some partitions have no owner.
func TestPlanStaysWhileItIsCarriedOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		n, p := 1+rng.IntN(9), 1+rng.IntN(80)
		members := fleet(n, func(int) int { return 1 + rng.IntN(3) })
		owners := make([]owner, p)
		some := func() string { return fmt.Sprintf("worker-%d", rng.IntN(n+3)) } // three of these are not members
		for k := range owners {
			if rng.IntN(4) > 0 {
				owners[k] = owner{some(), rng.Uint64N(100)}
			}
		}
		want := plan(members, owners)
		require.Equal(t, want, plan(members, apply(owners, want)))
		for k := range owners {
			switch {
			case owners[k].id == want[k]:
			case rng.IntN(3) == 0:
				owners[k] = owner{want[k], 100 + rng.Uint64N(100)}
			case rng.IntN(2) == 0:
				owners[k] = owner{}
			}
		}
		rng.Shuffle(n, func(i, j int) { members[i], members[j] = members[j], members[i] })
		require.Equal(t, want, plan(members, owners))
	}
}

// TestPlanGivesBack checks that a member that leaves and returns gets its partitions back, so that
// a rolling restart moves each partition only twice.
func TestPlanGivesBack(t *testing.T) {
	owners := make([]owner, 64)
	for n := 1; n <= 7; n++ { // 7 does not divide 64
		owners = apply(owners, plan(fleet(n, even), owners))
	}
	moves := 0
	for i := range 7 {
		before := ids(owners)
		left := plan(slices.Delete(fleet(7, even), i, i+1), owners)
		moves += moved(owners, left)
		owners = apply(owners, left)
		back := plan(fleet(7, even), owners)
		moves += moved(owners, back)
		require.Equal(t, before, back)
		owners = apply(owners, back)
	}
	require.Equal(t, 2*64, moves)
}

// TestPlanOfNothing checks plans without members, in which nobody owns anything, and plans without
// partitions.
func TestPlanOfNothing(t *testing.T) {
	require.Equal(t, []string{"", ""}, plan(nil, []owner{{id: "gone"}, {}}))
	require.Empty(t, plan(fleet(3, even), nil))
}

func BenchmarkPlan(b *testing.B) {
	members := fleet(50, even)
	owners := apply(make([]owner, 1000), plan(members[:49], make([]owner, 1000)))
	b.ReportAllocs()
	for b.Loop() {
		plan(members, owners)
	}
}
